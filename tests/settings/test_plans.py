"""The plans as they stand in the file, and their periods."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import pytest

from mailsvc.settings import plans
from mailsvc.settings.plans import Exhausted, Plan, Plans, begins, ends
from mailsvc.settings.reader import SettingsError

NOW = datetime(2026, 12, 31, 23, 30, tzinfo=UTC)


def test_the_eight_plans_and_the_price_that_nobody_knows() -> None:
    known = plans.load(Plans())
    told = [(plan.emails, plan.price) for plan in known.values()]
    assert told == [
        (3_000, 0), (50_000, 20), (100_000, 35), (200_000, 160), (500_000, 350), (1_000_000, 650), (1_500_000, None), (2_500_000, 1050),
    ]  # fmt: skip
    assert known["1500k"].stated == (825, 1250)
    assert known["free"].limits == {"day": 100, "month": 3000} and known["50k"].limits == {"month": 50_000}


def test_periods_are_calendar_days_and_months_of_utc() -> None:
    assert (begins("day", NOW), begins("month", NOW)) == (date(2026, 12, 31), date(2026, 12, 1))
    assert ends("day", NOW) == ends("month", NOW) == datetime(2027, 1, 1, tzinfo=UTC)
    east = NOW.astimezone(timezone(timedelta(hours=5)))
    assert begins("day", east) == date(2026, 12, 31)
    assert ends("month", datetime(2027, 2, 28, tzinfo=UTC)) == datetime(2027, 3, 1, tzinfo=UTC)


def test_what_is_told_begins_with_the_known_sentence() -> None:
    said = Exhausted("month", 3, 9, 10, ends("month", NOW)).message
    assert said.startswith("You have exceeded your monthly email sending quota. 3 recipients do not fit into the 1 of 10")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a]\nemails = 0", "The plan a has no good `emails`"),
        ("[a]\nemails = true", "no good `emails`"),
        ("[a]\nprice = 5", "no good `emails`"),
        ("[a]\nemails = 5\ndaily = 0.5", "no good `daily`"),
        ("[a]\nemails = 5\nprice = 'much'", "no good price"),
        ("[a]\nemails = 5\nstated = [1, -2]", "no good price"),
        ("[a]\nemail = 5", "has to be a table of daily, emails, price, stated"),
        ("a = 5", "has to be a table"),
        ("a =", "The setting plans.file names a file with plans."),
    ],
)
def test_a_file_that_is_no_good_says_why(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "plans.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=said.replace("[", r"\[")):
        plans.load(Plans(file=file))


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "plans.toml"
    file.write_text("[own]\nemails = 5\n")
    assert plans.load(Plans(file=file, default="own")) == {"own": Plan("own", 5)}
    with pytest.raises(SettingsError, match=r"plans\.default is 'free'; the plans are: own"):
        plans.load(Plans(file=file, default="free"))
