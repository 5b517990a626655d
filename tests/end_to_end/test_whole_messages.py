"""Messages of all sizes arrive as they were accepted, however they come to their attempt: at once, from the queue one by one or many
together, or again after a refusal; from memory, from one row or from several; compressed and encrypted, or neither.
"""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from pathlib import Path

import pytest

from tests.end_to_end.relay_rig import connect, daemon_with_relay
from tests.end_to_end.rig import Daemon, eventually, rows
from tests.end_to_end.sink import Received, Sink
from tests.end_to_end.test_erasure import sink  # noqa: F401

# Bytes, around the sizes at which messages are stored, claimed or passed on in another way.
SIZES = (0, 300, 5_000, 47_000, 63_000, 66_000, 180_000, 260_000, 520_000, 700_000, 1_100_000, 2_500_000)
REFUSED = "451 4.3.0 Not now"


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "secured"), [(1, False), (1, True), (2, True)])
def test_messages_of_all_sizes_arrive_whole(tmp_path: Path, database: str, sink: Sink, processes: int, secured: bool) -> None:  # noqa: F811
    daemons = installation(tmp_path, database, sink.port, processes, secured)
    for daemon in daemons:
        daemon.start()
    try:
        first = daemons[0]
        [(account,)] = rows(database, "SELECT account_id FROM domains WHERE name = %s", first.facts["domain"])
        if secured:
            first.command("account", "encrypt", str(account))
        sent = dict([*at_once(first), *scheduled(first, sink), *after_a_refusal(first, sink), *after_a_pause(first, str(account))])
        sink.wait_until(lambda mails: len({mail.recipients for mail in mails}) == len(sent), 120)
        arrived = {mail.recipients[0]: attached(mail) for mail in sink.received}
        assert [address for address in sent if arrived[address] != sent[address]] == []
    finally:
        assert [daemon.stop() for daemon in daemons] == [0] * processes


def installation(folder: Path, database: str, port: int, processes: int, secured: bool) -> list[Daemon]:
    """One process that does everything; or one that accepts, and another that delivers."""
    both: dict[str, Mapping[str, object]] = {
        "delivery": {"routes": {"*": f"smtp://127.0.0.1:{port}"}, "retry": [1], "greylist_seconds": 1},
        "database": {"compress": secured},
        "secrets": {"key_file": str(folder / "secret.key"), **({"body_keys": str(folder / "body-keys")} if secured else {})},
    }
    first = daemon_with_relay(folder, database, port)
    first.changes = {**first.changes, **both}
    if processes == 1:
        return [first]
    first.changes = {**first.changes, "": {"roles": ["http", "smtp", "ledger", "webhooks", "domains"]}}
    (folder / "second").mkdir()
    return [first, Daemon(folder / "second", database, {**both, "": {"roles": ["delivery"]}})]


# The ways: each address with what it has to get.


def at_once(daemon: Daemon) -> Iterator[tuple[str, bytes]]:
    yield from accepted(daemon, "now.example")


def scheduled(daemon: Daemon, sink: Sink) -> Iterator[tuple[str, bytes]]:  # noqa: F811
    """Each when the one before it has arrived, so that it is the only one to be claimed."""
    for size in SIZES:
        address, at = f"{size}@scheduled.example", datetime.now(UTC) + timedelta(seconds=1)
        data = random.Random(address).randbytes(size)
        over_http(daemon, address, data, scheduled_at=at.isoformat())
        sink.wait_until(lambda mails, to=address: any(to in mail.recipients for mail in mails), 60)  # type: ignore[misc]
        yield address, data


def after_a_refusal(daemon: Daemon, sink: Sink) -> Iterator[tuple[str, bytes]]:  # noqa: F811
    sink.refuse = {f"{send.__name__}-{size}@refused.example": REFUSED for size in SIZES for send in (over_http, over_smtp)}
    yield from accepted(daemon, "refused.example")
    tried = "SELECT 1 FROM queue WHERE attempts > 0 AND address LIKE '%%@refused.example' HAVING count(*) = %s"
    eventually(lambda: rows(daemon.database, tried, len(sink.refuse)))
    sink.refuse = {}


def after_a_pause(daemon: Daemon, account: str) -> Iterator[tuple[str, bytes]]:
    daemon.command("queue", "pause", "--account", account)
    time.sleep(1.2)  # processes look every second
    yield from accepted(daemon, "paused.example")
    daemon.command("queue", "resume", "--account", account)


def accepted(daemon: Daemon, domain: str) -> Iterator[tuple[str, bytes]]:
    for send in (over_http, over_smtp):
        for size in SIZES:
            address = f"{send.__name__}-{size}@{domain}"
            data = random.Random(address).randbytes(size)
            send(daemon, address, data)
            yield address, data


def over_http(daemon: Daemon, to: str, data: bytes, **more: object) -> None:
    file = {"filename": "data.bin", "content": base64.b64encode(data).decode()}
    mail = {"from": f"a@{daemon.facts['domain']}", "to": to, "subject": "Whole", "text": "See the file.", "attachments": [file], **more}
    answer = daemon.call("POST", "/emails", mail)
    assert answer.status == 200, answer


def over_smtp(daemon: Daemon, to: str, data: bytes) -> None:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = f"a@{daemon.facts['domain']}", to, "Whole"
    mail.set_content("See the file.")
    mail.add_attachment(data, "application", "octet-stream", filename="data.bin")
    with connect(daemon) as session:
        session.send_message(mail)


def attached(mail: Received) -> bytes:
    content = next(mail.message.iter_attachments()).get_payload(decode=True)
    assert isinstance(content, bytes)
    return content
