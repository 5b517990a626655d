"""How pages show times, sizes, counts and statuses, and the template environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mailsvc.domains import names
from mailsvc.mail.address import quoted_if_dotted
from mailsvc.store.mail.search import ENGAGED, Found
from mailsvc.units import size, span

# event or status → label and tone
STATUSES: dict[str, tuple[str, str]] = {
    "sent": ("Sent", "info"),
    "queued": ("Queued", "info"),
    "sending": ("Sending", "info"),
    "scheduled": ("Scheduled", "quiet"),
    "delivered": ("Delivered", "good"),
    "delivery_delayed": ("Deferred", "warn"),
    "delayed": ("Deferred", "warn"),
    "uncertain": ("Uncertain", "warn"),
    "bounced": ("Bounced", "bad"),
    "complained": ("Complained", "bad"),
    "failed": ("Failed", "bad"),
    "suppressed": ("Suppressed", "bad"),
    "canceled": ("Canceled", "quiet"),
    "opened": ("Opened", "good"),
    "clicked": ("Clicked", "good"),
    "deferred": ("Deferred", "warn"),
    "verified": ("Verified", "good"),
    "pending": ("Pending", "warn"),
    "temporary_failure": ("Temporary failure", "warn"),
    "not_started": ("Not started", "quiet"),
    "records_missing": ("Records missing", "warn"),
    "dns_unanswered": ("No answer from DNS", "warn"),
    "partially_verified": ("Partially verified", "warn"),
    "trusted": ("Trusted", "good"),
    "pass": ("Pass", "good"),
    "fail": ("Fail", "bad"),
    "nokey": ("No key", "bad"),
    "invalid": ("Invalid", "bad"),
}
_TONES = ("bad", "warn", "info", "quiet", "good")  # the worst first


def status(name: str) -> tuple[str, str]:
    short = name.removeprefix("email.").removeprefix("domain.")
    return STATUSES.get(short, (short.replace("_", " ").capitalize() or "Accepted", "quiet"))


def summary(email: Found) -> tuple[str, str]:
    """The result of an email in a list, as label and tone."""
    return result(email.outcomes, len(email.recipients), email.last_event)


def result(counts: Mapping[str, int], total: int, last_event: str) -> tuple[str, str]:
    """Of several recipients, how many had which outcome, toned by the worst one.

    Opens and clicks are shown only if everybody got the email, so that they hide no problem.
    """
    if not counts or (counts == {"email.delivered": total} and last_event in ENGAGED):
        return status(last_event)
    if counts == {next(iter(counts)): total}:
        return status(next(iter(counts)))
    others = sorted(set(counts) - {"email.delivered"}, key=lambda name: (_TONES.index(status(name)[1]), -counts[name], name))
    parts = [f"{counts.get('email.delivered', 0)} of {total} delivered", *(f"{counts[name]} {status(name)[0].lower()}" for name in others)]
    return ", ".join(parts), status(others[0])[1] if others else "info"


def ago(moment: datetime, now: datetime) -> str:
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 2:
        return "just now"
    return f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"


def stamp(moment: datetime, now: datetime) -> str:
    """Date, time and zone: that of `now`, which is the zone of whoever reads it."""
    local = moment.astimezone(now.tzinfo)
    zone = local.tzname() or ""
    return f"{local:%Y-%m-%d %H:%M:%S} {zone if zone[:1].isalpha() else f'UTC{zone}'}"


def clock(moment: datetime, now: datetime) -> str:
    """The time of day to the millisecond, in the zone of `now`."""
    moment = moment.astimezone(now.tzinfo)
    return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}"


def duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def sentence(text: str) -> str:
    """With a capital at its beginning. Names in it keep theirs."""
    return text[:1].upper() + text[1:]


def number(count: int) -> str:
    return f"{count:,}"


def in_unicode(text: str) -> str:
    """A domain, an address or a mailbox ("Name <address>") with its domain in Unicode, and without quotes that only dots need.

    It can also be the value of a field: browsers accept no quotes in an address.
    """
    if "xn--" not in text and '"@' not in text:
        return text
    local, at, domain = text.rpartition("@")
    name = domain.removesuffix(">")
    return f"{_without_quotes(local)}{at}{names.shown(name)}{domain[len(name) :]}"


def _without_quotes(local: str) -> str:
    """The text before the @ of an address or a mailbox."""
    start = local.rfind('"', 0, -1)
    inner = local[start + 1 : -1]
    dotted = start >= 0 and local[max(start - 1, 0) : start] in ("", "<") and quoted_if_dotted(inner) == local[start:]
    return local[:start] + inner if dotted else local


def address(text: str) -> Markup:
    """An email address that may wrap after its @."""
    local, at, domain = in_unicode(text).rpartition("@")
    return Markup("{}{}<wbr>{}").format(local, at, domain)


def browser(agent: str) -> str:
    """The browser and operating system that a User-Agent names."""
    browsers = (("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Safari/", "Safari"))
    systems = (
        ("iPhone", "iPhone"),
        ("iPad", "iPad"),
        ("Android", "Android"),
        ("Windows", "Windows"),
        ("Mac OS", "macOS"),
        ("Linux", "Linux"),
    )
    name = next((label for mark, label in browsers if mark in agent), "Unknown browser")
    system = next((label for mark, label in systems if mark in agent), "")
    return f"{name} on {system}" if system else name


def environment(*folders: Path, **shared: Any) -> Environment:
    """The template environment. Values are escaped; an undefined name is an error. `folders`: looked at before our own."""
    searched = [*folders, Path(__file__).parent / "templates"]
    environment = Environment(
        loader=FileSystemLoader(searched),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "stamp": stamp, "clock": clock, "size": size, "duration": duration, "number": number, "browser": browser, "span": span,
        "address": address, "in_unicode": in_unicode, "sentence": sentence,
    }  # fmt: skip
    environment.globals |= {"ago": ago, "status_of": status, "summary_of": summary, **shared}
    return environment
