"""The settings of contacts and broadcasts."""

from __future__ import annotations

import attrs

from mailsvc.settings import checks
from mailsvc.settings.reader import setting


@attrs.frozen
class Audience:
    """Contacts."""

    segments: int = setting(1000, "Maximum number of segments for each account.", check=checks.between(1, 100_000))
    topics: int = setting(100, "Maximum number of topics for each account.", check=checks.between(1, 10_000))
    properties: int = setting(100, "Maximum number of contact properties for each account.", check=checks.between(1, 1000))
    import_size: int = setting(
        200 * 1024 * 1024, "Maximum size of a CSV file with contacts, in bytes (200 MB).", check=checks.at_least(1024)
    )
    imports: int = setting(20, "Maximum number of imports in progress for each account.", check=checks.between(1, 10_000))
    uploads: int = setting(
        2, "Maximum number of files with contacts that a process stores at the same time. Others wait.", check=checks.between(1, 100)
    )
    import_part: int = setting(
        256 * 1024, "Maximum size of the header line of an import, and of each other part of its form, in bytes.",
        check=checks.between(1024, 1024 * 1024),
    )  # fmt: skip
    import_errors: int = setting(
        100_000, "Maximum number of invalid rows that are listed for an import.", check=checks.between(0, 10_000_000)
    )
    import_days: int = setting(30, "Days to keep finished imports with their errors.", check=checks.between(1, 3650))
    name: int = setting(255, "Maximum length of a contact's first or last name, in characters.", check=checks.between(1, 10_000))
    value: int = setting(2000, "Maximum length of the value of a contact property, in characters.", check=checks.between(1, 100_000))
    choices: int = setting(1000, "Maximum number of segments or topics in one request about a contact.", check=checks.between(1, 10_000))
    confirm_days: int = setting(7, "Days in which a double opt-in can be confirmed.", check=checks.between(1, 365))
    wording: int = setting(
        100_000,
        "Maximum length of the HTML or the text of an email of a double opt-in, in characters.",
        check=checks.between(1000, 1_000_000),
    )
    page_text: int = setting(
        1000,
        "Maximum length of a text on the confirmation page and on the preference page, in characters.",
        check=checks.between(1, 100_000),
    )
    searched: int = setting(
        5000, "Contacts that a search reads for one page. If it finds too few in them, the page is shorter.",
        check=checks.between(100, 1_000_000),
    )  # fmt: skip


@attrs.frozen
class Broadcasts:
    """Broadcasts."""

    ahead: int = setting(
        20_000, "Recipients of a broadcast that are in the queue at once. Others are added as these are sent.", check=checks.at_least(100)
    )
    hourly_rate: int = setting(0, "Recipients of all broadcasts of an account per hour. 0: no limit.", check=checks.at_least(0))
    judged_after: int = setting(
        1000,
        "Emails with an outcome from which on the limits below apply; or 1 % of the contacts, if that is fewer.",
        check=checks.at_least(1),
    )
    judged_least: int = setting(100, "Emails with an outcome below which the limits never apply.", check=checks.at_least(1))
    bounced: float = setting(5.0, "Percentage of bounces above which a broadcast is paused.", check=checks.between(0, 100))
    complained: float = setting(0.3, "Percentage of complaints above which a broadcast is paused.", check=checks.between(0, 100))
    name: int = setting(255, "Maximum length of a broadcast's name, in characters.", check=checks.between(70, 10_000))
    subject: int = setting(
        998, "Maximum length of its subject before placeholders are replaced, in characters.", check=checks.between(1, 10_000)
    )
    preview: int = setting(1000, "Maximum length of its preview text, in characters.", check=checks.between(0, 10_000))
    reply_to: int = setting(50, "Maximum number of its Reply-To addresses.", check=checks.between(1, 1000))
    images_host: str | None = setting(
        None, "The host name of uploaded images. If not set, tracking.host; if that is not set either, the host of base_url.",
        check=checks.host, example="images.example.com",
    )  # fmt: skip
    images_size: int = setting(
        500 * 1024 * 1024, "Maximum size of an account's uploaded images, in bytes (500 MB).", check=checks.at_least(0)
    )
    listed: int = setting(10_000, "Broadcasts in a list that is requested without a limit.", check=checks.between(100, 1_000_000))
