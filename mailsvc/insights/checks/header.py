"""Checks of the header: sender, subject, recipients, unsubscribing and DKIM."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from mailsvc.insights.checks.finding import Insight, Mail, listed
from mailsvc.mail.address import AddressError, parse_mailbox

SUBJECT_MAX, CAPITALS_MIN = 70, 10  # characters
VISIBLE_MAX = 50  # addresses in To
UNSUBSCRIBE_WORDS = (
    "unsubscribe",
    "opt out",
    "opt-out",
    "abmelden",
    "abbestellen",
    "désinscri",
    "se désabonner",
    "darse de baja",
    "disiscriv",
    "afmelden",
)

_NO_REPLY = re.compile(r"\b(no|do-?not|dont)[-_.]?reply\b", re.IGNORECASE)
_FREE_PROVIDERS = frozenset(
    "gmail.com googlemail.com yahoo.com outlook.com hotmail.com live.com icloud.com aol.com gmx.de gmx.net web.de proton.me mail.ru".split()
)
_MISTYPED = {
    "gmial.com": "gmail.com", "gamil.com": "gmail.com", "gnail.com": "gmail.com", "gmai.com": "gmail.com", "gmail.co": "gmail.com",
    "gmail.con": "gmail.com", "hotmial.com": "hotmail.com", "hotmai.com": "hotmail.com", "hotmail.con": "hotmail.com",
    "outlok.com": "outlook.com", "outlook.con": "outlook.com", "yaho.com": "yahoo.com", "yahooo.com": "yahoo.com", "yahoo.con": "yahoo.com",
    "iclod.com": "icloud.com", "icloud.con": "icloud.com",
}  # fmt: skip
_DISPOSABLE = frozenset("mailinator.com guerrillamail.com 10minutemail.com yopmail.com temp-mail.org trashmail.com sharklasers.com".split())
_ROLES = frozenset(
    "abuse admin billing contact help hostmaster info marketing noc office postmaster root sales security support webmaster".split()
)
_ESSENTIAL = re.compile(
    r"\b(reset|password|passcode|verif\w+|confirm your|security|sign[- ]in|log[- ]?in|(one[- ]time|access) code|receipt|invoice"
    r"|order confirm\w+|payment (received|confirm\w+))\b",
    re.IGNORECASE,
)
_UNIQUE_FIELDS = frozenset("date from sender reply-to to cc message-id in-reply-to references subject mime-version content-type".split())
# A domain in a display name, recognised by common endings: “St.Mary” is not one.
_DOMAIN = re.compile(r"\b(?:[a-z0-9-]{1,63}+\.){1,8}(?:com|net|org|info|biz|io|app|dev|ai|co\.uk|de|fr|es|it|nl|eu)\b", re.IGNORECASE)
_EMOJI = re.compile("[\U0001f300-\U0001faff\u2600-\u27bf]")
_MESSAGE_ID = re.compile(r"<[^<>@\s]+@[^<>@\s]+>")
_POSTAL = re.compile(r"\b\d{4,6}\b|\b[A-Z]{1,2}\d[A-Z\d]? ?\d[A-Z]{2}\b")  # such as 10115, 94103 or SW1A 1AA


def no_reply(mail: Mail) -> Iterator[Insight]:
    found = next((value for value in (mail.sender, mail.parsed.header("Reply-To") or "") if _NO_REPLY.search(value)), None)
    if found:
        why = "People trust email that they can reply to, and replies improve your reputation."
        yield Insight("attention", "Don't use a “no-reply” address", f"The sender is {found}.", why, "Use an address that someone reads.")
    elif mail.sender:
        yield Insight("great", "People can reply", f"The sender is {mail.sender}.")


def own_domain(mail: Mail) -> Iterator[Insight]:
    if mail.own in _FREE_PROVIDERS:
        why = f"{mail.own} asks receivers to reject email that it did not send itself."
        remedy = "Add your own domain and send from it."
        yield Insight("attention", "Send from your own domain", f"The sender is {mail.sender}.", why, remedy)
    elif mail.own and mail.root(mail.own):
        why = "Problems with this email then affect all email of the domain, including that of your staff."
        example = "news" if mail.bulk else "mail"
        yield Insight(
            "better", "Use a subdomain", f"The sender's domain is {mail.own}.", why, f"Send from a subdomain such as {example}.{mail.own}."
        )


def answers(mail: Mail) -> Iterator[Insight]:
    """Where replies go."""
    try:
        to = parse_mailbox(mail.parsed.header("Reply-To") or "").domain
    except AddressError:
        return
    if mail.own and not mail.same(to, mail.own):
        why = "Fraudulent email often uses a known sender and sends replies elsewhere."
        yield Insight(
            "better",
            "Replies go to another domain",
            f"From is at {mail.own}, Reply-To is at {to}.",
            why,
            f"Use a Reply-To address at {mail.own}.",
        )


def display_name(mail: Mail) -> Iterator[Insight]:
    try:
        name = parse_mailbox(mail.parsed.header("From") or "").name
    except AddressError:
        return
    if "@" in name:
        why = "Filters treat it as an attempt to impersonate someone."
        yield Insight(
            "attention",
            "The sender's name contains an address",
            f"The name is “{name}”.",
            why,
            "Use the name of a person or of your product.",
        )
    elif name and not any(letter.isalpha() for letter in name):
        why = "It is the first thing that people see."
        yield Insight(
            "better", "The sender's name has no letters", f"The name is “{name}”.", why, "Use the name of a person or of your product."
        )
    elif (domain := _DOMAIN.search(name)) and mail.own and not mail.same(domain[0].lower(), mail.own):
        why = "A name with a domain that the email is not sent from looks like fraud."
        remedy = "Use the name of a person or of your product."
        yield Insight(
            "better", "The sender's name contains another domain", f"The name is “{name}”, the email is sent from {mail.own}.", why, remedy
        )
    elif name:
        yield Insight("great", "The sender has a display name", f"The name is “{name}”.")


def subject(mail: Mail) -> Iterator[Insight]:
    text = (mail.parsed.header("Subject") or "").strip()
    if not text:
        yield Insight(
            "attention",
            "The subject is missing",
            "The subject is empty.",
            "Spam filters penalize that.",
            "Add a subject that says what the email is about.",
        )
        return
    problems = []
    if len(text) >= CAPITALS_MIN and text.isupper():
        problems.append("It is all capitals.")
    if re.search(r"!{2,}|\${2,}", text):
        problems.append("It repeats punctuation.")
    if re.match(r"(re|fwd?|aw):", text, re.IGNORECASE) and not mail.parsed.header("In-Reply-To"):
        problems.append("It looks like a reply but is not one.")
    if len(_EMOJI.findall(text)) > 1:
        problems.append("It contains several emoji.")
    if len(text) > SUBJECT_MAX:
        problems.append(f"It has {len(text)} characters; phones show about 40.")
    if problems:
        why = "It is the first thing that people and filters see."
        yield Insight("better", "Improve the subject", " ".join(problems), why, "Say in a few plain words what the email is about.")
    else:
        yield Insight("great", "The subject is good", f"{len(text)} characters.")


def recipients(mail: Mail) -> Iterator[Insight]:
    visible = (mail.parsed.header("To") or "").count("@")
    if not visible and not mail.parsed.header("Cc"):
        why = "Spam often names nobody, so filters penalize that."
        remedy = "Send to each recipient individually, with the address in To."
        yield Insight("better", "No recipient is named", "There is no address in To or Cc.", why, remedy)
    if visible > VISIBLE_MAX:
        yield Insight(
            "better",
            "Many recipients see each other's addresses",
            f"To has {visible} addresses.",
            "They may not want that.",
            "Send individually.",
        )


def unsubscribe(mail: Mail) -> Iterator[Insight]:
    links, one_click = mail.parsed.header("List-Unsubscribe"), mail.parsed.header("List-Unsubscribe-Post")
    if not mail.bulk:
        subject = mail.parsed.header("Subject") or ""
        if links and _ESSENTIAL.search(subject):
            why = "People who unsubscribe with one click no longer get codes, receipts or warnings."
            seen = f"The email “{subject.strip()[:60]}” has a List-Unsubscribe header."
            yield Insight(
                "better", "Don't offer to unsubscribe from this email", seen, why, "Leave the header out of email that people need."
            )
        return
    if not links:
        why = "Large receivers reject bulk email without it."
        remedy = "Add List-Unsubscribe with an https link, and List-Unsubscribe-Post: List-Unsubscribe=One-Click."
        yield Insight("attention", "Let people unsubscribe with one click", "There is no List-Unsubscribe header.", why, remedy)
    elif not one_click or "https:" not in links.lower():
        seen = "List-Unsubscribe-Post or an https link is missing."
        why = "Large receivers show their unsubscribe button only if both are present (RFC 8058)."
        remedy = "Add the link to List-Unsubscribe, and List-Unsubscribe-Post: List-Unsubscribe=One-Click."
        yield Insight("better", "Unsubscribing takes more than one click", seen, why, remedy)
    else:
        yield Insight("great", "People can unsubscribe with one click", "List-Unsubscribe and List-Unsubscribe-Post are present.")


def leaving(mail: Mail) -> Iterator[Insight]:
    """What the text of bulk email must contain."""
    if not mail.bulk:
        return
    words = [mail.text.lower(), *(f"{link.text} {link.url}".lower() for link in (mail.page.links if mail.page else ()))]
    if not any(word in text for word in UNSUBSCRIBE_WORDS for text in words):
        why = "People who cannot unsubscribe report spam instead, and large receivers require a visible link."
        remedy = "Add an “Unsubscribe” link at the end of the text."
        yield Insight("attention", "Add an unsubscribe link to the text", "Neither a link nor the text mentions it.", why, remedy)
    if not _POSTAL.search(mail.text[-2000:]):
        why = "The law of many countries requires it in bulk email."
        remedy = "Put it below the unsubscribe link."
        yield Insight("better", "Add your postal address", "No address was found at the end of the text.", why, remedy)


def addressed(mail: Mail) -> Iterator[Insight]:
    """The recipients' addresses."""
    domains = {address.rpartition("@")[2].lower() for address in mail.recipients}
    if wrong := sorted(domains & set(_MISTYPED)):
        meant = f"The correct domain is probably {_MISTYPED[wrong[0]]}."
        yield Insight(
            "better",
            "An address looks misspelled",
            f"Its domain is {listed(wrong)}.",
            meant,
            "Ask people to confirm their address when they sign up.",
        )
    if throwaway := sorted(domains & _DISPOSABLE):
        why, remedy = "Nobody reads such a mailbox for long.", "Ask people for a permanent address."
        yield Insight("better", "An address is disposable", f"Its domain is {listed(throwaway)}.", why, remedy)
    roles = sorted({local for address in mail.recipients if (local := address.partition("@")[0].lower()) in _ROLES})
    if mail.bulk and roles:
        why = "Several people read such a mailbox, and any of them may report spam."
        seen = f"Some begin with {listed([f'{role}@' for role in roles])}."
        yield Insight("better", "Bulk email to role addresses", seen, why, "Only email people who opted in.")
    visible = (mail.parsed.header("To") or "").count("@")
    if not mail.bulk and 1 < visible <= VISIBLE_MAX:
        yield Insight(
            "better",
            "Recipients see each other's addresses",
            f"To has {visible} addresses.",
            "They may not want that.",
            "Send individually.",
        )


def form(mail: Mail) -> Iterator[Insight]:
    """Conformance with RFC 5322."""
    counts = Counter(field.name.lower() for field in mail.parsed.fields)
    wrong = [f"{name.title()} appears {counts[name]} times" for name in sorted(_UNIQUE_FIELDS) if counts[name] > 1]
    if not _MESSAGE_ID.fullmatch((mail.parsed.header("Message-ID") or "").strip()):
        wrong.append("Message-ID is missing or invalid")
    if any(not field.raw.isascii() for field in mail.parsed.fields):
        wrong.append("some fields contain non-ASCII characters")
    if _date(mail) is None:
        wrong.append("Date is missing or invalid")
    if (skew := _skew(mail)) is not None and abs(skew) > timedelta(days=1):
        wrong.append(
            f"Date is {abs(skew).days} day{'s' * (abs(skew).days != 1)} {'in the future' if skew > timedelta(0) else 'in the past'}"
        )
    if wrong:
        why = "Large receivers reject email with an invalid header."
        yield Insight("attention", "The header is not valid", f"{'; '.join(wrong)}.", why, "Use a library to build the message.")
    else:
        yield Insight("great", "The header is valid", "All required fields are present and well-formed.")


def signed(mail: Mail) -> Iterator[Insight]:
    """DKIM; an email is signed before its first attempt."""
    found = [_tags(field.value) for field in mail.parsed.fields if field.name.lower() == "dkim-signature"]
    if not found:
        return
    own = [tags for tags in found if mail.own and mail.same(tags.get("d", ""), mail.own)]
    weak = [tags for tags in own if tags.get("a", "").endswith("sha1") or "l" in tags]
    if not own:
        why = "DMARC requires a signature by the domain in From."
        seen = f"It is signed by {listed([t.get('d', '?') for t in found])}."
        yield Insight("attention", "It is not signed by the sender's domain", seen, why, "Sign with the domain in From.")
    elif weak:
        seen, why = "It uses SHA-1, or does not cover the whole body (l=).", "Receivers ignore it."
        yield Insight("attention", "A DKIM signature is weak", seen, why, "Configure your signer to use rsa-sha256 without l=.")
    else:
        kinds = listed(sorted({tags.get("a", "?") for tags in own}))
        yield Insight("great", "It is signed with DKIM", f"Signed by {own[0].get('d', '')} with {kinds}.")


def _date(mail: Mail) -> datetime | None:
    try:
        date = parsedate_to_datetime(mail.parsed.header("Date") or "")
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def _skew(mail: Mail) -> timedelta | None:
    date = _date(mail)
    return date - mail.accepted if date is not None and mail.accepted is not None else None


def _tags(value: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in value.split(";"))
    return {name.strip(): "".join(content.split()) for name, _, content in pairs if name.strip()}


CHECKS = (
    no_reply, own_domain, answers, display_name, subject, recipients, addressed, unsubscribe, leaving, form, signed,
)  # fmt: skip
