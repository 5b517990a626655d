"""What servers may do to us, from the connection to the dot, and what their recipients and destinations show then."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_twisted

from mailsvc.outcome import Bounced, Delivered, Uncertain
from mailsvc.outcome import Deferred as Later
from tests.delivery.test_loopback import Site, named, script

_NO_SENDER = {"RCPT": "503 5.5.1 MAIL first", "DATA": "503 5.5.1 MAIL first"}

# what the server says instead → the outcome, and a part of its reason
VECTORS: dict[str, tuple[dict[str, str], type, str]] = {
    "no greeting, a close": ({"greeting": "drop"}, Later, "gave no session"),
    "greeting 554": ({"greeting": "554 5.7.1 go away"}, Later, "answered 554"),
    "greeting 421": ({"greeting": "421 4.3.2 later"}, Later, "answered 421"),
    "greeting of five lines": ({"greeting": "220-a\r\n220-b\r\n220-c\r\n220-d\r\n220 e"}, Delivered, ""),
    "greeting of one endless line": ({"greeting": "220 " + "x" * 1_000_000}, Later, "gave no session"),
    "two codes in one greeting": ({"greeting": "220-a\r\n554 b"}, Later, "gave no session"),
    "a four-digit code": ({"greeting": "2200 mx"}, Later, "gave no session"),
    "no greeting but nonsense": ({"greeting": "SSH-2.0-OpenSSH"}, Later, "gave no session"),
    "a greeting in eight bits": ({"greeting": "220 mäil"}, Delivered, ""),
    "no EHLO": ({"EHLO": "502 5.5.1 what", "HELO": "250 mx"}, Delivered, ""),
    "endless offers": ({"EHLO": "\r\n".join(["250-X"] * 5000)}, Later, "gave no session"),
    "STARTTLS refused": ({"EHLO": "250-mx\r\n250 STARTTLS", "STARTTLS": "454 4.7.0 not now"}, Delivered, ""),
    "MAIL refused for good": ({"MAIL": "550 5.7.1 not from you", **_NO_SENDER}, Bounced, "5.7.1"),
    "MAIL refused for now": ({"MAIL": "451 4.3.0 later", **_NO_SENDER}, Later, "451"),
    "552 to RCPT": ({"RCPT": "552 5.5.3 too many"}, Later, "552"),
    "450 to RCPT": ({"RCPT": "450 4.2.1 greylisted"}, Later, "450"),
    "250 to DATA": ({"DATA": "250 done"}, Later, ""),
    "421 to DATA": ({"DATA": "421 4.3.2 closing"}, Later, "421"),
    "550 to the dot": ({"dot": "550 5.7.1 spam"}, Bounced, "5.7.1"),
    "451 to the dot": ({"dot": "451 4.7.1 later"}, Later, "451"),
    "421 to the dot": ({"dot": "421 4.3.2 closing"}, Later, "421"),
    "a close after the dot": ({"dot": "drop"}, Uncertain, "may or may not"),
    "a message larger than it takes": ({"EHLO": "250-mx\r\n250 SIZE 10"}, Bounced, ""),
}


@pytest.mark.parametrize("name", VECTORS)
@pytest_twisted.ensureDeferred
async def test_a_server_that(name: str) -> None:
    said, kind, part = VECTORS[name]
    site = Site()
    site.listen("127.0.0.1", script(**said))
    site.dns.zones = named((10, "mx1", "127.0.0.1"))
    site.store.add(1, "bob@example.com")
    await site.start()
    await site.until(lambda: site.store.outcomes)
    outcome: Any = site.store.last(1)
    assert isinstance(outcome, kind), outcome
    assert part in (getattr(outcome, "reason", "") or getattr(outcome, "reply", ""))
    waits = isinstance(outcome, Later | Uncertain)
    assert bool(site.store.rows) == waits
    if waits:
        assert outcome.next_at > site.store.now
    await site.stop()


@pytest.mark.parametrize("name", ["no greeting, a close", "greeting 554", "greeting 421", "two codes in one greeting"])
@pytest_twisted.ensureDeferred
async def test_the_next_exchanger_is_tried_after(name: str) -> None:
    site = Site()
    site.listen("127.0.0.1", script(**VECTORS[name][0]))
    site.listen("127.0.0.2", script())
    site.dns.zones = named((10, "mx1", "127.0.0.1"), (20, "mx2", "127.0.0.2"))
    site.store.add(1, "bob@example.com")
    await site.start()
    await site.until(lambda: site.store.outcomes)
    assert isinstance(site.store.last(1), Delivered)
    await site.stop()
