"""One person's address goes through the product's interfaces into every place, is erased, and is nowhere: not in the database, its backup
after a restore, files or logs, in no encoding. A real daemon, the API, SMTP, the command, and a mail server that refuses and accepts.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.relay_rig import connect, daemon_with_relay
from tests.end_to_end.rig import Daemon, eventually, free_port, rows
from tests.end_to_end.sink import Sink
from tests.end_to_end.test_import import upload
from tests.end_to_end.test_restore import program, run
from tests.store.privacy.filling import leaks, traces

ZOE = "Zoe.Canary+1@person.example"
REFUSED = "zoe.canary+2@person.example"  # whose mail bounces
BOB = "bob@else.example"
SETTLED = "SELECT 1 WHERE NOT EXISTS (SELECT FROM queue WHERE status <> 'scheduled' AND address NOT LIKE '%%held%%')"


@pytest.fixture
def sink() -> Iterator[Sink]:
    """A mail server for one test."""
    sink = Sink(free_port())
    sink.start()
    yield sink
    sink.stop()


def fill(daemon: Daemon, sink: Sink, database: str) -> None:
    """Every interface that takes an address."""
    sink.refuse[REFUSED] = f"550 5.1.1 <{REFUSED}> does not exist"
    sink.refuse["later@person.example"] = f"451 4.3.0 ask {ZOE}"
    sender, post = f"a@{daemon.facts['domain']}", daemon.call

    def send(*to: str, status: int = 200, headers: dict[str, str] | None = None, **more: object) -> None:
        mail = {"from": f"Ann <{sender}>", "to": list(to), "subject": "Hello", "text": "Hello", **more}
        answer = post("POST", "/emails", mail, headers)
        assert answer.status == status, answer

    file = {"filename": f"{ZOE}.txt", "content": base64.b64encode(f"about {ZOE}".encode()).decode()}
    send(
        ZOE,
        subject=f"For {ZOE} ü",
        html=f"<p>Grüße an {ZOE}, und ein langer Satz, der umgebrochen wird.</p>",
        headers={"Idempotency-Key": ZOE},
    )
    send(f"Zoe Canary <{ZOE}>", BOB, cc=[ZOE.upper()], reply_to=[ZOE], attachments=[file], tags=[{"name": "who", "value": "zoe"}])
    send(BOB, text=f"Zoe wrote: {ZOE}", html=f"<a href='mailto:{ZOE}'>=?</a>", headers={"X-About": "x"}, bcc=[ZOE])
    send(REFUSED, subject=f"To {REFUSED}")
    send("later@person.example")
    send(ZOE, scheduled_at="in 1 hour")
    send(ZOE.replace("@", " at "), status=422)
    post("POST", "/emails/batch", [{"from": sender, "to": ZOE, "subject": "x", "text": ZOE}], {"Idempotency-Key": f"batch {ZOE}"})

    client = connect(daemon)
    client.sendmail(
        sender,
        [ZOE],
        f"From: {sender}\r\nTo: Zoe <{ZOE}>\r\nSubject: SMTP\r\n\r\nHi {ZOE}\r\n",
        (),
        [f"ORCPT=rfc822;{ZOE.replace('+', '+2B')}"],
    )
    client.docmd(f"MAIL FROM:<{ZOE}>")  # refused: not a domain of the account
    client.quit()

    segment = post("POST", "/segments", {"name": f"friends of {ZOE}"}).body["id"]
    topic = post("POST", "/topics", {"name": "News", "default_subscription": "opt_in", "description": f"ask {ZOE}"}).body["id"]
    post("POST", "/contact-properties", {"key": "note", "type": "string"})
    contact = {"email": ZOE, "first_name": "Zoe", "last_name": "Canary", "segments": [{"id": segment}], "properties": {"note": ZOE}}
    assert post("POST", "/contacts", contact).status == 201
    path = f"/contacts/{ZOE.replace('+', '%2B').replace('@', '%40')}"
    assert post("GET", path).status == 200
    assert post("PATCH", path, {"unsubscribed": False, "last_name": "Canari"}).status == 200
    post("PATCH", f"{path}/topics", [{"id": topic, "subscription": "opt_out"}])
    upload(daemon, f"email,first_name\n{REFUSED},Zoe\nnot {ZOE},x\n".encode(), on_conflict="upsert")
    content = {
        "segment_id": segment,
        "from": sender,
        "subject": "Hi {{{FIRST_NAME}}}",
        "text": "Hi {{{EMAIL}}}, {{{contact.note}}}",
        "send": True,
    }
    assert post("POST", "/broadcasts", {**content, "name": f"for {ZOE}"}).status == 201
    post("POST", "/suppressions", {"email": "other@else.example"})  # somebody else
    post("POST", "/api-keys", {"name": f"key of {ZOE}"})
    post("POST", "/webhooks", {"endpoint": "https://example.com/hook", "events": ["email.sent", "contact.created"]})
    account = str(rows(database, "SELECT id FROM accounts")[0][0])
    for address in ("boss@else.example", ZOE):
        daemon.command("member", "add", address, "--account", account)
    daemon.command("account", "notify", account, ZOE)
    eventually(lambda: rows(database, "SELECT 1 FROM suppressions WHERE address = %s", REFUSED))
    eventually(lambda: rows(database, "SELECT 1 FROM broadcasts WHERE status = 'sent'"))
    eventually(lambda: rows(database, "SELECT 1 FROM contact_imports WHERE status = 'completed'"))
    eventually(lambda: rows(database, SETTLED.replace("status <> 'scheduled'", "status = 'queued'")))
    eventually(lambda: rows(database, "SELECT 1 FROM request_log WHERE path LIKE '/contacts/%%'"))
    eventually(lambda: rows(database, "SELECT 1 FROM receipts"))


def in_files(folder: Path, *without: str) -> list[tuple[str, bytes]]:
    """Files of the daemon, its log among them, that have the address."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in without]
    assert {path.name for path in files} >= {"daemon.log", "erasures"}
    wanted = traces(ZOE) + traces(REFUSED)
    return [(path.name, trace) for path in files for trace in wanted if trace in path.read_bytes()]


def erase(daemon: Daemon, address: str) -> dict[str, object]:
    done = json.loads(daemon.command("privacy", "erase", address, "--yes"))
    assert done["state"] == "finished", done
    return dict(done)


@pytest.mark.slow
def test_an_erased_person_is_nowhere(tmp_path: Path, database: str, second_database: str, sink: Sink) -> None:
    daemon = daemon_with_relay(tmp_path, database, sink.port)
    daemon.changes = {**daemon.changes, "privacy": {"journal": str(tmp_path / "erasures")}}
    daemon.start()
    fill(daemon, sink, database)
    tables = {table.rstrip("0123456789").rstrip("_") for table, _ in leaks(database, ZOE)}
    expected = "accounts api_keys attempts audit_details broadcasts contact_import_errors contacts consents emails events idempotency links"
    expected += " messages queue receipts request_log segments topics users"
    assert tables >= set(expected.split()), sorted(set(expected.split()) - tables)
    found = json.loads(daemon.command("privacy", "find", ZOE, "--json"))["counts"]
    assert tables - {"contacts", "users"} <= {place.partition(".")[0] for place in found}
    dump = tmp_path / "yesterday.dump"
    run(program("pg_dump", database), "--format=custom", f"--file={dump}", database)

    first, second = erase(daemon, ZOE), erase(daemon, REFUSED)
    assert "waiting" not in first or not first["waiting"]
    for address in (ZOE, REFUSED):
        assert leaks(database, address) == []
    assert rows(database, "SELECT origin FROM erased_suppressions") == [("bounce",)]
    assert rows(database, "SELECT address FROM suppressions") == [("other@else.example",)]
    answer = daemon.call("POST", "/emails", {"from": f"a@{daemon.facts['domain']}", "to": REFUSED, "subject": "Again", "text": "Again"})
    daemon.until(f"/emails/{answer.body['id']}", daemon.facts["api_key"], lambda body: body["last_event"] == "suppressed")
    assert erase(daemon, REFUSED)["erased"]
    assert daemon.command("audit", "verify")
    begun = daemon.call("POST", "/privacy/erasures", {"email": BOB}).body["id"]  # the daemon does it
    daemon.until(f"/privacy/erasures/{begun}", daemon.facts["api_key"], lambda body: body["state"] == "finished", 60)
    assert leaks(database, BOB) == []
    assert in_files(tmp_path, dump.name) == []
    assert daemon.stop() == 0

    run(program("pg_restore", database), f"--dbname={second_database}", "--no-owner", str(dump))
    assert leaks(second_database, ZOE)
    daemon.database = second_database
    daemon.start(180)
    try:
        for address in (ZOE, REFUSED):
            assert leaks(second_database, address) == []
        finished = rows(second_database, "SELECT id::text, origin FROM erasures WHERE finished_at IS NOT NULL")
        assert {(str(first["id"]), "journal"), (str(second["id"]), "journal")} <= set(finished)
        assert in_files(tmp_path, dump.name) == []
    finally:
        daemon.stop()
