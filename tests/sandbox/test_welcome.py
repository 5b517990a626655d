"""The first start of a development server: account, domain, key, greeting and file."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import attrs
import pytest
import pytest_twisted

from mailsvc.accounts.onboarding import Customers
from mailsvc.runtime.database import Database
from mailsvc.runtime.privacy import open_eraser
from mailsvc.sandbox.welcome import Welcome, greeting
from mailsvc.settings.schema import Domains, Privacy, Settings
from mailsvc.store.encryption.body_keys import BodyKeys
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.people.accounts import Account
from mailsvc.store.people.api_keys import digest
from mailsvc.store.postgres.errors import Unavailable
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.restore_guard import RestoreGuard

ENCRYPTION = Encryption.read("1 " + "A" * 43 + "=", "the test")


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    out = io.StringIO()
    monkeypatch.setattr(sys, "__stdout__", out)
    return out


def welcome(pool: Pool, file: Path) -> Welcome:
    from twisted.internet import reactor

    erasing, bodies = open_eraser(pool, reactor, ENCRYPTION, Privacy()), BodyKeys(pool, reactor, ENCRYPTION, None)
    database = Database("", pool, ENCRYPTION, RestoreGuard(pool, None, "r"), erasing, bodies)
    customers = Customers.of(database, reactor, Settings(domains=Domains(allow_trust=True)))
    return Welcome(customers, Settings(), file, "http://localhost:8025", {"25": 2525})


@pytest_twisted.ensureDeferred
async def test_the_file_is_written_and_removed(pool: Pool, tmp_path: Path, output: io.StringIO) -> None:
    file = tmp_path / "var" / "dev.json"
    first = welcome(pool, file)
    await first.begin()
    facts = json.loads(file.read_text())
    assert {name: facts[name] for name in ("http", "domain", "smtp_username", "smtp")} == {
        "http": "http://localhost:8025",
        "domain": "mailsvc.example",
        "smtp_username": "mailsvc",
        "smtp": {"25": 2525},
    }
    assert file.stat().st_mode & 0o777 == 0o600
    assert {path.name: path.stat().st_mode & 0o777 for path in file.parent.iterdir()} == {"dev.json": 0o600, "dev.key": 0o600}
    account = UUID(facts["account_id"])
    caller = await first.customers.keys.find(digest(facts["api_key"]))
    assert caller is not None and (caller.account_id, caller.permission) == (account, "full_access")
    domain = await first.customers.domains.find(account, "mailsvc.example")
    assert domain is not None and domain.may_send
    assert len(await first.customers.domains.signing_keys(domain.id)) == 2
    assert output.getvalue() == greeting(facts) + "\n"
    await first.end()
    assert not file.exists()


@pytest_twisted.ensureDeferred
async def test_a_second_start_uses_the_same_account_and_key(pool: Pool, tmp_path: Path, output: io.StringIO) -> None:
    file = tmp_path / "dev.json"
    await welcome(pool, file).begin()
    facts = json.loads(file.read_text())
    await welcome(pool, file).begin()  # the first one was killed: its file, and so its key, is still there
    again = json.loads(file.read_text())
    assert again.pop("sign_in") != facts.pop("sign_in")  # a link works once
    assert again == facts
    await welcome(pool, file).end()
    await welcome(pool, file).begin()
    again = json.loads(file.read_text())
    assert again["api_key"] == facts["api_key"]
    file.with_suffix(".key").unlink()
    await welcome(pool, file).begin()
    again = json.loads(file.read_text())
    assert again["api_key"] != facts["api_key"]
    last = welcome(pool, file)
    assert await last.customers.keys.find(digest(facts["api_key"])) is None  # none is left behind by a start
    assert await last.customers.keys.find(digest(again["api_key"])) is not None
    other = welcome(pool, tmp_path / "other.json")
    await other.begin()
    assert await last.customers.keys.find(digest(again["api_key"])) is not None  # each process has its own
    assert {**again, "api_key": "", "sign_in": ""} == {**facts, "api_key": "", "sign_in": ""}
    assert {name for (name,) in await pool.rows("SELECT name FROM api_keys")} == {"Development"}  # where it is shown is nobody's business


@pytest.mark.parametrize("left", ["", "[]", "{}", '{"api_key": 7}', "\xff"])
@pytest_twisted.ensureDeferred
async def test_other_keys_are_not_revoked(pool: Pool, tmp_path: Path, output: io.StringIO, left: str) -> None:
    file = tmp_path / "dev.json"
    only = welcome(pool, file)
    account = await only.customers.accounts.create("Development")
    _, token = await only.customers.keys.create(account.id, "Development", "full_access")
    file.write_text(left)
    await only.begin()
    assert await only.customers.keys.find(digest(token)) is not None


@pytest.mark.parametrize("left", ["", "ms_unknown", "\0"])
@pytest_twisted.ensureDeferred
async def test_an_earlier_key_is_used_only_if_it_is_valid(pool: Pool, tmp_path: Path, output: io.StringIO, left: str) -> None:
    file = tmp_path / "dev.json"
    file.with_suffix(".key").write_text(left)
    only = welcome(pool, file)
    await only.begin()
    assert await only.customers.keys.find(digest(json.loads(file.read_text())["api_key"])) is not None


def test_the_greeting_ends_with_four_lines_that_say_what_to_do_next() -> None:
    facts = {"http": "http://localhost:8025", "api_key": "ms_x", "domain": "mailsvc.example", "smtp": {}}
    ports = {"smtp": {"25": 2525, "465": 4465}, "smtp_username": "mailsvc"}
    more = {
        "dashboard": "http://localhost:8025/dashboard",
        "sign_in": "http://localhost:8025/link",
        "sandbox": "http://localhost:8025/sandbox/emails",
    }
    started, steps = greeting(facts | ports | more).split("What to do next:\n")
    assert [line.split()[0] for line in started.strip().splitlines()] == ["mailsvc", "dashboard", "API", "SMTP"]
    assert "  SMTP       localhost, ports 2525 for 25, 4465 for 465; user mailsvc, the password is the API key\n" in started
    first, send, see, library = steps.splitlines()
    assert first.endswith("http://localhost:8025/link")
    assert "-H 'Authorization: Bearer ms_x'" in send and '"from": "Hello <hello@mailsvc.example>"' in send
    assert see.endswith("curl http://localhost:8025/sandbox/emails -H 'Authorization: Bearer ms_x'") and "no mail leaves" in see
    assert "RESEND_API_URL=http://localhost:8025 RESEND_API_KEY=ms_x" in library
    assert attrs.asdict(Settings().development)["domain"] == "mailsvc.example"


def test_the_greeting_of_a_server_without_dashboard_and_sandbox() -> None:
    text = greeting({"http": "http://localhost:8025", "api_key": "ms_x", "domain": "mailsvc.example", "smtp": {}})
    assert "dashboard" not in text and "sandbox" not in text and "SMTP" not in text
    assert "See what was sent:  curl http://localhost:8025/emails -H" in text


@pytest_twisted.ensureDeferred
async def test_it_waits_for_a_connection_to_the_database(
    pool: Pool, tmp_path: Path, output: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, found = welcome(pool, tmp_path / "dev.json"), [Unavailable("No database connection became free within 5 s.")]
    list_ = first.customers.accounts.list

    async def unavailable_once() -> Sequence[Account]:
        if found:
            raise found.pop()
        return await list_()

    monkeypatch.setattr(first.customers.accounts, "list", unavailable_once)
    monkeypatch.setattr("mailsvc.sandbox.welcome.PAUSE", 0.0)
    await first.begin()
    assert not found and "API key" in output.getvalue()
