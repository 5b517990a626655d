"""Reading plans, and their periods."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import pytest

from mailsvc.settings import plans
from mailsvc.settings.plans import Exhausted, Plan, Plans, begins, ends
from mailsvc.settings.reader import SettingsError

NOW = datetime(2026, 12, 31, 23, 30, tzinfo=UTC)


def test_the_built_in_plans_include_one_without_a_price() -> None:
    known = plans.load(Plans())
    found = [(plan.emails, plan.price) for plan in known.values()]
    assert found == [
        (3_000, 0), (50_000, 20), (100_000, 35), (200_000, 160), (500_000, 350), (1_000_000, 650), (1_500_000, None), (2_500_000, 1050),
    ]  # fmt: skip
    assert known["1500k"].stated == (825, 1250)
    assert known["free"].limits == {"day": 100, "month": 3000} and known["50k"].limits == {"month": 50_000}


def test_periods_are_calendar_days_and_months_in_utc() -> None:
    assert (begins("day", NOW), begins("month", NOW)) == (date(2026, 12, 31), date(2026, 12, 1))
    assert ends("day", NOW) == ends("month", NOW) == datetime(2027, 1, 1, tzinfo=UTC)
    east = NOW.astimezone(timezone(timedelta(hours=5)))
    assert begins("day", east) == date(2026, 12, 31)
    assert ends("month", datetime(2027, 2, 28, tzinfo=UTC)) == datetime(2027, 3, 1, tzinfo=UTC)


def test_the_quota_message_begins_with_the_documented_sentence() -> None:
    message = Exhausted("month", 3, 9, 10, ends("month", NOW)).message
    assert message.startswith(
        "You have exceeded your monthly email sending quota. This request has 3 recipients, but only 1 of 10 are left"
    )


def test_a_request_that_never_fits_is_told_so() -> None:
    found = Exhausted("day", 60, 10, 50, ends("day", NOW))
    assert found.too_large
    assert found.message == "This request has 60 recipients, but your quota allows 50 in a day. Split it into several requests."
    assert not Exhausted("day", 50, 10, 50, ends("day", NOW)).too_large
    assert not Exhausted("day", 60, 10, 50, ends("day", NOW), ramp=True).too_large, "a new account's quota grows"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\nemails = 0", "The plan a has an invalid or missing `emails`"),
        ("[a]\nemails = true", "has an invalid or missing `emails`"),
        ("[a]\nprice = 5", "has an invalid or missing `emails`"),
        ("[a]\nemails = 5\ndaily = 0.5", "has an invalid or missing `daily`"),
        ("[a]\nemails = 5\ncontacts = 0", "has an invalid or missing `contacts`"),
        ("[a]\nemails = 5\nprice = 'much'", "an invalid price"),
        ("[a]\nemails = 5\nstated = [1, -2]", "an invalid price"),
        ("[a]\nemail = 5", "must be a table with the keys contacts, daily, emails, price, stated"),
        ("a = 5", "must be a table"),
        ("a =", "The setting plans.file: The settings file"),
    ],
)
def test_an_invalid_file_is_refused_with_the_reason(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "plans.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=message.replace("[", r"\[")):
        plans.load(Plans(file=file))


def test_an_own_file_replaces_the_built_in_plans(tmp_path: Path) -> None:
    file = tmp_path / "plans.toml"
    file.write_text("[own]\nemails = 5\n")
    assert plans.load(Plans(file=file, default="own")) == {"own": Plan("own", 5)}
    with pytest.raises(SettingsError, match=r"plans\.default is 'free'; the plans are: own"):
        plans.load(Plans(file=file, default="free"))
