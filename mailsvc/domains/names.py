"""Names of sending domains: what may be one, how it is kept (A-labels), shown (U-labels) and written below its zone. Pure."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Collection
from functools import cache

import attrs
import idna
from publicsuffixlist import PublicSuffixList

LONGEST = 253  # characters; 1035 §2.3.4 says 255 octets, with the length octets and the root's
LONGEST_FOR_US = 189  # below it stand our longest labels: a return path, or a selector and _domainkey

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# 6761 §6, 7686 §2, 8375: names that never are in the public DNS. Names for documentation and tests may be tried.
_NEVER = frozenset({"localhost", "local", "invalid", "onion", "arpa", "internal"})
RETURN_PATH = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", re.IGNORECASE)

# Letters of Latin that others look like: the whole of a label of theirs can pass for Latin (UTS 39 §4, the letters that fonts draw alike).
_TWINS = {
    "CYRILLIC": frozenset("асеорхуіјѕһԁԛԝѵьӏ"),
    "GREEK": frozenset("οανικρτυχ"),
    "ARMENIAN": frozenset("օսհոց"),
}
_TOGETHER = (  # scripts that one language writes together (UTS 39 §5.2, highly restrictive)
    frozenset({"LATIN", "HAN", "HIRAGANA", "KATAKANA"}),
    frozenset({"LATIN", "HAN", "BOPOMOFO"}),
    frozenset({"LATIN", "HAN", "HANGUL"}),
)


class NotADomain(ValueError):
    """Not a name to send from; the text is a sentence for whoever gave it."""


@attrs.frozen
class Name:
    """`ascii` is what is stored and looked up, `shown` what people read."""

    ascii: str
    shown: str
    warning: str | None = None


@cache
def suffixes() -> PublicSuffixList:
    return PublicSuffixList(accept_unknown=True)


def parse(text: str, own: Collection[str] = ()) -> Name:
    """The name in `text`, or NotADomain. `own` are the operator's names: nobody sends from them or below."""
    given = text.strip().rstrip(".").lower()
    if not given:
        raise NotADomain("The domain name is empty.")
    if len(given) > LONGEST:
        raise NotADomain(f"The domain name is longer than {LONGEST} characters.")
    if "@" in given or "/" in given or (":" in given.strip("[]") and not _is_address(given)):
        raise NotADomain("Give the domain alone, such as example.com, without an address or a link around it.")
    if _is_address(given):
        raise NotADomain("An IP address is no domain to send from; use a domain name such as example.com.")
    name = _ascii(given)
    labels = name.split(".")
    if len(labels) < 2:
        raise NotADomain("The domain name needs at least two labels, such as example.com.")
    if labels[-1] in _NEVER or labels[-1].isdigit():
        raise NotADomain(f"Names that end in .{labels[-1]} are not in the public DNS.")
    if len(name) > LONGEST_FOR_US:
        raise NotADomain(f"The domain name is longer than {LONGEST_FOR_US} characters, which leaves no room for the names below it.")
    if registrable(name) is None:
        raise NotADomain(f"{name} is a public suffix, below which others register their domains; add a domain below it.")
    for ours in own:
        if name == ours or name.endswith(f".{ours}"):
            raise NotADomain(f"{name} belongs to this service.")
    return Name(name, shown(name), look_alike(name))


def registrable(name: str) -> str | None:
    """The domain that somebody registered, in or above which `name` is; None for a public suffix."""
    found: str | None = suffixes().privatesuffix(name)
    return found


def relative(name: str, domain: str) -> str:
    """`name` as DNS editors want it: without the registrable domain; `@` for that itself."""
    zone = registrable(domain) or domain
    return "@" if name == zone else name.removesuffix(f".{zone}")


def shown(name: str) -> str:
    """With U-labels (5890 §2.3.2.1); a label that decodes to nothing valid stays as it is."""
    return ".".join(_unicode(label) for label in name.split("."))


def look_alike(name: str) -> str | None:
    """A warning when a name is written so that it can pass for another one."""
    for label in shown(name).split("."):
        scripts = {script for script in map(_script, label) if script is not None}
        if len(scripts) > 1 and not any(scripts <= together for together in _TOGETHER):
            return f"The label {label} mixes scripts ({', '.join(sorted(scripts)).title()}); it can be mistaken for another name."
        for script, twins in _TWINS.items():
            if scripts == {script} and all(character in twins for character in label if _script(character)):
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
        raise NotADomain("The domain name has characters that a domain name cannot have.") from None
    labels = name.lower().rstrip(".").split(".")
    for label in labels:
        if len(label) > 63:
            raise NotADomain("A label of the domain name is longer than 63 characters.")
        if not _LABEL.fullmatch(label) or (label[2:4] == "--" and not label.startswith("xn--")):
            raise NotADomain("The labels of a domain name have letters, digits and hyphens only, with a hyphen neither first nor last.")
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
