"""Messages of an account are encrypted with a key of its own: accepted by API and SMTP, delivered with their signature, after a kill too,
shown by the API, moved to another installation, and unreadable for ever once the account is closed. Real daemons and commands.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from mailsvc.http.problem import UNREADABLE
from tests.end_to_end.relay.test_tracked_mail import is_signed
from tests.end_to_end.relay_rig import connect, daemon_with_relay, email_id
from tests.end_to_end.rig import Daemon, eventually, rows
from tests.end_to_end.sink import Sink
from tests.end_to_end.test_account_data import elsewhere, running  # noqa: F401
from tests.end_to_end.test_erasure import sink  # noqa: F401
from tests.end_to_end.test_restore import program, run

CANARY = "canary-51c7"
PIECES = "SELECT count(*), bool_or(position(%s in bytes) > 0) FROM messages WHERE email_id IN (%s, %s)"
ENCRYPTED = "SELECT encrypted FROM emails WHERE email_id = %s"


def prepared(folder: Path, database: str, sink: Sink) -> Daemon:  # noqa: F811
    folder.mkdir()
    daemon = daemon_with_relay(folder, database, sink.port)
    daemon.changes = {**daemon.changes, "secrets": {"body_keys": str(folder / "body-keys")}}
    return daemon


def send(daemon: Daemon, to: str, status: int = 200, **more: object) -> Any:
    mail = {"from": f"a@{daemon.facts['domain']}", "to": to, "subject": "Hello", "text": f"{CANARY} for {to}", **more}
    answer = daemon.call("POST", "/emails", mail)
    assert answer.status == status, answer
    return answer.body


def switched_on(daemon: Daemon, database: str) -> str:
    """The account, whose new messages are encrypted: processes notice it within two seconds."""
    [(account,)] = rows(database, "SELECT account_id FROM domains WHERE name = %s", daemon.facts["domain"])
    said = daemon.command("account", "encrypt", str(account))
    assert "are encrypted" in said and "The API request log has no contents" in said and str(account) in said
    assert "requests  on" in daemon.command("account", "minimize", str(account))
    assert "are encrypted" in daemon.command_fails("account", "minimize", str(account), "--off", "requests")[1]
    warm = lambda: rows(database, ENCRYPTED, send(daemon, "warm@else.example")["id"])[0][0]  # noqa: E731
    eventually(lambda: [(True,)] if warm() else [])
    return str(account)


@pytest.mark.slow
def test_it_is_delivered_and_shown_and_survives_a_kill_and_a_lost_key(tmp_path: Path, database: str, sink: Sink) -> None:  # noqa: F811
    daemon = prepared(tmp_path / "here", database, sink)
    file = base64.b64encode(CANARY.encode() * 120_000).decode()
    with running(daemon):
        account = switched_on(daemon, database)
        sent = send(daemon, "large@else.example", attachments=[{"filename": "a.txt", "content": file}])["id"]
        client = connect(daemon)
        client.mail(f"a@{daemon.facts['domain']}")
        client.rcpt("smtp@else.example")
        submitted = email_id(client.data(f"From: a@{daemon.facts['domain']}\r\nSubject: SMTP\r\n\r\n{CANARY} by SMTP\r\n")[1])
        client.quit()
        for to in ("large@else.example", "smtp@else.example"):
            mail = arrived(sink, to)
            assert is_signed(daemon, mail)
        assert CANARY.encode() in arrived(sink, "smtp@else.example").raw
        assert arrived(sink, "large@else.example").message.get_body().get_content().strip() == f"{CANARY} for large@else.example"  # type: ignore[union-attr]
        shown = daemon.until(f"/emails/{sent}", daemon.facts["api_key"], lambda body: body["last_event"] == "delivered")
        assert shown["text"].strip() == f"{CANARY} for large@else.example"
        assert CANARY in daemon.call("GET", f"/emails/{submitted}").body["text"]
        daemon.command("account", "access", account, "--reason", "Ticket 7.")
        assert f"{CANARY} by SMTP" in daemon.command("email", "show", submitted)
        kept = rows(database, PIECES, CANARY.encode(), sent, submitted)
        assert kept == [(kept[0][0], False)] and kept[0][0] > 3

        daemon.command("queue", "hold", "--reason", "Held.")
        held = send(daemon, "killed@else.example", text=f"{CANARY} survives")["id"]
        later = send(daemon, "later@else.example", scheduled_at="in 1 hour")["id"]
        daemon.kill()
        daemon.start()
        daemon.command("queue", "release")
        assert is_signed(daemon, arrived(sink, "killed@else.example"))
        assert daemon.call("POST", f"/emails/{later}/cancel").status == 200

        daemon.command("queue", "hold", "--reason", "Held.")
        lost = send(daemon, "lost@else.example")["id"]
        key = tmp_path / "here" / "body-keys" / account
        secret = key.read_bytes()
        daemon.kill()
        key.unlink()
        daemon.start()
        daemon.command("queue", "release")
        eventually(lambda: rows(database, "SELECT 1 FROM queue WHERE email_id = %s AND reason LIKE '%%its content is encrypted%%'", lost))
        assert daemon.call("GET", f"/emails/{held}").body == {"statusCode": 503, "name": "service_unavailable", "message": UNREADABLE}
        assert daemon.call("GET", "/emails").status == 200
        assert "does not exist" in daemon.command_fails("email", "show", held)[1]
        send(daemon, "refused@else.example", status=503)
        assert str(key) in daemon.log and "cannot be sent at the moment" not in daemon.log
        key.write_bytes(secret)
        assert is_signed(daemon, arrived(sink, "lost@else.example"))
        assert rows(database, "SELECT 1 FROM request_log WHERE strpos(request_body || coalesce(response_body, ''), %s) > 0", CANARY) == []
        assert rows(database, "SELECT 1 FROM request_log WHERE path = '/emails' AND request_body IS NULL LIMIT 1") == [(1,)]
        assert CANARY in daemon.call("GET", f"/emails/{held}").body["text"]


def arrived(sink: Sink, to: str) -> Any:  # noqa: F811
    def found(mails: list[Any]) -> list[Any]:
        return [mail for mail in mails if to in mail.recipients]

    sink.wait_until(lambda mails: bool(found(mails)), 60)
    return found(sink.received)[0]


@pytest.mark.slow
def test_it_moves_with_its_account_and_is_unreadable_once_that_is_closed(
    tmp_path: Path,
    database: str,
    elsewhere: str,  # noqa: F811
    second_database: str,
    sink: Sink,  # noqa: F811
) -> None:
    here, there = prepared(tmp_path / "here", database, sink), prepared(tmp_path / "there", elsewhere, sink)
    archive, secret, dump = str(tmp_path / "account.zip"), tmp_path / "account.key", tmp_path / "mailsvc.dump"
    with running(here):
        account, key = switched_on(here, database), here.facts["api_key"]
        sent = send(here, "move@else.example")["id"]
        before = here.until(f"/emails/{sent}", key, lambda body: body["last_event"] == "delivered")
        eventually(lambda: [(1,)] if not rows(database, "SELECT 1 FROM queue") else [])
        run(program("pg_dump", database), "--format=custom", f"--file={dump}", database)
        plain = tmp_path / "messages.sql"
        run(program("pg_dump", database), "--table=messages*", f"--file={plain}", database)
        assert f"{CANARY} for move".encode().hex() not in plain.read_text() and len(plain.read_text()) > 2000
        here.command("account", "access", account, "--reason", "They move.")
        here.command("account", "export", account, "--output", archive, "--key", str(secret))
        there.write()
        assert "rows were imported" in there.command("account", "import", archive, "--key", str(secret))
        with running(there):
            after = there.call("GET", f"/emails/{sent}", key=key).body
            assert after["text"] == before["text"] and CANARY in after["text"]
        file = tmp_path / "here" / "body-keys" / account
        assert file.read_bytes() != (tmp_path / "there" / "body-keys" / account).read_bytes()
        assert '"state": "finished"' in here.command("account", "close", account, "--days", "0", "--yes")
        assert not file.exists()
    run(program("pg_restore", database), f"--dbname={second_database}", "--no-owner", str(dump))
    here.database = second_database  # a backup that was made before, with all encryption keys of the installation
    with running(here):
        assert here.call("GET", "/emails", key=key).status == 200
        answer = here.call("GET", f"/emails/{sent}", key=key)
        assert (answer.status, answer.body["message"]) == (503, UNREADABLE)
        found = json.loads(here.command("privacy", "find", "move@else.example", "--json"))
        assert CANARY not in json.dumps(found)
