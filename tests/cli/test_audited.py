"""The audit log of commands: every command that changes something, or shows content, writes an entry by the operator."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import attrs
import click
import pytest
import pytest_twisted
from click.testing import CliRunner

from mailsvc.accounts.onboarding import Refused
from mailsvc.cli import queue
from mailsvc.cli.main import main
from mailsvc.clock import utc
from mailsvc.monitoring.operator_commands import OperatorCommands
from mailsvc.runtime.database import Database
from mailsvc.runtime.privacy import open_eraser
from mailsvc.settings.privacy import Privacy
from mailsvc.store.audit import verification
from mailsvc.store.encryption.body_key_files import BodyKeyFiles
from mailsvc.store.encryption.body_keys import BodyKeys
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.events.webhook_log import WebhookLog
from mailsvc.store.events.webhooks import Webhooks
from mailsvc.store.mail.accept import Submission
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.audit import INSTALLATION
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.claims import Queue
from mailsvc.store.queue.operator import Operating
from tests.cli.groups import commands_of
from tests.cli.test_cli import Command
from tests.store.fixtures import StoreRig, email

# Commands that write no entry, and why.
SHOWS = "shows no content"
NO_DATABASE = "does not use the database"
SILENT = {
    "account list": SHOWS,
    "account plans": NO_DATABASE,
    "account show": SHOWS,
    "audit adopt": "writes an entry if there is something to adopt (test_audit)",
    "audit anchor": "an anchor is a record",
    "audit key": NO_DATABASE,
    "audit verify": SHOWS,
    "cell account-move": "a cluster of Citus is needed (end_to_end/test_cell_commands)",
    "cell create": "a cluster of Citus is needed (end_to_end/test_cell_commands)",
    "cell list": SHOWS,
    "cell move": "a cluster of Citus is needed (end_to_end/test_cell_commands)",
    "completion": NO_DATABASE,
    "doctor": SHOWS,
    "domain check": SHOWS,
    "domain list": SHOWS,
    "domain show": SHOWS,
    "domain zone": SHOWS,
    "key list": SHOWS,
    "member list": SHOWS,
    "operator list": SHOWS,
    "privacy erasures": SHOWS,
    "queue list": SHOWS,
    "queue retry": "sends what may be sent, only sooner",
    "secrets create": NO_DATABASE,
    "secrets list": SHOWS,
    "setup": "writes the entries of the commands that it stands for (test_setup)",
    "sources list": SHOWS,
    "upgrade": "the database records its migrations",
    "webhook list": SHOWS,
}


SINGLE_SIGN_ON = """
INSERT INTO single_sign_on (account_id, issuer, client, secret, required, new_members, vouches, changed_at)
VALUES (%s, 'https://login.example.com', 'client', %s, true, false, false, now())
"""


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, command in commands_of(group).items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        elif not command.hidden:
            yield " ".join((*path, name))


@attrs.define(eq=False)
class Walk:
    """Runs commands in this process, and checks the entries of each."""

    pool: Pool
    config: Path
    encryption: Encryption
    account: UUID | None = None  # whose log is written
    walked: set[str] = attrs.field(factory=set)
    _works: list[Callable[[], Awaitable[Any]]] = attrs.field(factory=list)

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from twisted.internet import reactor

        erasing = open_eraser(self.pool, reactor, self.encryption, Privacy())
        bodies = BodyKeys(self.pool, reactor, self.encryption, BodyKeyFiles(self.config.parent / "body-keys"))

        def with_database(settings: Any, work: Any, **options: Any) -> None:
            self._works.append(lambda: work(Database("", self.pool, self.encryption, None, erasing, bodies), reactor))

        def ask(settings: Any, given: dict[str, Any]) -> dict[str, Any]:
            operating = OperatorCommands(
                Queue(self.pool), Operating(self.pool), "us-east-1", reactor.seconds, Accounts(self.pool, reactor), lambda: None
            )
            self._works.append(lambda: operating.by_name()[given.pop("do")](**given))
            return {"waiting": []}

        for name, module in list(sys.modules.items()):
            if name.startswith("mailsvc.cli.") and hasattr(module, "run_with_database"):
                monkeypatch.setattr(module, "run_with_database", with_database)
        monkeypatch.setattr(queue, "_send", ask)

    async def __call__(self, words: str, *entries: str) -> None:
        before = await self._entries()
        done = CliRunner().invoke(main, ["--config", str(self.config), *words.split()])
        assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.output, done.exception)
        for work in self._works:
            with suppress(SystemExit, Refused):
                await work()
        assert self._works, (words, done.output)
        self._works.clear()
        written = (await self._entries())[len(before) :]
        self.account = self.account or written[0][0]  # that of the first account, which the first command creates
        assert written == [(self.account, "operator", each) for each in entries], words
        self.walked |= {name for name in commands(main) if words.startswith(name)}

    async def _entries(self) -> list[Any]:
        return await self.pool.rows("SELECT account_id, kind, action FROM audit ORDER BY id")


@pytest_twisted.ensureDeferred
async def test_every_command_that_changes_something_writes_an_audit_entry(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from twisted.internet import reactor

    config = Command(tmp_path, pool.dsn).config
    config.write_text(config.read_text().replace("[smtp]", 'nameservers = ["127.0.0.1"]\ndns_seconds = 1\n[smtp]'))
    walk = Walk(pool, config, Encryption.load(tmp_path / "secret.key"))
    walk.patch(monkeypatch)
    await walk("account create Example", "account created")
    [(owner,)] = await pool.rows("SELECT id FROM accounts")
    await changes(walk, str(owner))
    queued = email(account=owner, region="us-east-1")
    await StoreRig(pool, reactor).acceptance.accept(Submission(owner, [queued]))
    await replaying(walk, owner)
    await operating(walk, str(owner), str(queued.email_id))
    assert walk.walked | set(SILENT) == set(commands(main))
    assert not walk.walked & set(SILENT)
    assert [(await verification.verify(pool, each, {})).problems for each in (owner, INSTALLATION)] == [(), ()]


async def replaying(walk: Walk, owner: UUID) -> None:
    from twisted.internet import reactor

    endpoint = await Webhooks(walk.pool, reactor, walk.encryption).add(owner, "https://example.com/hook", ["email.sent"], b"secret", 1)
    assert endpoint is not None
    event_id = await WebhookLog(walk.pool).test(owner, endpoint.id, "email.sent", {}, utc(reactor))
    await walk(f"webhook replay {endpoint.id} --account {owner} --event msg_{event_id.hex}", "webhook event resent")
    await walk(f"webhook replay {endpoint.id} --account {owner} --event msg_{uuid4().hex}")  # there is no such event
    await walk(f"webhook replay {endpoint.url} --account {owner} --since 2020-01-01 --all", "webhook events resent")


async def changes(walk: Walk, owner: str) -> None:
    await walk(f"account rename {owner} Renamed", "account renamed")
    await walk(f"account suspend {owner}", "account suspended")
    await walk(f"account suspend {owner}")  # it was suspended
    await walk(f"account resume {owner}", "account resumed")
    await walk(f"account resume {owner}")  # it was not suspended
    await walk(f"account notify {owner} ops@example.com", "address for notifications changed")
    await walk(f"account retention {owner} --bodies 3", "retention changed")
    await walk(f"account retention {owner}")  # only shows
    await walk(f"account plan {owner} free", "plan changed")
    await walk(f"account trust {owner} --off", "account no longer trusted")
    await walk(f"account region {owner} us-east-1", "home region changed")
    await walk(f"account region {owner}")  # only shows
    await walk(f"account networks {owner} 192.0.2.0/24", "networks changed")
    await walk(f"account networks {owner}")  # only shows
    await walk(f"account networks {owner} --any", "networks changed")
    secret = walk.encryption.encrypt(b"secret", UUID(owner))
    await walk.pool.run(SINGLE_SIGN_ON, (owner, secret))
    await walk(f"account sso {owner} --off", "single sign-on made optional")
    await walk(f"account sso {owner}")  # only shows
    await walk(f"account review {owner}", "access review exported")
    await walk(f"account export {owner} --output {walk.config}.account.zip --key {walk.config}.account.key")  # there is no access
    await walk(f"account access {owner} --reason Ticket", "access to content opened")
    await walk(f"account access {owner} --list")  # only shows
    await walk(f"account export {owner} --output {walk.config}.account.zip --key {walk.config}.account.key", "account exported")
    await walk(f"account import {walk.config}.account.zip --key {walk.config}.account.key")  # it exists
    bounces = walk.config.with_name("bounces.json")
    bounces.write_text('{"items": [{"address": "a@example.com", "code": "550"}]}')
    await walk(f"import {bounces} --account {owner} --from mailgun", "data of another service imported")
    await walk(f"import {bounces} --account {owner} --from mailgun --dry-run")
    await walk(f"account minimize {owner} --on bodies", "data minimization changed")
    await walk(f"account minimize {owner}")  # only shows
    await walk(f"account encrypt {owner}", "message encryption turned on")
    await walk(f"account encrypt {owner}")  # it is on
    await walk(f"account encrypt {owner} --off", "message encryption turned off")
    await walk(f"account close {owner} --yes", "account closed")
    await walk(f"account reopen {owner}", "account reopened")
    await walk(f"queue pause --account {owner}", "mail paused")
    await walk(f"account release {owner}", "mail released")
    await walk(f"account release {owner}")  # it was not on hold
    await walk(f"key create --account {owner} --name shop", "key created")
    await walk(f"key revoke shop --account {owner}", "key revoked")
    await walk(f"key revoke shop --account {owner}")  # it is gone
    await walk(f"member add ann@example.com --account {owner}", "member added", "sign-in link created")
    await walk(f"member add bob@example.com --account {owner} --role developer", "member added", "sign-in link created")
    await walk(f"member add bob@example.com --account {owner}", "sign-in link created")  # they keep their role
    await walk(f"member add bob@example.com --account {owner} --role marketing", "role changed", "sign-in link created")
    await walk(f"member role bob@example.com admin --account {owner}", "role changed")
    await walk(f"member role bob@example.com admin --account {owner}")  # it is the same
    await walk("member link bob@example.com", "sign-in link created")
    await walk(f"member remove bob@example.com --account {owner}", "member removed")
    await walk(f"member remove ann@example.com --account {owner}")  # the last admin stays
    await walk("member reset ann@example.com", "second factors removed")
    await walk(f"domain add shop.example --account {owner}", "domain added")
    await walk("domain signs shop.example rsa", "domain changed")
    await walk("domain region shop.example eu-west-1", "domain moved")
    await walk("domain rotate shop.example", "domain keys rotated")
    await walk("domain verify shop.example", "domain verification requested")
    await walk(f"domain trust shop.example --account {owner}", "domain trusted")
    await walk(f"sources assign bulk --account {owner}", "pool assigned")
    await walk("sources unassign --domain shop.example", "pool removed")
    await walk("domain delete shop.example --yes", "domain deleted")


async def operating(walk: Walk, owner: str, queued: str) -> None:
    await walk(f"explain {queued}", "email explained")
    await walk(f"email show {queued}", "email read")
    await walk(f"privacy export someone@example.org --account {owner} --output {walk.config}.one.zip", "address exported")
    await walk(f"account access {owner} --end", "access to content ended")
    await walk(f"email show {queued}")  # there is no access any more
    await walk(f"queue show {queued}", "recipients of an email shown")
    await walk(f"queue pause --email {queued}", "email paused")
    await walk(f"queue resume --email {queued}", "email released")
    await walk(f"queue pause --email {uuid4()}")  # there is no such email
    await walk(f"email cancel {uuid4()}")  # there is no such email
    await walk(f"audit export --account {owner}", "audit log exported")
    await walk(f"privacy find someone@example.org --account {owner}", "address looked up")
    walk.account = INSTALLATION
    await walk("queue pause --destination typo.example")  # there is no such destination
    await walk("queue pause --destination example.org", "destination paused")
    await walk("queue resume --destination example.org", "destination released")
    walk.account = UUID(owner)
    await walk(f"email cancel {queued}", "email canceled")
    walk.account = INSTALLATION
    await walk(f"privacy export someone@example.org --output {walk.config}.zip", "address exported")
    await walk(f"evidence --since 2020-01-01 --output {walk.config}.evidence.zip", "evidence exported")
    await walk("privacy erase someone@example.org --yes", "address erased")
    await walk("operator add bo@operator.example", "operator added")
    await walk("operator remove bo@operator.example", "operator removed")
    await walk("queue hold", "all mail held")
    await walk("queue release", "all mail released")
    await walk("queue release")  # nothing was held
    await walk("audit protect somebody")  # there is no such role
    await walk("secrets rotate", "encryption keys rotated")
    await walk("secrets reencrypt", "secrets encrypted again")
