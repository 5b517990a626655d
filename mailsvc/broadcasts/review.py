"""Reviews a broadcast before it is sent: what prevents sending, what should be looked at, and the remedy for each. Pure.

The facts are gathered by dashboard/broadcasts/review. Advice about the message itself: insights/checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import attrs

from mailsvc.mail import html, merge
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.mail.merge import Template

NAMED = 5  # names in one sentence
# Where the remedy is.
Place = Literal["content", "domains", "segment", "plan", "operator"]


@attrs.frozen
class Finding:
    """`blocks`: the broadcast cannot be sent until this is fixed."""

    title: str
    detail: str
    remedy: str
    place: Place = "content"
    blocks: bool = True


@attrs.frozen
class Written:
    """The content, parsed once. `links`: the addresses that its links have. `fallbacks`: of all properties, by key."""

    html: str | None
    text: str | None
    templates: Sequence[Template]
    links: Sequence[str]
    fallbacks: Mapping[str, str | None]

    @classmethod
    def of(cls, html_: str | None, text: str | None, lines: Sequence[str], fallbacks: Mapping[str, str | None]) -> Written:
        """`lines`: the subject and the preview text."""
        templates = [merge.parse(each) for each in (html_ or "", text or "", *lines)]
        links = [each.url.strip() for each in html.read(html_).links] if html_ else []
        return cls(html_, text, templates, links, fallbacks)

    @property
    def empty(self) -> bool:
        return not (self.html or "").strip() and not (self.text or "").strip()

    @property
    def keys(self) -> frozenset[str]:
        """The fields and properties that it uses without a fallback."""
        return merge.without_fallback(self.templates, self.fallbacks)


@attrs.frozen
class Setup:
    """Everything else that sending depends on. `domain_missing`: what the sending domain lacks, None if it can send.

    `contacts`: in the segment, None without one. `recipients`: how many of them would get the email. `room`: how many recipients the quota
    allows now, None without one. `refusal`: why the account or the service cannot send broadcasts at all, with the place of the remedy.
    `topic_deleted`: it has a topic that no longer exists.
    """

    sender: str
    subject: str
    domain_missing: str | None = None
    contacts: int | None = None
    recipients: int = 0
    missing: Mapping[str, int] = attrs.field(factory=dict)
    room: int | None = None
    refusal: tuple[str, Place] | None = None
    topic_deleted: bool = False


def review(setup: Setup, written: Written) -> list[Finding]:
    """What prevents sending first."""
    found = [*_of_setup(setup), *_of_content(written), *_of_values(setup, written)]
    return sorted(found, key=lambda each: not each.blocks)


def domain_of(sender: str) -> str | None:
    """The domain of a sender, None without a valid one."""
    try:
        return parse_mailbox(sender).domain
    except AddressError:
        return None


def lacks(sender: str, subject: str, html: str | None, text: str | None) -> Literal["from", "subject", "content"] | None:
    """What a broadcast cannot be sent without, whoever asks."""
    if domain_of(sender) is None:
        return "from"
    if not subject.strip():
        return "subject"
    return None if html or text else "content"


def _of_setup(setup: Setup) -> Iterator[Finding]:
    domain = domain_of(setup.sender)
    if domain is None:
        yield Finding("No sender", "The broadcast has no valid From address.", "Enter a name and an address at one of your domains.")
    elif setup.domain_missing is not None:
        detail = f"{domain} isn’t ready to send. {setup.domain_missing}".rstrip()
        yield Finding("Domain not verified", detail, "Verify the domain, or choose a sender at a verified one.", "domains")
    if not setup.subject.strip():
        yield Finding("No subject", "The subject is empty.", "Write a subject.")
    if setup.topic_deleted:
        yield Finding("Deleted topic", "The topic was deleted, so nobody’s choice is known any more.", "Choose another topic, or none.")
    if setup.contacts is None:
        yield Finding("No segment", "No segment is chosen, or it was deleted.", "Choose the segment that gets the broadcast.")
    elif not setup.contacts:
        yield Finding("Empty segment", "The segment has no contacts.", "Add contacts to the segment, or choose another one.", "segment")
    elif not setup.recipients and not setup.topic_deleted:
        yield Finding("No recipients", "None of the segment’s contacts can get this broadcast.", "Choose another segment or topic.")
    if setup.room is not None and setup.recipients > setup.room:
        detail = f"Your quota has room for {setup.room:,} more recipients. Sending pauses when it is used up and continues when it resets."
        yield Finding(
            "More recipients than your quota allows", detail, "Get a larger plan, or let it continue later.", "plan", blocks=False
        )
    if setup.refusal is not None:
        why, place = setup.refusal
        remedy = "Ask the operator of this service." if place == "operator" else "Remove contacts, or get a larger plan."
        yield Finding("Sending isn’t possible", why, remedy, place)


def _of_content(written: Written) -> Iterator[Finding]:
    if written.empty:
        yield Finding("No content", "The broadcast has neither HTML nor text.", "Write the content.")
        return
    if not merge.has_unsubscribe_link(written.templates[:2]):  # Google's rules and Yahoo's rules require a visible link
        detail = "Gmail and Yahoo require a visible unsubscribe link in bulk mail."
        yield Finding("No unsubscribe link", detail, "Insert {{{RESEND_UNSUBSCRIBE_URL}}} as the address of a link.", blocks=False)
    if empty := sum(1 for url in written.links if url in ("", "#")):
        detail = f"{empty} link{' leads' if empty == 1 else 's lead'} nowhere."
        yield Finding("Links without an address", detail, "Enter an address for each link, or remove the link.", blocks=False)
    if names := merge.unknown(written.templates, written.fallbacks):
        listed = ", ".join(f"{{{{{{{name}}}}}}}" for name in names[:NAMED]) + (" and others" if len(names) > NAMED else "")
        detail = f"{listed}: no field or property of contacts has this name, so its fallback or nothing is shown."
        yield Finding("Unknown placeholders", detail, "Correct the name, or add the property.", blocks=False)


def _of_values(setup: Setup, written: Written) -> Iterator[Finding]:
    for key, count in sorted(setup.missing.items()):
        if count:
            detail = f"{count:,} {'recipient has' if count == 1 else 'recipients have'} no {key}, and the placeholder has no fallback."
            remedy = f"Add a fallback, as in {{{{{{contact.{key}|there}}}}}}."
            yield Finding(f"Missing value: {key}", detail, remedy, blocks=False)
