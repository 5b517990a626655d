"""Addresses on the web that strangers give us: read strictly, in one spelling, or refused with a phrase that says why. Pure.

What a name leads to is looked up and checked when it is connected to (fetch); what can be seen in the text alone is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from ipaddress import AddressValueError, IPv4Address, ip_address
from urllib.parse import urlsplit

import attrs
import idna

from mailsvc.net.address_guard import Network, refusal

LONGEST = 2048

_UNFIT = re.compile(r"[\x00-\x20\x7f\\%<>\"{}|^`]")  # in a host; letters of other scripts are for IDNA to judge
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f\\<>\"{}|^`]|[^\x00-\x7f]")
_HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*\Z")
_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)\Z")


class BadUrl(Exception):
    """A phrase that goes on after "The URL": why we do not go there."""


@attrs.frozen
class Rules:
    """Where we go on a stranger's word. `ports`: to these alone, when there are any; `clear`: also by http."""

    ports: frozenset[int] = frozenset({80, 443, 8080, 8443})
    clear: bool = False
    allowed: Sequence[Network] = ()
    denied: Sequence[Network] = ()

    def refusal(self, address: str) -> str | None:
        return refusal(address, self.allowed, self.denied)


@attrs.frozen
class Target:
    """Whom to connect to and what to ask for. `host`: a name in A-labels, or an address without brackets."""

    secure: bool
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"

    @property
    def text(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.path}"


def read(text: str, rules: Rules) -> Target:
    """The one meaning of `text`, or BadUrl."""
    if len(text) > LONGEST:
        raise BadUrl(f"must have at most {LONGEST} characters")
    scheme, separator, rest = text.partition("://")
    if not separator or scheme.lower() not in (("http", "https") if rules.clear else ("https",)):
        raise BadUrl("must begin with https://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    following = rest[len(authority) :]
    if _FORBIDDEN.search(following):
        raise BadUrl("has a character that needs to be percent-encoded")
    if "@" in authority:
        raise BadUrl("must not have a user name or password")
    if _UNFIT.search(authority):
        raise BadUrl("has no valid host name")
    try:
        split = urlsplit(f"//{authority}")
        name, port = split.hostname, split.port
    except ValueError:
        raise BadUrl("has no valid host and port") from None
    if not name or authority.endswith(":"):
        raise BadUrl("has no valid host and port")
    secure = scheme.lower() == "https"
    target = Target(secure, _host(name, "[" in authority), port if port is not None else 443 if secure else 80, _path(following))
    _check(target, rules)
    return target


def _host(name: str, bracketed: bool) -> str:
    """A name in A-labels, or an address in its usual spelling; no other spelling of one."""
    if bracketed:
        try:
            if "%" in name:
                raise ValueError
            return str(ip_address(name))
        except ValueError:
            raise BadUrl("has no valid IPv6 address between its brackets") from None
    try:
        host = name.lower() if name.isascii() else idna.encode(name, uts46=True).decode().lower()
    except (idna.IDNAError, UnicodeError):
        raise BadUrl("has no valid host name") from None
    host = host.removesuffix(".")
    if len(host) > 253 or not _HOST.match(host):
        raise BadUrl("has no valid host name")
    if _NUMBER.match(host.rpartition(".")[2]):
        try:
            return str(IPv4Address(host))
        except AddressValueError:
            raise BadUrl("has a number for a host that is no IPv4 address in its usual form") from None
    return host


def _path(following: str) -> str:
    """Without a fragment, which is never sent."""
    asked = following.partition("#")[0]
    return asked if asked.startswith("/") else f"/{asked}"


def _check(target: Target, rules: Rules) -> None:
    if rules.ports and target.port not in rules.ports:
        raise BadUrl(f"must have one of the ports {_listed(rules.ports)}")
    try:
        ip_address(target.host)
    except ValueError:
        local = target.host == "localhost" or target.host.endswith(".localhost")
        why = rules.refusal("127.0.0.1") if local else None
    else:
        why = rules.refusal(target.host)
    if why is not None:
        raise BadUrl(f"leads to an address that may not be connected to: {why}")


def _listed(ports: Collection[int]) -> str:
    return ", ".join(str(port) for port in sorted(ports))
