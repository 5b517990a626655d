"""How many recipients one transaction with a host may have, if a transaction failed because it had too many.

A host that takes only some of the recipients should reply 452 to the others (RFC 5321 §4.5.3.1.10). Others reply 421, close the
connection, or refuse the message, so that nobody gets the mail. Such a host gets smaller transactions for a while.
"""

from __future__ import annotations

from typing import Any

from mailsvc.delivery.connection.host_memory import HostMemory
from mailsvc.delivery.transaction import Transaction


def smaller(recipients: int, replied: int) -> int:
    """The size of the next transactions, after one with so many recipients failed when the host had replied to `replied` of them.

    If it replied to none, one recipient may be the cause: half of them, so that the others get through after a few attempts.
    """
    return replied or max(1, recipients // 2)


class TransactionSizes:
    """By host, as this process has learned them."""

    def __init__(self, clock: Any) -> None:
        self._most = HostMemory[int](clock)

    def failed(self, host: str, recipients: int, replied: int) -> None:
        """A transaction with so many recipients failed when the host had replied to `replied` of them."""
        self._most.set(host, min(smaller(recipients, replied), self._most.get(host) or recipients))

    def rest(self, host: str, transaction: Transaction) -> Transaction | None:
        """Split off what does not go into the next transaction with this host."""
        most = self._most.get(host)
        return None if most is None else transaction.split(transaction.recipients[most:])
