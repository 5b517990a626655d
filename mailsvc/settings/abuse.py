"""The settings that limit new accounts and hold the mail of accounts with many bounces or complaints. What they do: accounts/abuse."""

from __future__ import annotations

import attrs

from mailsvc.settings import checks
from mailsvc.settings.reader import setting


def _ramp(value: tuple[int, ...]) -> str | None:
    good = all(step >= 1 for step in value) and list(value) == sorted(set(value))
    return None if good else "expected whole numbers of at least 1, each larger than the one before"


@attrs.frozen
class Abuse:
    """Protection against abuse by customers. Accounts that you trust (`mailsvc account trust`) are exempt."""

    ramp: tuple[int, ...] = setting(
        (10000, 20000, 50000, 100000, 200000, 500000),
        "Recipients per day of a new account. At most once a day, it moves to the next step if a tenth of its limit was delivered "
        "without problems. After the last step, only its plan limits it. Empty: no limit. Changes don't affect existing accounts.",
        check=_ramp,
    )
    bounce_rate: float = setting(
        10.0, "Percentage of permanently bounced recipients at which an account's mail is held. 0: never.", check=checks.between(0, 100)
    )
    complaint_rate: float = setting(
        0.5, "Percentage of delivered recipients who complained at which an account's mail is held. 0: never.", check=checks.between(0, 100)
    )
    volume: int = setting(
        200, "Recipients with a result that an account needs before its rates count. Fewer than 5 bounces or complaints never count.",
        check=checks.at_least(1),
    )  # fmt: skip
    days: int = setting(7, "Days over which the rates are computed.", check=checks.between(1, 90))
    notify: str | None = setting(
        None,
        "Where to report what the operator has to act on: held accounts, source addresses on block lists, sent mail that fails DMARC. "
        "If not set, smtp.postmaster.",
        check=checks.address, example="abuse@example.com",
    )  # fmt: skip
