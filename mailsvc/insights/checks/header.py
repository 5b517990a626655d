"""The header: who it is from, what it is called, whom it is to, and how to leave."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime

from mailsvc.insights.checks.finding import Insight, Mail, listed
from mailsvc.mail.address import AddressError, parse_mailbox

SUBJECT_LONG, SHOUTED = 70, 10  # characters
VISIBLE_MOST = 50  # addresses in To
LEAVE = (
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
_EVERYBODYS = frozenset(
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
_NEEDED = re.compile(
    r"\b(reset|password|passcode|verif\w+|confirm your|security|sign[- ]in|log[- ]?in|(one[- ]time|access) code|receipt|invoice"
    r"|order confirm\w+|payment (received|confirm\w+))\b",
    re.IGNORECASE,
)
_ONCE = frozenset("date from sender reply-to to cc message-id in-reply-to references subject mime-version content-type".split())
# A domain as people write it in a name: by its commonest endings, since “St.Mary” is none.
_DOMAIN = re.compile(r"\b(?:[a-z0-9-]{1,63}+\.){1,8}(?:com|net|org|info|biz|io|app|dev|ai|co\.uk|de|fr|es|it|nl|eu)\b", re.IGNORECASE)
_EMOJI = re.compile("[\U0001f300-\U0001faff\u2600-\u27bf]")
_MESSAGE_ID = re.compile(r"<[^<>@\s]+@[^<>@\s]+>")
_POSTAL = re.compile(r"\b\d{4,6}\b|\b[A-Z]{1,2}\d[A-Z\d]? ?\d[A-Z]{2}\b")  # as in an address: 10115, 94103, SW1A 1AA


def no_reply(mail: Mail) -> Iterator[Insight]:
    found = next((value for value in (mail.sender, mail.parsed.header("Reply-To") or "") if _NO_REPLY.search(value)), None)
    if found:
        why = "People who can answer trust a mail more, and answers raise its reputation."
        yield Insight("attention", "Don't use a “no-reply” address", f"It is from {found}.", why, "Use an address that somebody reads.")
    elif mail.sender:
        yield Insight("great", "It can be answered", f"It is from {mail.sender}.")


def own_domain(mail: Mail) -> Iterator[Insight]:
    if mail.own in _EVERYBODYS:
        why = f"{mail.own} asks receivers to refuse mail that it did not send itself."
        remedy = "Add a domain of your own, and send from it."
        yield Insight("attention", "Send from a domain of your own", f"It is from {mail.sender}.", why, remedy)
    elif mail.own and mail.root(mail.own):
        why = "What goes wrong with it then harms all of the domain's mail, that of people too."
        example = "news" if mail.bulk else "mail"
        yield Insight("better", "Use a subdomain", f"It is from {mail.own} itself.", why, f"Send from one such as {example}.{mail.own}.")


def answers(mail: Mail) -> Iterator[Insight]:
    """Where answers go."""
    try:
        to = parse_mailbox(mail.parsed.header("Reply-To") or "").domain
    except AddressError:
        return
    if mail.own and not mail.same(to, mail.own):
        why = "Fraud looks like that: a known name, and answers to somebody else."
        yield Insight(
            "better", "Answers go to another domain", f"It is from {mail.own}, Reply-To is at {to}.", why, f"Take answers at {mail.own}."
        )


def display_name(mail: Mail) -> Iterator[Insight]:
    try:
        name = parse_mailbox(mail.parsed.header("From") or "").name
    except AddressError:
        return
    if "@" in name:
        why = "Filters take it for somebody who pretends to be another."
        yield Insight(
            "attention", "The sender's name is an address", f"It is “{name}”.", why, "Use the name of a person or of your product."
        )
    elif name and not any(letter.isalpha() for letter in name):
        why = "It is the first thing that people see."
        yield Insight("better", "The sender's name has no letters", f"It is “{name}”.", why, "Use the name of a person or of your product.")
    elif (said := _DOMAIN.search(name)) and mail.own and not mail.same(said[0].lower(), mail.own):
        why = "Who calls themselves by a domain that they do not send from looks like fraud."
        remedy = "Use the name of a person or of your product."
        yield Insight("better", "The sender's name is another domain", f"It is “{name}”, sent from {mail.own}.", why, remedy)
    elif name:
        yield Insight("great", "The sender has a name", f"It is “{name}”.")


def subject(mail: Mail) -> Iterator[Insight]:
    text = (mail.parsed.header("Subject") or "").strip()
    if not text:
        yield Insight("attention", "It has no subject", "The subject is empty.", "Filters count that as spam.", "Say what it is about.")
        return
    problems = []
    if len(text) >= SHOUTED and text.isupper():
        problems.append("It is written in capitals.")
    if re.search(r"!{2,}|\${2,}", text):
        problems.append("It has signs in a row.")
    if re.match(r"(re|fwd?|aw):", text, re.IGNORECASE) and not mail.parsed.header("In-Reply-To"):
        problems.append("It looks like an answer and is none.")
    if len(_EMOJI.findall(text)) > 1:
        problems.append("It has several emoji.")
    if len(text) > SUBJECT_LONG:
        problems.append(f"It has {len(text)} characters; a phone shows about 40.")
    if problems:
        why = "It is what people and filters see first."
        yield Insight("better", "The subject could be better", " ".join(problems), why, "Say in a few plain words what the mail is about.")
    else:
        yield Insight("great", "The subject is fine", f"{len(text)} characters.")


def recipients(mail: Mail) -> Iterator[Insight]:
    visible = (mail.parsed.header("To") or "").count("@")
    if visible > VISIBLE_MOST:
        yield Insight(
            "better", "Many people see each other's addresses", f"To has {visible}.", "They may not want that.", "Send to each alone."
        )


def unsubscribe(mail: Mail) -> Iterator[Insight]:
    links, one_click = mail.parsed.header("List-Unsubscribe"), mail.parsed.header("List-Unsubscribe-Post")
    if not mail.bulk:
        subject = mail.parsed.header("Subject") or ""
        if links and _NEEDED.search(subject):
            why = "Who leaves with one click then gets no more codes, receipts or warnings."
            seen = f"“{subject.strip()[:60]}” has List-Unsubscribe."
            yield Insight("better", "Nobody should unsubscribe from this", seen, why, "Leave the field out of mail that people need.")
        return
    if not links:
        why = "Large receivers refuse mail to many without it."
        remedy = "Add List-Unsubscribe with an https link, and List-Unsubscribe-Post: List-Unsubscribe=One-Click."
        yield Insight("attention", "Let people unsubscribe with one click", "There is no List-Unsubscribe field.", why, remedy)
    elif not one_click or "https:" not in links.lower():
        seen = "List-Unsubscribe-Post or an https link is missing."
        why = "Large receivers offer their own button only where both are there (RFC 8058)."
        remedy = "Add the link to List-Unsubscribe, and List-Unsubscribe-Post: List-Unsubscribe=One-Click."
        yield Insight("better", "Unsubscribing takes more than a click", seen, why, remedy)
    else:
        yield Insight("great", "People can unsubscribe with one click", "List-Unsubscribe and List-Unsubscribe-Post are there.")


def leaving(mail: Mail) -> Iterator[Insight]:
    """What mail to many must show in its text."""
    if not mail.bulk:
        return
    words = [mail.text.lower(), *(f"{link.text} {link.url}".lower() for link in (mail.page.links if mail.page else ()))]
    if not any(word in text for word in LEAVE for text in words):
        why = "Who finds no way to leave complains instead, and large receivers ask for a visible link."
        remedy = "End the text with a link that says “Unsubscribe”."
        yield Insight("attention", "Show how to unsubscribe", "No link or sentence in the text says so.", why, remedy)
    if not _POSTAL.search(mail.text[-2000:]):
        why = "The law of many countries asks for it in mail to many."
        remedy = "Write it below the link to unsubscribe."
        yield Insight("better", "Add your postal address", "None was recognised at the end of the text.", why, remedy)


def addressed(mail: Mail) -> Iterator[Insight]:
    """The addresses themselves."""
    domains = {address.rpartition("@")[2].lower() for address in mail.recipients}
    if wrong := sorted(domains & set(_MISTYPED)):
        meant = f"Probably {_MISTYPED[wrong[0]]} was meant."
        yield Insight("better", "An address looks mistyped", f"It is at {listed(wrong)}.", meant, "Have people confirm their address.")
    if throwaway := sorted(domains & _DISPOSABLE):
        why, remedy = "Nobody reads there for long.", "Ask people for an address that they keep."
        yield Insight("better", "An address is one to throw away", f"It is at {listed(throwaway)}.", why, remedy)
    roles = sorted({local for address in mail.recipients if (local := address.partition("@")[0].lower()) in _ROLES})
    if mail.bulk and roles:
        why = "Several people read there, and one of them complains."
        seen = f"Some begin with {listed([f'{role}@' for role in roles])}."
        yield Insight("better", "Newsletters go to addresses of roles", seen, why, "Write to people who asked for it.")
    visible = (mail.parsed.header("To") or "").count("@")
    if not mail.bulk and 1 < visible <= VISIBLE_MOST:
        yield Insight(
            "better", "Recipients see each other", f"To has {visible} addresses.", "They may not want that.", "Send to each alone."
        )


def form(mail: Mail) -> Iterator[Insight]:
    """What a header must be."""
    counts = Counter(field.name.lower() for field in mail.parsed.fields)
    wrong = [f"{name.title()} is there {counts[name]} times" for name in sorted(_ONCE) if counts[name] > 1]
    if not _MESSAGE_ID.fullmatch((mail.parsed.header("Message-ID") or "").strip()):
        wrong.append("Message-ID is missing or is none")
    if any(not field.raw.isascii() for field in mail.parsed.fields):
        wrong.append("some fields have octets beyond ASCII")
    if (skew := _skew(mail)) is not None and abs(skew) > timedelta(days=1):
        wrong.append(f"Date is {abs(skew).days} day{'s' * (abs(skew).days != 1)} {'ahead' if skew > timedelta(0) else 'behind'}")
    if wrong:
        why = "Large receivers refuse mail whose header breaks the standard."
        yield Insight("attention", "The header breaks the standard", f"{'; '.join(wrong)}.", why, "Let a library make the message.")
    else:
        yield Insight("great", "The header keeps to the standard", "Every field is there once, and is what it should be.")


def signed(mail: Mail) -> Iterator[Insight]:
    """DKIM, once it has been signed for its first attempt."""
    found = [_tags(field.value) for field in mail.parsed.fields if field.name.lower() == "dkim-signature"]
    if not found:
        return
    ours = [tags for tags in found if mail.own and mail.same(tags.get("d", ""), mail.own)]
    weak = [tags for tags in ours if tags.get("a", "").endswith("sha1") or "l" in tags]
    if not ours:
        why = "DMARC asks for a signature of the domain in From."
        seen = f"It is signed by {listed([t.get('d', '?') for t in found])}."
        yield Insight("attention", "It is not signed for its own domain", seen, why, "Sign for the domain in From.")
    elif weak:
        seen, why = "It uses SHA-1, or leaves a part of the body out (l=).", "Receivers ignore it."
        yield Insight("attention", "A DKIM signature is weak", seen, why, "Let your own signer use rsa-sha256 and leave l= out.")
    else:
        kinds = listed(sorted({tags.get("a", "?") for tags in ours}))
        yield Insight("great", "It is signed with DKIM", f"For {ours[0].get('d', '')}, with {kinds}.")


def _skew(mail: Mail) -> timedelta | None:
    try:
        date = parsedate_to_datetime(mail.parsed.header("Date") or "")
    except ValueError:
        return None
    if mail.accepted is None:
        return None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)) - mail.accepted


def _tags(value: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in value.split(";"))
    return {name.strip(): "".join(content.split()) for name, _, content in pairs if name.strip()}


CHECKS = (
    no_reply, own_domain, answers, display_name, subject, recipients, addressed, unsubscribe, leaving, form, signed,
)  # fmt: skip
