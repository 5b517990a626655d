"""What is done for a new customer: an account, a sending domain with its keys, an API key. For the command and the first run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.domains.keypair import KeyPair, new_pair
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.mail.dkim import Algorithm
from mailsvc.memory import Memory, in_thread
from mailsvc.store.accounts import Account, Accounts
from mailsvc.store.domains import Domain, Domains
from mailsvc.store.errors import Conflict
from mailsvc.store.keys import Keys

ALGORITHMS: tuple[Algorithm, ...] = ("rsa", "ed25519")


class Refused(Exception):
    """A sentence for the operator."""


@attrs.frozen
class Customers:
    """The tables that belong to customers."""

    reactor: Any
    accounts: Accounts
    domains: Domains
    keys: Keys

    @classmethod
    def of(cls, memory: Memory, reactor: Any) -> Customers:
        """Without a bell: for what changes little and then ends."""
        pool = memory.pool
        return cls(reactor, Accounts(pool, reactor), Domains(pool, reactor, memory.seal), Keys(pool, reactor))

    async def account(self, text: str) -> Account:
        """An account by its id, its number or its name."""
        accounts = await self.accounts.list()
        exact = [account for account in accounts if text in (str(account.id), str(account.number))]
        found = exact or [account for account in accounts if account.name == text]
        if len(found) != 1:
            raise Refused(f"{'No account is' if not found else f'{len(found)} accounts are'} called {text!r}; name one by its id.")
        return found[0]

    async def domain(self, account: Account, text: str) -> Domain:
        """A domain of the account by its name."""
        name = domain_name(text)
        found = await self.domains.find(account.id, name)
        if found is None:
            raise Refused(f"The account {account.name!r} has no domain {name}.")
        return found

    async def add_domain(self, account_id: UUID, text: str, region: str) -> tuple[Domain, Sequence[KeyPair]]:
        """A new sending domain with a DKIM key pair of each algorithm."""
        name = domain_name(text)
        today = datetime.fromtimestamp(self.reactor.seconds(), UTC).date()
        pairs = await in_thread(self.reactor, lambda: [new_pair(algorithm, today) for algorithm in ALGORITHMS])
        try:
            return await self.domains.add(account_id, name, region, pairs), pairs
        except Conflict:
            raise Refused(f"The domain {name} is there already.") from None


def domain_name(text: str) -> str:
    """A domain as it is kept: lower case, A-labels."""
    try:
        return parse_mailbox(f"postmaster@{text.strip().rstrip('.')}").domain
    except AddressError:
        raise Refused(f"{text!r} is no domain name.") from None
