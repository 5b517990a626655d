"""The words for an email with several recipients; domains in Unicode; times in a time zone."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from mailsvc.dashboard.formatting import clock, in_unicode, stamp, summary
from mailsvc.store.mail.search import Found


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ({"email.delivered": 2}, ("Opened", "good")),
        ({"email.delivered": 1, "email.complained": 1}, ("1 of 2 delivered, 1 complained", "bad")),
        ({"email.complained": 2}, ("Complained", "bad")),
    ],
)
def test_an_open_hides_no_complaint(outcomes: Mapping[str, int], expected: tuple[str, str]) -> None:
    assert summary(found(2, outcomes, "email.opened")) == expected


@pytest.mark.parametrize(
    ("recipients", "outcomes", "expected"),
    [
        (1, {}, ("Bounced", "bad")),  # goes by the latest event
        (3, {}, ("Bounced", "bad")),
        (6, {"email.delivered": 4, "email.complained": 1}, ("4 of 6 delivered, 1 complained", "bad")),
        (3, {"email.delivered": 3}, ("Delivered", "good")),
        (3, {"email.delivered": 2}, ("2 of 3 delivered", "info")),
        (4, {"email.delivered": 1, "email.delivery_delayed": 2, "email.bounced": 1}, ("1 of 4 delivered, 1 bounced, 2 deferred", "bad")),
        (2, {"email.suppressed": 2}, ("Suppressed", "bad")),
        (2, {"email.suppressed": 1, "email.sent": 1}, ("0 of 2 delivered, 1 suppressed, 1 sent", "bad")),
    ],
)
def test_badge(recipients: int, outcomes: Mapping[str, int], expected: tuple[str, str]) -> None:
    assert summary(found(recipients, outcomes, "email.bounced")) == expected


def found(recipients: int, outcomes: Mapping[str, int], last_event: str) -> Found:
    addresses = tuple(f"r{n}@example.org" for n in range(recipients))
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return Found(uuid.uuid4(), moment, "api", "a@example.org", addresses, "Hello", 1, last_event, uuid.uuid4(), None, outcomes)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("xn--bcher-kva.example", "bücher.example"),
        ("ann@xn--bcher-kva.example", "ann@bücher.example"),
        ("Ann <ann@mail.xn--bcher-kva.example>", "Ann <ann@mail.bücher.example>"),
        ("xn--bcher-kva@example.com", "xn--bcher-kva@example.com"),  # not a domain
        ("ann@xn--.example", "ann@xn--.example"),  # not valid
        ('"a..b"@xn--bcher-kva.example', "a..b@bücher.example"),
        ('"Doe, Ann" <".a"@docomo.example>', '"Doe, Ann" <.a@docomo.example>'),
        ('"a b"@docomo.example', '"a b"@docomo.example'),
        (r'"x\"..b"@docomo.example', r'"x\"..b"@docomo.example'),
        ('x "', 'x "'),
        ('"@', '"@'),
    ],
)
def test_domains_and_addresses_are_shown_as_people_write_them(text: str, expected: str) -> None:
    assert in_unicode(text) == expected


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        ("UTC", "2026-01-01 23:30:05 UTC"),
        ("Europe/Berlin", "2026-01-02 00:30:05 CET"),
        ("America/Sao_Paulo", "2026-01-01 20:30:05 UTC-03"),  # a zone without a name
        ("Asia/Kolkata", "2026-01-02 05:00:05 IST"),
    ],
)
def test_times_are_in_the_zone_of_the_reader(zone: str, expected: str) -> None:
    moment, now = datetime(2026, 1, 1, 23, 30, 5, 7000, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=ZoneInfo(zone))
    assert stamp(moment, now) == expected
    assert clock(moment, now) == f"{expected.split()[1]}.007"
