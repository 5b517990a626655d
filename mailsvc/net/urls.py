"""Parses URLs from customers strictly: normalizes them, or refuses them with a reason. Pure.

Only the text is checked here. The addresses of a host are checked when connecting (fetch).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from ipaddress import AddressValueError, IPv4Address, ip_address
from urllib.parse import urlsplit

import attrs
import idna

from mailsvc.net.address_guard import Network, refusal

MAX_LENGTH = 2048

_NOT_IN_HOST = re.compile(r"[\x00-\x20\x7f\\%<>\"{}|^`]")  # IDNA checks non-ASCII letters
_NOT_IN_PATH = re.compile(r"[\x00-\x20\x7f\\<>\"{}|^`]|[^\x00-\x7f]")
_HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*\Z")
_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)\Z")


class BadUrl(Exception):
    """Why a URL is refused: a phrase that continues "The URL"."""


@attrs.frozen
class Rules:
    """Which URLs are allowed. `ports`: only these; empty: any. `clear`: also http."""

    ports: frozenset[int] = frozenset({80, 443, 8080, 8443})
    clear: bool = False
    allowed: Sequence[Network] = ()
    denied: Sequence[Network] = ()

    def refusal(self, address: str) -> str | None:
        return refusal(address, self.allowed, self.denied)


@attrs.frozen
class Target:
    """A parsed URL. `host` is a name in A-labels, or an IP address without brackets."""

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
    """Parses a URL. Raises BadUrl."""
    if len(text) > MAX_LENGTH:
        raise BadUrl(f"must have at most {MAX_LENGTH} characters")
    scheme, separator, rest = text.partition("://")
    if not separator or scheme.lower() not in (("http", "https") if rules.clear else ("https",)):
        raise BadUrl("must begin with https://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    following = rest[len(authority) :]
    if _NOT_IN_PATH.search(following):
        raise BadUrl("has a character that must be percent-encoded")
    if "@" in authority:
        raise BadUrl("must not have a user name or password")
    if _NOT_IN_HOST.search(authority):
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
    """Normalizes a host: a name in A-labels or an IP address. Unusual spellings of addresses are refused."""
    if bracketed:
        try:
            if "%" in name:
                raise ValueError
            return str(ip_address(name))
        except ValueError:
            raise BadUrl("has no valid IPv6 address in brackets") from None
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
            raise BadUrl("has a numeric host that is not an IPv4 address in the usual form") from None
    return host


def _path(following: str) -> str:
    """Drops the fragment, which is never sent."""
    path = following.partition("#")[0]
    return path if path.startswith("/") else f"/{path}"


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
        raise BadUrl(f"has an address that may not be connected to: {why}")


def _listed(ports: Collection[int]) -> str:
    return ", ".join(str(port) for port in sorted(ports))
