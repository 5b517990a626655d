"""A next hop with CHUNKING: a Postfix that accepts and discards everything."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.postfix import Instance, missing
from tests.end_to_end.relay.test_relay_clients import needs
from tests.end_to_end.rig import Daemon, eventually, free_port, rows

_MAIN = """
myhostname = mx.example
default_transport = discard
smtpd_relay_restrictions = permit_mynetworks, reject
smtpd_recipient_restrictions = check_recipient_access inline:{unknown@example.net=REJECT}, permit
smtpd_peername_lookup = no
"""


@pytest.fixture
def postfix() -> Iterator[tuple[Instance, int]]:
    needs(missing())
    with tempfile.TemporaryDirectory(prefix="mailsvc-postfix-") as folder:
        port, instance = free_port(), Instance(Path(folder))
        instance.write(_MAIN, f"127.0.0.1:{port} inet n - n - - smtpd\n")
        instance.start()
        yield instance, port
        instance.stop()


def test_postfix_accepts_bdat(postfix: tuple[Instance, int], tmp_path: Path, database: str) -> None:
    """The first mail waits for the recipients' replies, a large one too, the others do not; a refused recipient is refused alone."""
    instance, port = postfix
    delivery = {"routes": {"*": f"smtp://127.0.0.1:{port}"}, "connections_initial": 1, "connections_max": 1}
    daemon = Daemon(tmp_path, database, {"delivery": delivery})
    daemon.start()
    try:
        me = f"me@{daemon.facts['domain']}"
        for number, size in enumerate((10, 4000, 300_000, 10)):
            to = ["bob@example.net"] if number < 3 else ["bob@example.net", "unknown@example.net"]
            mail = {"from": me, "to": to, "subject": f"{number}", "text": ".dot\n" + "x" * 70 + "\n" + ("y" * 70 + "\n") * (size // 71)}
            assert daemon.call("POST", "/emails", mail).status == 200
            found = eventually(lambda number=number: _attempts(database, number + 1))
        transcripts = [str(transcript) for (transcript,) in found]
    finally:
        daemon.stop()
    assert len(transcripts) == 4 and all("C: BDAT " in each and "C: DATA" not in each for each in transcripts)
    together = [each.index("C: BDAT ") < each.index("S: 250 2.1.0 Ok") for each in transcripts]
    assert together == [False, True, False, True]
    assert "S: 554 5.7.1 <unknown@example.net>" in transcripts[3]
    events = rows(database, "SELECT type, count(*)::int FROM events GROUP BY type")
    assert ("email.delivered", 4) in events and ("email.bounced", 1) in events
    assert "improper command pipelining" not in instance.log and "lost connection" not in instance.log


def _attempts(database: str, count: int) -> list[tuple[object, ...]]:
    found = rows(database, "SELECT transcript FROM attempts ORDER BY started_at")
    return found if len(found) == count else []
