"""Zones that are made to harm: endless, huge, unreadable or slow answers."""

from __future__ import annotations

import time
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred

from mailsvc.domains.checking import RECORD_SECONDS
from mailsvc.domains.records import quoted
from mailsvc.store.domains.values import RecordState
from tests.domains.rig import Rig

SEND = "send.example.com"


@pytest.mark.parametrize("tag", [r"\000=1", r"x=\000\255"])
@pytest_twisted.ensureDeferred
async def test_any_bytes_can_be_stored_and_shown(rig: Rig, tag: str) -> None:
    domain = await rig.add()
    rsa = await rig.record(domain, "DKIM", contains="r")
    rig.set(rsa.name, "TXT", r'"v=DKIM1; \000\255\n; p=\000"')
    rig.set(SEND, "TXT", r'"v=spf1 \000\200 ~all"')
    rig.set("_dmarc.example.com", "TXT", f'"v=DMARC1; p=none; {tag}"')
    domain = await rig.verified(domain)
    assert domain.status == "pending" and domain.checked_at is not None
    shown = [text for state in (*domain.records, *domain.advice) for text in (*state.found, state.expected, state.message or "")]
    assert not any("\x00" in text for text in shown) and any("\ufffd" in text for text in shown)


@pytest_twisted.ensureDeferred
async def test_only_a_little_of_a_huge_answer_is_stored(rig: Rig) -> None:
    domain = await rig.add()
    rig.set(SEND, "TXT", *(quoted(f"v=spf1 x{n} " + "y" * 900) for n in range(50)))
    rig.set(SEND, "MX", *(f"{n} mx{n}.example.com." for n in range(500)))
    domain = await rig.verified(domain)
    assert all(len(r.found) <= 20 and len(r.message or "") <= 2000 for r in domain.records)
    assert max(len(str(data)) for _, data in await rig.events()) < 60_000


@pytest.mark.parametrize(
    "text",
    [
        "v=spf1 " + "a:%{s}%{i}%{d}" * 3000,
        "v=spf1 exists:" + "a." * 30000,
        "v=spf1 " + "ip4:192.0.2.1 " * 4000,
        "v=spf1 a" + "/" * 60000,
        "v=spf1" + " " * 60000 + "-all",
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_malicious_record_is_parsed_quickly(rig: Rig, text: str) -> None:
    domain = await rig.add()
    rig.set(SEND, "TXT", quoted(text[:60_000]))
    began = time.process_time()
    assert set(await rig.problems(domain)) == {("SPF", "TXT")}
    assert time.process_time() - began < 2


@pytest_twisted.ensureDeferred
async def test_a_slow_zone_cannot_exceed_the_time_limit(rig: Rig) -> None:
    domain = await rig.add()
    keys = await rig.domains.published_keys(domain.id)

    class Silence:
        async def query(self, name: str, kind: str, account: object = None) -> Any:
            await Deferred()

        async def txt(self, name: str) -> Any:
            await Deferred()

    silence: Any = Silence()
    rig.checker.authorities = rig.checker.resolver = silence
    findings: list[Any] = []
    Deferred.fromCoroutine(rig.checker.check(domain, keys)).addCallback(findings.append)
    rig.clock.advance(RECORD_SECONDS - 1)
    assert findings == []
    rig.clock.advance(1)
    assert {r.problem for r in (*findings[0].records, *findings[0].advice)} == {"unanswered"}


def test_found_values_are_sanitized() -> None:
    state = RecordState("SPF", "TXT", "n", "e", True, "pending", ["a\x00b\u2028\ud800"] * 30, "w\x1b", None, "t" * 3000)  # type: ignore[arg-type]
    assert state.found == ("a\ufffdb\ufffd\ufffd",) * 20
    assert (state.where, len(state.message or "")) == ("w\ufffd", 2000)
