"""How many recipients one transaction with a host may have, if a transaction failed because it had too many.

A host that takes only some of the recipients should reply 452 to the others (RFC 5321 §4.5.3.1.10). Others reply 421, close the
connection, or refuse the message, so that nobody gets the mail. Such a host gets smaller transactions for a while.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from mailsvc.delivery.transaction import Transaction

_SMALLER_SECONDS = 3600.0
_HOSTS = 10_000  # remembered


def smaller(recipients: int, replied: int) -> int:
    """The size of the next transactions, after one with so many recipients failed when the host had replied to `replied` of them.

    If it replied to none, one recipient may be the cause: half of them, so that the others get through after a few attempts.
    """
    return replied or max(1, recipients // 2)


class TransactionSizes:
    """By host, as this process has learned them."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()  # and until when

    def failed(self, host: str, recipients: int, replied: int) -> None:
        """A transaction with so many recipients failed when the host had replied to `replied` of them."""
        most = min(smaller(recipients, replied), self._most(host) or recipients)
        self._known[host] = most, self._clock.seconds() + _SMALLER_SECONDS
        self._known.move_to_end(host)
        while len(self._known) > _HOSTS:
            self._known.popitem(last=False)

    def rest(self, host: str, transaction: Transaction) -> Transaction | None:
        """Split off what does not go into the next transaction with this host."""
        most = self._most(host)
        return None if most is None else transaction.split(transaction.recipients[most:])

    def _most(self, host: str) -> int | None:
        most, until = self._known.get(host, (None, 0.0))
        return most if self._clock.seconds() < until else None
