"""The admission decision: examples of each reason, and what holds for all facts."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.delivery.admission.decision import ADMITTED, Admission, Decision, EmailFacts, LaneFacts
from mailsvc.delivery.limits import DeliveryLimits

ADMISSION = Admission.of(DeliveryLimits(window=1000, emails=20, messages_per_connection=100))
EMAIL = EmailFacts(room=10, window=10, size=100, memory_left=100, emails=19)
LANE = LaneFacts(waiting=3, transactional=True, workers=1, dialing=1, allowed=5, provider_open=1, provider_limit=2, slots_left=1)
counts = st.integers(0, 6)
emails = st.builds(EmailFacts, size=counts, room=counts, window=counts, memory_left=counts, emails=st.integers(0, 40))
lanes = st.builds(
    LaneFacts, waiting=counts, workers=counts, dialing=counts, allowed=st.integers(1, 6), retry_in=st.floats(0, 300), provider_open=counts,
    provider_limit=st.none() | st.integers(1, 6), open_wait=st.floats(0, 60), slots_left=st.integers(-2, 6),
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "admitted"),
        ({"accepting": False}, "stopping"),
        ({"heartbeat": False}, "no heartbeat"),
        ({"held": True}, "held"),
        ({"backlog": True}, "backlog"),
        ({"room": 0}, "lane full"),
        ({"room": 5, "bulk": True}, "lane full"),
        ({"room": 6, "bulk": True}, "admitted"),
        ({"memory_left": 99}, "memory full"),
        ({"emails": 20}, "process full"),
    ],
)
def test_each_reservation_has_a_reason(changes: dict[str, Any], reason: str) -> None:
    decision = ADMISSION.reserve(attrs.evolve(EMAIL, **changes))
    assert (decision.reason, decision.admitted) == (reason, reason == "admitted")
    assert decision.full == reason.endswith("full")


@pytest.mark.parametrize(
    ("changes", "reason", "wait"),
    [
        ({}, "admitted", 0.0),
        ({"closing": True}, "stopping", None),
        ({"failing": True}, "destination fails", None),
        ({"waiting": 1}, "nothing waits", None),
        ({"workers": 5}, "destination limit", None),
        ({"refused": True}, "connection refused", None),
        ({"refused": True, "dialing": 0, "retry_in": 9.0}, "connection refused", 9.0),
        ({"refused": True, "dialing": 0}, "admitted", 0.0),
        ({"refused": True, "retry_in": 9.0, "workers": 0, "dialing": 0}, "admitted", 0.0),
        ({"provider_open": 2}, "provider limit", None),
        ({"open_wait": 1.5}, "provider rate", 1.5),
        ({"slots_left": 0}, "no slot", None),
    ],
)
def test_a_connection_that_is_not_opened_has_a_reason_and_a_time(changes: dict[str, Any], reason: str, wait: float | None) -> None:
    assert ADMISSION.connect(attrs.evolve(LANE, **changes)) == Decision(reason == "admitted", reason, wait)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "sent", "limit", "reason"),
    [
        ({}, 1, None, "admitted"),
        ({}, 100, None, "connection used up"),
        ({}, 10, 10, "connection used up"),
        ({"provider_open": 3}, 1, None, "provider limit"),
        ({"workers": 6}, 1, None, "destination limit"),
        ({"slot_wanted": True}, 1, None, "admitted"),
        ({"slot_wanted": True, "transactional": False}, 1, None, "others wait"),
    ],
)
def test_a_connection_that_is_not_kept_has_a_reason(changes: dict[str, Any], sent: int, limit: int | None, reason: str) -> None:
    assert ADMISSION.keep(attrs.evolve(LANE, **changes), True, sent, limit).reason == reason
    assert ADMISSION.keep(attrs.evolve(LANE, **changes), False, sent, limit).reason == "connection closed"


def test_replace_needs_waiting_mail_and_keeps_to_the_rate() -> None:
    assert ADMISSION.replace(LANE) == ADMITTED
    assert ADMISSION.replace(attrs.evolve(LANE, waiting=0)).reason == "nothing waits"
    assert ADMISSION.replace(attrs.evolve(LANE, closing=True)).reason == "stopping"
    assert ADMISSION.replace(attrs.evolve(LANE, open_wait=2.0)) == Decision(False, "provider rate", 2.0)


def test_send_waits_for_the_rate() -> None:
    assert ADMISSION.send(None, 100.0, 0.0) == ADMITTED
    assert ADMISSION.send(1.0, 5.0, 5.0) == ADMITTED
    assert ADMISSION.send(1.0, 5.0, 3.0) == Decision(False, "provider rate", 2.0)


def test_claimed_mail_may_exceed_the_window_once() -> None:
    def place(room: int, waiting: int, **changes: bool) -> str:
        return ADMISSION.place(**{"accepting": True, "held": False} | changes, room=room, window=10, waiting=waiting).reason

    assert [place(1, 50), place(0, 19), place(0, 20)] == ["admitted", "admitted", "lane full"]
    assert [place(1, 0, accepting=False), place(1, 0, held=True)] == ["stopping", "held"]


def test_rows_to_claim() -> None:
    admission = Admission(1000, 300, 100)
    assert [admission.rows(room=room, moves=False, emails=0) for room in (None, 0, 50, 500)] == [10, 0, 50, 200]
    assert admission.rows(room=None, moves=True, emails=0) == 200
    assert [admission.rows(room=500, moves=False, emails=emails) for emails in (250, 300, 400)] == [50, 0, 0]


def test_the_window_grows_once_a_destination_has_proven_itself() -> None:
    assert [ADMISSION.window(allowed, proven) for allowed, proven in ((2, False), (2, True), (90, True))] == [10, 100, 1000]


@given(emails)
def test_an_admitted_email_fits_everywhere(facts: EmailFacts) -> None:
    decision = ADMISSION.reserve(facts)
    if decision.admitted:
        assert facts.room >= 1 and facts.size <= facts.memory_left and facts.emails < ADMISSION.emails
        assert not facts.bulk or facts.room > facts.window // 2
    assert ADMISSION.reserve(attrs.evolve(facts, held=True)).admitted is False
    if not facts.bulk and not decision.admitted:
        assert not ADMISSION.reserve(attrs.evolve(facts, bulk=True)).admitted, "bulk mail never gets what transactional mail does not"


@given(lanes)
def test_no_limit_is_exceeded_by_an_admitted_connection(facts: LaneFacts) -> None:
    decision = ADMISSION.connect(facts)
    assert decision.wait is None or decision.wait >= 0
    if decision.admitted:
        assert facts.workers + 1 <= facts.allowed and facts.slots_left > 0 and facts.waiting > facts.dialing
        assert facts.provider_limit is None or facts.provider_open + 1 <= facts.provider_limit


@given(lanes)
def test_the_first_connection_of_a_lane_is_never_refused_for_its_health(facts: LaneFacts) -> None:
    first = attrs.evolve(facts, workers=0, dialing=0, waiting=1, closing=False, failing=False, provider_open=0, open_wait=0.0, slots_left=1)
    assert ADMISSION.connect(first) == ADMITTED


@given(lanes, st.booleans(), st.integers(0, 200), st.none() | st.integers(1, 50))
def test_a_connection_that_is_kept_is_within_all_limits(facts: LaneFacts, usable: bool, sent: int, limit: int | None) -> None:
    if ADMISSION.keep(facts, usable, sent, limit).admitted:
        assert usable and sent < ADMISSION.per_connection and (limit is None or sent < limit)
        assert facts.workers <= facts.allowed and (facts.provider_limit is None or facts.provider_open <= facts.provider_limit)
    if ADMISSION.replace(facts).admitted:
        assert facts.waiting and not facts.closing and facts.open_wait == 0
