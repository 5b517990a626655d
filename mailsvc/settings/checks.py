"""Checks of single settings. Each returns what was expected, or None if the value is valid. schema.py assigns them to settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from ipaddress import ip_network

from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.net import address_guard

ROLES = ("http", "smtp", "delivery", "ledger", "webhooks", "domains")
RELAY_PORTS = ("25", "587", "2587", "465", "2465")
_WIDEST = {4: 8, 6: 32}  # prefix lengths: a wider network would include addresses of others
_IPV4 = [ip_network("::ffff:0:0/96"), ip_network("64:ff9b::/96")]  # IPv4 addresses written as IPv6
_ID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def at_least(lowest: float) -> Callable[[float], str | None]:
    return lambda value: None if value >= lowest else f"expected at least {lowest}"


def between(lowest: float, highest: float) -> Callable[[float], str | None]:
    return lambda value: None if lowest <= value <= highest else f"expected {lowest} to {highest}"


def one_of(*names: str) -> Callable[[str], str | None]:
    return lambda value: None if value in names else f"expected one of: {', '.join(names)}"


def cell(value: str) -> str | None:
    good = re.fullmatch(r"[a-z][a-z0-9_]{0,39}", value) and not value.startswith(("pg_", "citus")) and not value.endswith("_direct")
    return None if good and value != "public" else "expected a name of a-z, 0-9 and _, such as us_1"


def roles(value: tuple[str, ...]) -> str | None:
    return None if value and set(value) <= set(ROLES) else f"expected one or more of: {', '.join(ROLES)}"


def base_url(value: str) -> str | None:
    good = re.fullmatch(r"https?://[^/\s?#]+", value)  # the links of pages begin at the root
    return None if good else "expected a URL without a path and without a trailing slash, such as https://api.example.com"


def database_url(value: str) -> str | None:
    from mailsvc.store.postgres.cells import is_dsn  # imported late: commands without a database do not need the driver

    wrong = "expected a URL such as postgresql://mailsvc@db.example.com/mailsvc; in a password, write % as %25, @ as %40 and / as %2F"
    return None if is_dsn(value) else wrong


def listen(value: tuple[str, ...]) -> str | None:
    return None if all(re.match(r"[a-z0-9]+:", one) for one in value) else 'expected endpoints such as "tcp:8025:interface=127.0.0.1"'


def watched(value: tuple[str, ...]) -> str | None:
    loopback = re.compile(r"tcp6?:.*:interface=(127\.0\.0\.1|\\:\\:1|localhost)(:|$)")
    good = all(text.startswith("unix:/") or loopback.match(text) for text in value)
    return None if good else 'expected endpoints "unix:/PATH" or "tcp:PORT:interface=127.0.0.1"'


def ports(value: Mapping[str, str]) -> str | None:
    good = all(number in RELAY_PORTS and text.split() and listen(tuple(text.split())) is None for number, text in value.items())
    return None if good else f'expected endpoints such as "tcp:587" for the ports {", ".join(RELAY_PORTS)}'


def port_numbers(value: tuple[int, ...]) -> str | None:
    return None if all(1 <= number <= 65535 for number in value) else "expected ports from 1 to 65535"


def word(value: str) -> str | None:
    return None if value and value.isprintable() and value == value.strip() else "expected a name without spaces around it"


def schedule(value: tuple[float, ...]) -> str | None:
    return None if value and min(value) >= 1 else "expected one or more durations in seconds, each at least 1"


def endings(value: tuple[str, ...]) -> str | None:
    good = all(re.fullmatch(r"[a-z0-9]{1,20}", text) for text in value)
    return None if good else 'expected lowercase file extensions without a dot, such as "exe"'


def host(value: str) -> str | None:
    return None if re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]", value) else "expected a host name"


def address(value: str) -> str | None:
    return _mailbox(value) if re.fullmatch(r"[^@\s]+@[^@\s]+", value) else "expected an email address"


def _mailbox(value: str) -> str | None:
    try:
        parse_mailbox(value)
    except AddressError as error:
        return f"expected an email address: {str(error).rstrip('.')}"
    return None


def nameservers(value: tuple[str, ...]) -> str | None:
    from mailsvc.net.dns import configured  # imported late: it takes as long as all the rest of reading settings

    try:
        configured(value)
    except ValueError as error:
        return f"expected IP addresses, such as 127.0.0.1 or 127.0.0.1:5353: {error}"
    return None


def networks(value: tuple[str, ...]) -> str | None:
    try:
        address_guard.networks(value)
    except ValueError as error:
        return f"expected addresses or networks: {error}"
    return None


def trusted_networks(value: Mapping[str, str]) -> str | None:
    for text, key in value.items():
        try:
            network = ip_network(text)
        except ValueError as error:
            return f"expected networks such as 10.1.0.0/16: {error}"
        if network.prefixlen < _WIDEST[network.version]:
            return f"expected networks no wider than /8 (IPv4) or /32 (IPv6); {text} is wider"
        if network.version == 6 and (network.is_link_local or any(network.overlaps(each) for each in _IPV4)):
            return f"expected IPv6 networks that are neither link-local nor contain IPv4 addresses, not {text}"
        if not re.fullmatch(_ID, key):  # not shown: it may be the key itself
            return f"expected the ID of an API key for {text}, as listed by `mailsvc key list`"
    return None


def sender(value: str) -> str | None:
    good = re.fullmatch(r"([^<>@]+ <[^<>@\s]+@[^<>@\s]+>|[^<>@\s]+@[^<>@\s]+)", value)
    return _mailbox(value) if good else "expected an address such as mailsvc <notices@example.com>"


def routes(value: Mapping[str, str]) -> str | None:
    wrong = [target for target in value.values() if not re.fullmatch(r"smtp://(\[[0-9A-Fa-f:]+\]|[^\s:/\[\]@*]+)(:\d{1,5})?", target)]
    return f'expected targets such as "smtp://127.0.0.1:2526", not {wrong[0]!r}' if wrong else None
