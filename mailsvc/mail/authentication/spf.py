"""SPF records (RFC 7208): their terms and macros. Pure. Evaluating a record needs DNS: domains/spf_check."""

from __future__ import annotations

import ipaddress
import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Literal, cast
from urllib.parse import quote

import attrs

Address = IPv4Address | IPv6Address
Qualifier = Literal["+", "-", "~", "?"]

_TERM = re.compile(r"(?P<qualifier>[+\-~?])?(?P<name>all|include|a|mx|ptr|ip4|ip6|exists)(?P<rest>[:/].*)?", re.IGNORECASE)
_MODIFIER = re.compile(r"(?P<name>[a-z][a-z0-9._-]*)=(?P<value>.*)", re.IGNORECASE)  # §4.6.1
_CIDR = re.compile(r"(?P<domain>.*?)(?:/(?P<four>0|[1-9][0-9]?))?(?://(?P<six>0|[1-9][0-9]{0,2}))?", re.DOTALL)
_NETWORK = re.compile(r":(?P<address>[0-9a-f.:]+)(?:/(?P<bits>0|[1-9][0-9]{0,2}))?", re.IGNORECASE)  # §5.6: no netmask, no scope
_MACRO = re.compile(
    r"%(?:\{(?P<letter>[slodiphcrtv])(?P<digits>[0-9]*)(?P<reverse>r?)(?P<delimiters>[.\-+,/_=]*)\}|(?P<escape>[%_\-])|)", re.IGNORECASE
)
LONGEST = 8192  # characters of a record; §3.4 recommends what fits into a UDP answer
LONGEST_TERM = 512  # characters, including macros
COUNTED = frozenset({"include", "a", "mx", "ptr", "exists", "redirect"})  # §4.6.4: these query DNS


class SpfError(ValueError):
    """The record is invalid: a permanent error (§2.6.7). The text is a phrase that says why."""


@attrs.frozen
class Mechanism:
    """A mechanism. `domain` still contains macros; if it is empty, the domain that is checked is meant."""

    name: str
    qualifier: Qualifier
    domain: str = ""
    network: IPv4Network | IPv6Network | None = None
    four: int = 32
    six: int = 128


@attrs.frozen
class Record:
    """The mechanisms in their order, and the domain of `redirect=`."""

    mechanisms: tuple[Mechanism, ...]
    redirect: str | None = None


@attrs.frozen
class CheckHost:
    """The arguments of check_host() (§4.1), and the values of macros (§7.2)."""

    address: Address
    sender: str  # local@domain
    helo: str = "unknown"


def is_spf(text: str) -> bool:
    """Whether the version is exactly spf1 (§4.5)."""
    return text.lower() == "v=spf1" or text.lower().startswith("v=spf1 ")


def parse(text: str) -> Record:
    """Parses a TXT record that `is_spf` accepts. Raises SpfError: one invalid term makes the record invalid (§4.6)."""
    if len(text) > LONGEST:
        raise SpfError(f"the record is longer than {LONGEST} characters")
    mechanisms: list[Mechanism] = []
    modifiers: dict[str, str] = {}
    for term in text[len("v=spf1") :].split(" "):
        if not term:
            continue
        if len(term) > LONGEST_TERM:
            raise SpfError(f"one of its terms is longer than {LONGEST_TERM} characters")
        if not all("!" <= character <= "~" for character in term):  # §7.1: visible ASCII
            raise SpfError(f"{term!r} has a character that is not allowed")
        found = _TERM.fullmatch(term)
        if found is not None:
            mechanisms.append(_mechanism(found, term))
            continue
        modifier = _MODIFIER.fullmatch(term)
        if modifier is None:
            raise SpfError(f"{term!r} is not a valid SPF term")
        name, value = modifier["name"].lower(), modifier["value"]
        if name not in ("redirect", "exp"):
            _check_macros(value, term)  # §6: ignored, but its syntax counts
            continue
        if name in modifiers:
            raise SpfError(f"{name}= is repeated")  # §6: at most once
        _check_domain(value, term)
        modifiers[name] = value
    if any(mechanism.name == "all" for mechanism in mechanisms):
        modifiers.pop("redirect", None)  # §6.1
    return Record(tuple(mechanisms), modifiers.get("redirect"))


def _mechanism(found: re.Match[str], term: str) -> Mechanism:
    name, rest = found["name"].lower(), found["rest"] or ""
    qualifier = cast(Qualifier, found["qualifier"] or "+")
    if name in ("ip4", "ip6"):
        return Mechanism(name, qualifier, network=_network(name, rest, term))
    if name == "all" and rest:
        raise SpfError(f"{term!r} has a value, but all takes none")
    four, six, domain = 32, 128, rest
    if name in ("a", "mx"):
        cidr = _CIDR.fullmatch(rest)
        assert cidr is not None
        domain, four, six = cidr["domain"], int(cidr["four"] or 32), int(cidr["six"] or 128)
        if four > 32 or six > 128:
            raise SpfError(f"{term!r} has an invalid prefix length")
    if domain.startswith(":"):
        _check_domain(domain[1:], term)
    elif domain:
        raise SpfError(f"{term!r} is not a valid {name} mechanism")
    elif name in ("include", "exists"):
        raise SpfError(f"{term!r} has no domain")
    return Mechanism(name, qualifier, domain[1:], four=four, six=six)


def _network(name: str, rest: str, term: str) -> IPv4Network | IPv6Network:
    found = _NETWORK.fullmatch(rest)
    if found is None:
        raise SpfError(f"{term!r} has no valid address after its colon")
    bits = found["bits"] or (32 if name == "ip4" else 128)
    try:
        return (IPv4Network if name == "ip4" else IPv6Network)(f"{found['address']}/{bits}", strict=False)
    except ValueError:
        raise SpfError(f"{term!r} has no valid address after its colon") from None


def _check_domain(text: str, term: str) -> None:
    """A domain ends in a macro or in a top-level label: letters, digits and hyphens, not only digits (§7.1, `domain-spec`)."""
    if _check_macros(text, term) == len(text) > 0:
        return
    _, dot, label = text.removesuffix(".").rpartition(".")
    hyphenated = "-" in label[1:-1] and not label.startswith("-") and not label.endswith("-")
    if not dot or not label.replace("-", "").isalnum() or ("-" in label and not hyphenated) or label.isdigit():
        raise SpfError(f"{term!r} has no complete domain name")


def _check_macros(text: str, term: str) -> int:
    """Returns where the last macro ends. Macros that are only for explanations are not allowed (§7.2)."""
    end = 0
    for found in _MACRO.finditer(text):
        only_explains = (found["letter"] or "").lower() in ("c", "r", "t")
        if found.group() == "%" or (found["digits"] and int(found["digits"]) == 0) or only_explains:
            raise SpfError(f"{term!r} has a macro that is not allowed there")  # §7.1, §7.2
        end = found.end()
    return end


def expand(text: str, domain: str, check: CheckHost) -> str:
    """Replaces the macros in a domain (§7.3), and shortens it from the left to 253 characters (§7.3)."""
    local, _, sending = check.sender.rpartition("@")
    address = check.address
    dotted = str(address) if isinstance(address, IPv4Address) else ".".join(address.exploded.replace(":", ""))
    values = {
        "s": check.sender,
        "l": local or "postmaster",
        "o": sending,
        "d": domain,
        "i": dotted,
        "p": "unknown",  # §7.3: should not be used, and costs lookups
        "v": "in-addr" if isinstance(address, IPv4Address) else "ip6",
        "h": check.helo,
    }

    def one(found: re.Match[str]) -> str:
        if found["escape"]:
            return {"%": "%", "_": " ", "-": "%20"}[found["escape"]]
        parts = re.split(f"[{re.escape(found['delimiters'] or '.')}]", values[found["letter"].lower()])
        if found["reverse"]:
            parts.reverse()
        if found["digits"]:
            parts = parts[-int(found["digits"]) :]
        text = ".".join(parts)
        return quote(text, safe="") if found["letter"].isupper() else text

    name = _MACRO.sub(one, text).rstrip(".")
    while len(name) > 253 and "." in name:
        name = name.partition(".")[2]
    return name


def within(address: Address, candidates: tuple[str, ...], four: int, six: int) -> bool:
    """Whether `address` is in the network of a candidate (§5.3) of the same address family (§5)."""
    bits = four if isinstance(address, IPv4Address) else six
    return any(
        ip_.version == address.version and address in ipaddress.ip_network((ip_, bits), strict=False)
        for ip_ in map(ipaddress.ip_address, candidates)
    )
