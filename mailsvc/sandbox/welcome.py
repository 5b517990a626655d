"""The first start of a development server: creates an account, a sending domain and an API key, and shows them to people and scripts."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import attrs
from twisted.internet.task import deferLater

from mailsvc.accounts.onboarding import Customers, People
from mailsvc.runtime.lifecycle import say
from mailsvc.settings.schema import Settings
from mailsvc.store.domains.domains import Domain
from mailsvc.store.people.accounts import Account
from mailsvc.store.people.api_keys import digest
from mailsvc.store.postgres.errors import Unavailable

ACCOUNT = "Development"
LINK = timedelta(hours=12)
TRIES, PAUSE = 6, 1.0  # while the database is unavailable; seconds between two of them, in addition to those for a connection
SUPPRESSED_AT = ("example.com", "example.net", "example.org")  # domains at which the address `suppressed` is suppressed


@attrs.define(eq=False)
class Welcome:
    """`http` is the URL of the API; `smtp` has the actual port for each standard port of the relay."""

    customers: Customers
    settings: Settings
    file: Path
    http: str
    smtp: Mapping[str, int]
    suppress: Callable[[UUID, Sequence[str]], Awaitable[object]] | None = None  # adds addresses to an account's suppression list

    async def begin(self) -> None:
        """Create what is missing, write the file, and print the greeting. The file means that the daemon is ready."""
        facts = await self._patiently()
        _write(self.file, json.dumps(facts, indent=2) + "\n")
        say(greeting(facts), sys.__stdout__)

    async def _patiently(self) -> Mapping[str, object]:
        """Delivery has begun: with a backlog, it can use all connections to the database for long."""
        for _ in range(TRIES):
            with contextlib.suppress(Unavailable):
                return await self._facts()
            await deferLater(self.customers.reactor, PAUSE)
        return await self._facts()

    async def _facts(self) -> Mapping[str, object]:
        account = await self._account()
        domain = await self._domain(account)
        if self.suppress is not None:
            await self.suppress(account.id, [f"suppressed@{name}" for name in (*SUPPRESSED_AT, domain.name)])
        facts: dict[str, object] = {
            "http": self.http,
            "api_key": await self._key(account),
            "account_id": str(account.id),
            "domain": domain.name,
            "smtp_username": self.settings.smtp.username,
            "smtp": dict(self.smtp),
        }
        if self.settings.sandbox.listen:
            facts |= {"sandbox": f"{self.http}/sandbox/emails"}
        if self.customers.people is not None:
            facts |= {"dashboard": f"{self.http}/dashboard", "sign_in": await self._sign_in(account, self.customers.people)}
        return facts

    async def end(self) -> None:
        """Remove the file when the daemon stops. The key stays, because only its hash is stored elsewhere."""
        self.file.unlink(missing_ok=True)

    async def _account(self) -> Account:
        accounts = self.customers.accounts
        found = [account for account in await accounts.list() if account.name == ACCOUNT]
        return found[0] if found else await accounts.create(ACCOUNT, trusted=True)

    async def _domain(self, account: Account) -> Domain:
        name = self.settings.development.domain
        domain = await self.customers.domains.find(account.id, name)
        if domain is None:
            domain = await self.customers.add_domain(account.id, name, self.settings.region)
        if not domain.trusted:
            await self.customers.domains.trust(account.id, domain.name)
        return domain

    async def _sign_in(self, account: Account, people: People) -> str:
        """A link that signs in the first admin, once."""
        _, secret = await people.admit(account.id, self.settings.development.member, "admin", LINK, "Development")
        return f"{self.http}/dashboard/sign-in/link?link={secret}"

    async def _key(self, account: Account) -> str:
        """The key that an earlier run left next to the file, if it is still valid; otherwise a new one, and the file's key is revoked."""
        key_file = self.file.with_suffix(".key")
        with contextlib.suppress(OSError, ValueError):
            old = key_file.read_text("utf-8").strip()
            caller = await self.customers.keys.find(digest(old))
            if caller is not None and (caller.account_id, caller.permission, caller.domain_id) == (account.id, "full_access", None):
                return old
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            former = await self.customers.keys.find(digest(str(json.loads(self.file.read_text("utf-8"))["api_key"])))
            if former is not None and former.key_id is not None:
                await self.customers.keys.revoke(account.id, former.key_id)
        _, token = await self.customers.keys.create(account.id, ACCOUNT, "full_access")
        _write(key_file, token + "\n")
        return token


def greeting(facts: Mapping[str, Any]) -> str:
    """What was started, and what to do next in four lines."""
    lines = [f"mailsvc    {facts['http']}"]
    if "dashboard" in facts:
        lines.append(f"dashboard  {facts['dashboard']}")
    lines.append(f"API key    {facts['api_key']}")
    if facts["smtp"]:
        ports = ", ".join(f"{port} for {number}" for number, port in facts["smtp"].items())
        lines.append(f"SMTP       localhost, ports {ports}; user {facts['smtp_username']}, the password is the API key")
    started = "".join(f"\n  {line}" for line in lines)
    steps = "".join(f"\n  {number}. {step}" for number, step in enumerate(_next_steps(facts), 1))
    return f"{started}\n\n  What to do next:{steps}\n"


def _next_steps(facts: Mapping[str, Any]) -> Sequence[str]:
    key = f"-H 'Authorization: Bearer {facts['api_key']}'"
    mail = {"from": f"Hello <hello@{facts['domain']}>", "to": "you@example.com", "subject": "Hello", "html": "<p>It works.</p>"}
    send = f"curl {facts['http']}/emails {key} -H 'Content-Type: application/json' -d '{json.dumps(mail)}'"
    received = "See what the sandbox received; no mail leaves this machine" if "sandbox" in facts else "See what was sent"
    steps = [
        f"Send an email:  {send}",
        f"{received}:  curl {facts.get('sandbox', facts['http'] + '/emails')} {key}",
        f"Use a client library:  RESEND_API_URL={facts['http']} RESEND_API_KEY={facts['api_key']} python your_script.py",
    ]
    return [f"Sign in to the dashboard, with this link that works once:  {facts['sign_in']}", *steps] if "sign_in" in facts else steps


def _write(path: Path, text: str) -> None:
    """Write the file as a whole, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    unfinished.replace(path)
