"""An account moves from one installation to another, which gives the same answers; then it is closed where it was. Real daemons, the API,
SMTP, the command.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.relay_rig import daemon_with_relay
from tests.end_to_end.rig import Daemon, rows
from tests.end_to_end.sink import Sink
from tests.end_to_end.test_erasure import fill, sink  # noqa: F401

PATHS = (
    "/emails", "/domains", "/webhooks", "/contacts", "/segments", "/topics", "/contact-properties", "/broadcasts",
    "/suppressions", "/event-log", "/contacts/imports",
)  # fmt: skip


@pytest.fixture
def elsewhere(create_database: Callable[[str], str]) -> str:
    """The database of another installation."""
    return create_database("elsewhere")


def answers(daemon: Daemon, key: str) -> dict[str, Any]:
    """What the API says of everything that it lists, and of each email and domain."""
    found = {}
    paths = list(PATHS)
    while paths:
        path = paths.pop()
        answer = daemon.call("GET", path, key=key)
        assert answer.status == 200, (path, answer)
        found[path] = answer.body
        if path in ("/emails", "/domains", "/broadcasts"):
            paths += [f"{path}/{each['id']}" for each in answer.body["data"]]
    return found


def without(value: Any, queued: list[str]) -> Any:
    """An answer without emails that stay where they are queued, and without the advised records, which name the installation."""
    if isinstance(value, dict):
        return {name: without(each, queued) for name, each in value.items() if name != "advice"}
    if isinstance(value, list):
        return [without(each, queued) for each in value if not any(id_ in json.dumps(each) for id_ in queued)]
    return value


@contextmanager
def running(daemon: Daemon) -> Iterator[None]:
    daemon.start()
    try:
        yield
    except BaseException:
        daemon.kill()
        raise
    daemon.stop()


@pytest.mark.slow
def test_an_account_moves(tmp_path: Path, database: str, elsewhere: str, sink: Sink) -> None:  # noqa: F811
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    here, there = daemon_with_relay(tmp_path / "here", database, sink.port), daemon_with_relay(tmp_path / "there", elsewhere, sink.port)
    archive, secret = str(tmp_path / "account.zip"), tmp_path / "account.key"
    with running(here):
        fill(here, sink, database)
        key, account = here.facts["api_key"], str(rows(database, "SELECT id FROM accounts")[0][0])
        before = answers(here, key)
        command = ("account", "export", account, "--output", archive, "--key", str(secret))
        assert "are queued" in here.command_fails(*command)[1]
        assert "for which you need an open access" in here.command_fails(*command, "--without-queued")[1]
        here.command("account", "access", account, "--reason", "They move.")
        [(sent,)] = rows(database, "SELECT email_id::text FROM emails WHERE broadcast_id IS NOT NULL LIMIT 1")
        assert "Subject: Hi Zoe" in here.command("email", "show", sent)  # it is not stored, but composed
        here.command(*command, "--without-queued")
        assert secret.stat().st_mode & 0o077 == 0
        there.write()
        assert "rows were imported" in there.command("account", "import", archive, "--key", str(secret))
        with running(there):
            expect_the_same(before, answers(there, key))
            mail = {"from": f"a@{here.facts['domain']}", "to": "new@else.example", "subject": "x", "text": "y"}
            sent = there.call("POST", "/emails", mail, key=key)
            # It is signed with the DKIM key that came along.
            there.until(f"/emails/{sent.body['id']}", key, lambda body: body["last_event"] == "delivered")
            assert there.command("audit", "verify")
        assert '"state": "finished"' in here.command("account", "close", account, "--days", "0", "--yes")
        assert here.call("GET", "/emails", key=key).status in (401, 403)
        assert rows(database, "SELECT 1 FROM emails WHERE account_id = %s", account) == []
        assert here.command("audit", "verify")  # the lines are still there


def expect_the_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Besides emails that were queued."""
    moved = {each["id"] for each in after["/emails"]["data"]}
    queued = [each["id"] for each in before["/emails"]["data"] if each["id"] not in moved]
    assert len(queued) == 2
    for path, body in before.items():
        if path.removeprefix("/emails/") not in queued:
            here, there = without(body, queued), without(after[path], queued)
            if path == "/event-log":  # more can have happened before the export
                there["data"] = there["data"][: len(here["data"])]
            assert here == there, path
