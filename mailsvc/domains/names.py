"""Names of sending domains: validation, A-labels for storage, U-labels for display, names relative to the zone. Pure."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Collection
from functools import cache

import attrs
import idna
from publicsuffixlist import PublicSuffixList

from mailsvc.mail.address import quoted_if_dotted

LENGTH_MAX = 253  # characters; 1035 §2.3.4 allows 255 bytes including the lengths of labels and the root
SENDING_LENGTH_MAX = 189  # leaves room for our longest labels: a return path, or a selector and _domainkey

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# 6761 §6, 7686 §2, 8375: names that are never in the public DNS. Names for documentation and tests are allowed.
_PRIVATE_TLDS = frozenset({"localhost", "local", "invalid", "onion", "arpa", "internal"})
RETURN_PATH = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", re.IGNORECASE)

# Letters that look like Latin ones: a label made only of them can pass for Latin (UTS 39 §4).
_CONFUSABLES = {
    "CYRILLIC": frozenset("асеорхуіјѕһԁԛԝѵьӏ"),
    "GREEK": frozenset("οανικρτυχ"),
    "ARMENIAN": frozenset("օսհոց"),
}
_SCRIPT_SETS = (  # scripts that one language combines (UTS 39 §5.2, highly restrictive)
    frozenset({"LATIN", "HAN", "HIRAGANA", "KATAKANA"}),
    frozenset({"LATIN", "HAN", "BOPOMOFO"}),
    frozenset({"LATIN", "HAN", "HANGUL"}),
)


class NotADomain(ValueError):
    """The name is not a valid sending domain; the text is a sentence for the user."""


@attrs.frozen
class Name:
    """`ascii`: A-labels, for storage and DNS; `shown`: U-labels, for people."""

    ascii: str
    shown: str
    warning: str | None = None


@cache
def suffixes() -> PublicSuffixList:
    return PublicSuffixList(accept_unknown=True)


def parse(text: str, own: Collection[str] = ()) -> Name:
    """Validate a name. Raises NotADomain. `own`: the operator's names, which cannot be used, nor can their subdomains."""
    given = text.strip().rstrip(".").lower()
    if not given:
        raise NotADomain("The domain name is empty.")
    if len(given) > LENGTH_MAX:
        raise NotADomain(f"The domain name is longer than {LENGTH_MAX} characters.")
    if "@" in given or "/" in given or (":" in given.strip("[]") and not _is_address(given)):
        raise NotADomain("Enter only the domain, such as example.com, not an email address or a URL.")
    if _is_address(given):
        raise NotADomain("An IP address is not a domain. Enter a domain name such as example.com.")
    name = _ascii(given)
    labels = name.split(".")
    if len(labels) < 2:
        raise NotADomain("The domain name must have at least two labels, such as example.com.")
    if labels[-1] in _PRIVATE_TLDS or labels[-1].isdigit():
        raise NotADomain(f"Names that end in .{labels[-1]} do not exist in the public DNS.")
    if len(name) > SENDING_LENGTH_MAX:
        raise NotADomain(
            f"The domain name is longer than {SENDING_LENGTH_MAX} characters, which leaves no room for the DNS records below it."
        )
    if registrable(name) is None:
        raise NotADomain(f"{name} is a public suffix, under which people register domains. Add a domain below it.")
    for ours in own:
        if name == ours or name.endswith(f".{ours}"):
            raise NotADomain(f"{name} is reserved for this service.")
    return Name(name, shown(name), look_alike(name))


def registrable(name: str) -> str | None:
    """The registered domain that `name` is in. None for a public suffix."""
    found: str | None = suffixes().privatesuffix(name)
    return found


def is_registrable(name: str) -> bool:
    """Whether `name` is a registered domain, and not below one."""
    return registrable(name) == name


def same_organisation(one: str, other: str) -> bool:
    """Whether both names are in the same registered domain."""
    return one == other or (registrable(one) is not None and registrable(one) == registrable(other))


def relative(name: str, domain: str) -> str:
    """`name` as DNS providers expect it: relative to the registered domain, which itself is `@`."""
    zone = registrable(domain) or domain
    return "@" if name == zone else name.removesuffix(f".{zone}")


def shown(name: str) -> str:
    """The name with U-labels (5890 §2.3.2.1). A label that cannot be decoded stays as it is."""
    return ".".join(_unicode(label) for label in name.split("."))


def ascii_domain(text: str) -> str:
    """A text that people search for: an address in it as it is stored, its domain with A-labels."""
    local, at, domain = text.rpartition("@")
    if at and not local.endswith('"') and (".." in local or local.endswith(".")):
        local += '"'  # it is stored in quotes, but the text may begin in the middle of it
        text = local + at + domain
    try:
        return text if domain.isascii() else local + at + _ascii(domain.lower())
    except NotADomain:
        return text


def typed_address(text: str) -> str:
    """An email address that somebody typed, as those of users are stored: in lower case, quoted if needed, its domain with A-labels."""
    local, at, domain = text.lower().rpartition("@")
    return ascii_domain(quoted_if_dotted(local) + at + domain) if at else domain


def searched(text: str, separators: str = " ,;") -> str:
    """A search with its domains as they are stored. A word without @ and dot can be a name or part of a subject, and stays as it is."""
    if "@" in text and separators:
        return separators[0].join(searched(part, separators[1:]) for part in text.split(separators[0]))
    return ascii_domain(text) if "@" in text or "." in text[1:-1] else text


def look_alike(name: str) -> str | None:
    """A warning if the name can be mistaken for another one."""
    for label in shown(name).split("."):
        scripts = {script for script in map(_script, label) if script is not None}
        if len(scripts) > 1 and not any(scripts <= allowed for allowed in _SCRIPT_SETS):
            return f"The label {label} mixes scripts ({', '.join(sorted(scripts)).title()}); it can be mistaken for another name."
        for script, confusable in _CONFUSABLES.items():
            if scripts == {script} and all(character in confusable for character in label if _script(character)):
                return f"The label {label} is written in {script.title()} letters that look Latin; it can be mistaken for another name."
    return None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.strip("[]").removeprefix("ipv6:"))
    except ValueError:
        return text.startswith("[")
    return True


def _ascii(given: str) -> str:
    try:
        # 5891 §4; UTS 46 folds case, width and dots, and is not transitional
        name = given if given.isascii() and "xn--" not in given else idna.encode(given, uts46=True, transitional=False).decode("ascii")
    except (idna.IDNAError, UnicodeError):
        raise NotADomain("The domain name contains invalid characters.") from None
    labels = name.lower().rstrip(".").split(".")
    for label in labels:
        if len(label) > 63:
            raise NotADomain("A label of the domain name is longer than 63 characters.")
        if not _LABEL.fullmatch(label) or (label[2:4] == "--" and not label.startswith("xn--")):
            raise NotADomain(
                "Labels of a domain name may only contain letters, digits and hyphens, and must not begin or end with a hyphen."
            )
    return ".".join(labels)


def _unicode(label: str) -> str:
    if not label.startswith("xn--"):
        return label
    try:
        return idna.ulabel(label)
    except (idna.IDNAError, UnicodeError):
        return label


def _script(character: str) -> str | None:
    """The script of a letter, by the first word of its Unicode name; None for digits, hyphens and marks."""
    if not unicodedata.category(character).startswith("L"):
        return None
    word = unicodedata.name(character, "UNKNOWN").split(" ")[0]
    return {"CJK": "HAN"}.get(word, word)
