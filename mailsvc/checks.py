"""What a setting's value has to be: each returns what was expected instead, or None. Which setting is checked how: settings.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from mailsvc import guard

ROLES = ("http", "smtp", "delivery", "ledger", "webhooks", "domains")
RELAY_PORTS = ("25", "587", "2587", "465", "2465")


def at_least(lowest: float) -> Callable[[float], str | None]:
    return lambda value: None if value >= lowest else f"expected at least {lowest}"


def between(lowest: float, highest: float) -> Callable[[float], str | None]:
    return lambda value: None if lowest <= value <= highest else f"expected {lowest} to {highest}"


def one_of(*names: str) -> Callable[[str], str | None]:
    return lambda value: None if value in names else f"expected one of: {', '.join(names)}"


def roles(value: tuple[str, ...]) -> str | None:
    return None if value and set(value) <= set(ROLES) else f"expected one or more of: {', '.join(ROLES)}"


def base_url(value: str) -> str | None:
    good = re.fullmatch(r"https?://[^/\s?#]+(/[^\s?#]*[^/\s?#])?", value)
    return None if good else "expected a web address without a slash at its end, such as https://api.example.com"


def listen(value: tuple[str, ...]) -> str | None:
    return None if all(re.match(r"[a-z0-9]+:", one) for one in value) else 'expected endpoints such as "tcp:8025:interface=127.0.0.1"'


def watched(value: tuple[str, ...]) -> str | None:
    loopback = re.compile(r"tcp6?:.*:interface=(127\.0\.0\.1|\\:\\:1|localhost)(:|$)")
    good = all(text.startswith("unix:/") or loopback.match(text) for text in value)
    return None if good else 'expected endpoints "unix:/PATH" or "tcp:PORT:interface=127.0.0.1"'


def ports(value: Mapping[str, str]) -> str | None:
    good = all(number in RELAY_PORTS and text.split() and listen(tuple(text.split())) is None for number, text in value.items())
    return None if good else f'expected endpoints such as "tcp:587" for some of {", ".join(RELAY_PORTS)}'


def schedule(value: tuple[float, ...]) -> str | None:
    return None if value and min(value) >= 1 else "expected one or more numbers of seconds, each at least 1"


def host(value: str) -> str | None:
    return None if re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]", value) else "expected a host name"


def address(value: str) -> str | None:
    return None if re.fullmatch(r"[^@\s]+@[^@\s]+", value) else "expected an email address"


def networks(value: tuple[str, ...]) -> str | None:
    try:
        guard.networks(value)
    except ValueError as error:
        return f"expected addresses or networks: {error}"
    return None


def sender(value: str) -> str | None:
    good = re.fullmatch(r"([^<>@]+ <[^<>@\s]+@[^<>@\s]+>|[^<>@\s]+@[^<>@\s]+)", value)
    return None if good else "expected an address such as mailsvc <notices@example.com>"


def hosts(value: Mapping[str, str]) -> str | None:
    wrong = [name for name in (*value, *value.values()) if host(name)]
    return f'expected hosts by region, such as {{ "us-east-1" = "out.example.com" }}, not {wrong[0]!r}' if wrong else None


def routes(value: Mapping[str, str]) -> str | None:
    wrong = [target for target in value.values() if not re.fullmatch(r"smtp://(\[[0-9A-Fa-f:]+\]|[^\s:/\[\]]+)(:\d{1,5})?", target)]
    return f'expected targets such as "smtp://127.0.0.1:2526", not {wrong[0]!r}' if wrong else None
