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
_MACRO = re.compile(
    r"%(?:\{(?P<letter>[slodiphcrtv])(?P<digits>[0-9]*)(?P<reverse>r?)(?P<delimiters>[.\-+,/_=]*)\}|(?P<escape>[%_\-])|)", re.IGNORECASE
)
_NAMED = frozenset({"include", "exists", "ip4", "ip6"})  # mechanisms that require a value
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
class Asked:
    """The mail that is checked: the values of macros (§7.2)."""

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
        found = _TERM.fullmatch(term)
        if found is not None:
            mechanisms.append(_mechanism(found, term))
            continue
        modifier = _MODIFIER.fullmatch(term)
        if modifier is None:
            raise SpfError(f"{term!r} is not a valid SPF term")
        name = modifier["name"].lower()
        if name in ("redirect", "exp"):
            if name in modifiers or not modifier["value"]:  # §6: at most once
                raise SpfError(f"{name}= is repeated or has no domain")
            _check_macros(modifier["value"])
            modifiers[name] = modifier["value"]
    if any(mechanism.name == "all" for mechanism in mechanisms):
        modifiers.pop("redirect", None)  # §6.1
    return Record(tuple(mechanisms), modifiers.get("redirect"))


def _mechanism(found: re.Match[str], term: str) -> Mechanism:
    name, rest = found["name"].lower(), found["rest"] or ""
    qualifier = cast(Qualifier, found["qualifier"] or "+")
    value = rest.removeprefix(":")
    if (name in _NAMED and not (rest.startswith(":") and value)) or rest == ":":
        raise SpfError(f"{term!r} has no value after its colon")
    if name in ("ip4", "ip6"):
        return Mechanism(name, qualifier, network=_network(name, value, term))
    if name == "all" and rest:
        raise SpfError(f"{term!r} has a value, but all takes none")
    four, six, domain = 32, 128, value
    if name in ("a", "mx"):
        cidr = _CIDR.fullmatch(rest)
        assert cidr is not None
        domain = cidr["domain"].removeprefix(":")
        four, six = int(cidr["four"] or 32), int(cidr["six"] or 128)
        if four > 32 or six > 128:
            raise SpfError(f"{term!r} has an invalid prefix length")
    if "/" in _MACRO.sub("", domain):
        raise SpfError(f"{term!r} is not a valid {name} mechanism")
    _check_macros(domain)
    return Mechanism(name, qualifier, domain, four=four, six=six)


def _network(name: str, value: str, term: str) -> IPv4Network | IPv6Network:
    try:
        return IPv4Network(value, strict=False) if name == "ip4" else IPv6Network(value, strict=False)
    except ValueError:
        raise SpfError(f"{term!r} has no valid address after its colon") from None


def _check_macros(text: str) -> None:
    for found in _MACRO.finditer(text):
        if found.group() == "%" or (found["digits"] and int(found["digits"]) == 0) or (found["letter"] or "").lower() in ("c", "r", "t"):
            raise SpfError(f"{text!r} has a macro that is not allowed there")  # §7.1, §7.2


def expand(text: str, domain: str, asked: Asked) -> str:
    """Replaces the macros in a domain (§7.3), and shortens it from the left to 253 characters (§7.3)."""
    local, _, sending = asked.sender.rpartition("@")
    address = asked.address
    dotted = str(address) if isinstance(address, IPv4Address) else ".".join(address.exploded.replace(":", ""))
    values = {
        "s": asked.sender,
        "l": local or "postmaster",
        "o": sending,
        "d": domain,
        "i": dotted,
        "p": "unknown",  # §7.3: should not be used, and costs lookups
        "v": "in-addr" if isinstance(address, IPv4Address) else "ip6",
        "h": asked.helo,
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
