"""The targets of a DSN: each host with each of its addresses, in the order in which they are tried.

libpq could try them itself, but without a time limit for each: a host that accepts connections and never replies would block the
others. Names are looked up in a thread, because libpq blocks while it asks the resolver.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any

import attrs
from psycopg2 import extensions
from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.threads import deferToThreadPool

from mailsvc.store.postgres.cells import Address
from mailsvc.store.postgres.errors import Unavailable

CONNECT_SECONDS = 10.0  # for one target; a smaller `connect_timeout` in the DSN takes precedence
# A peer that vanished is noticed within 15 s instead of the kernel's two hours: the server by this process, and this process by the server.
# Until then the server keeps the locks of its transaction: in the middle of a pipeline, no time limit of the server's ends it.
SILENCE = {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "1", "tcp_user_timeout": "15000"}
OPTIONS = " ".join(f"-c tcp_{name.removeprefix('tcp_')}={value}" for name, value in SILENCE.items())
_PORT = "5432"

_worked: dict[str, str] = {}  # by DSN: the target that last worked
_redirected: dict[str, Target] = {}  # by DSN: the node of its cell, when it last worked


@attrs.frozen
class Target:
    """`given`: the arguments of the DSN, with one host. `where`: its name in error messages. `redirected`: not a server of the DSN."""

    dsn: str = attrs.field(repr=False)
    where: str
    given: Mapping[str, str] = attrs.field(repr=False)
    seconds: float = CONNECT_SECONDS
    redirected: bool = False

    def remember(self) -> None:
        """It worked: try it first next time."""
        if self.redirected:
            _redirected[self.dsn] = self
        else:
            _worked[self.dsn] = self.where

    def forget(self) -> None:
        """The cell is elsewhere now."""
        _redirected.pop(self.dsn, None)


async def targets(reactor: Any, dsn: str) -> list[Target]:
    """All targets, the one that last worked first. Raises Unavailable if no host has an address."""
    given = {key: str(value) for key, value in extensions.parse_dsn(dsn).items()}
    seconds = _seconds(given.pop("connect_timeout", ""))
    hosts, addresses, ports = (_listed(given.pop(name, "")) for name in ("host", "hostaddr", "port"))
    count = max(len(hosts), len(addresses), 1)
    found: list[Target] = []
    unknown: list[str] = []
    for number in range(count):
        host, address = _nth(hosts, number), _nth(addresses, number)
        port = _nth(ports, number if len(ports) > 1 else 0)  # without one, libpq takes it from the service file or PGPORT
        try:
            known = [address] if address or not _is_name(host) else await _look_up(reactor, host, seconds)
        except Unavailable as error:
            unknown.append(error.reason)
            continue
        found += [_target(dsn, given, host, each, port, seconds) for each in known]
    if not found:
        raise Unavailable("; ".join(unknown))
    found.sort(key=lambda target: target.where != _worked.get(dsn))
    return found if (redirected := _redirected.get(dsn)) is None else [redirected, *found]


async def redirected(reactor: Any, target: Target, address: Address) -> list[Target]:
    """The node that holds the cell, instead of this target."""
    given = {key: value for key, value in target.given.items() if key not in ("host", "hostaddr", "port")}
    known = await _look_up(reactor, address.host, target.seconds) if _is_name(address.host) else [""]
    made = (_target(target.dsn, given, address.host, each, str(address.port), target.seconds) for each in known)
    return [attrs.evolve(each, where=f"the node {each.where}", redirected=True) for each in made]


def bounded(dsn: str) -> str:
    """The DSN for a connection that libpq opens, with the same time limits. What the DSN says itself takes precedence."""
    given = extensions.parse_dsn(dsn)
    options = f"{OPTIONS} {given.get('options', '')}".strip()
    return str(extensions.make_dsn(**{"connect_timeout": f"{CONNECT_SECONDS:.0f}", **SILENCE, **given, "options": options}))


def _target(dsn: str, given: Mapping[str, str], host: str, address: str, port: str, seconds: float) -> Target:
    address_arguments = {key: value for key, value in (("host", host), ("hostaddr", address), ("port", port)) if value}
    return Target(dsn, f"{address or host or 'local'} port {port or _PORT}", {**given, **address_arguments}, seconds)


def _listed(value: str) -> Sequence[str]:
    return value.split(",") if value else ()


def _nth(values: Sequence[str], number: int) -> str:
    return values[number] if number < len(values) else ""


def _seconds(timeout: str) -> float:
    try:
        wanted = float(timeout or 0)
    except ValueError:
        wanted = 0.0
    return min(max(2.0, wanted), CONNECT_SECONDS) if wanted > 0 else CONNECT_SECONDS  # libpq also treats 1 as 2


def _is_name(host: str) -> bool:
    """Whether it must be looked up: not empty, a socket directory or an address."""
    if not host or host.startswith(("/", "@")):
        return False
    try:
        ip_address(host)
    except ValueError:
        return True
    return False


async def _look_up(reactor: Any, host: str, seconds: float) -> list[str]:
    found: Deferred[list[Any]] = deferToThreadPool(reactor, reactor.getThreadPool(), socket.getaddrinfo, host, None, 0, socket.SOCK_STREAM)
    try:
        return list(dict.fromkeys(entry[4][0] for entry in await found.addTimeout(seconds, reactor)))
    except OSError as error:
        raise Unavailable(f"The database host {host} has no address: {error.strerror}") from None
    except TimeoutError:
        raise Unavailable(f"The address of the database host {host} was not found within {seconds:g} s.") from None
