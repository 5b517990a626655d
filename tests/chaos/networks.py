"""A network of hosts on this machine, each a network namespace with an address, and links that can be cut. Needs root and iproute2.

A cut link drops packets in both directions and reports nothing: each side sends them to a hardware address that nobody has. So connections
hang, instead of being refused.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import attrs

NOBODY = "02:00:00:00:00:01"


@attrs.frozen
class Host:
    """`device`: its network interface. `namespace` empty: that of the tests and daemons."""

    address: str
    device: str
    namespace: str = ""

    def ip(self, *words: str) -> None:
        _ip(*(["-n", self.namespace] if self.namespace else []), *words)

    def command(self, uid: int, gid: int) -> list[str]:
        """What comes before a command that runs on this host as this user."""
        return ["ip", "netns", "exec", self.namespace, "setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]


LOOPBACK = Host("127.0.0.1", "lo")


@attrs.frozen
class Network:
    """`here`: this machine, as the hosts see it."""

    here: Host
    hosts: list[Host]


@contextmanager
def network(count: int) -> Iterator[Network]:
    """`count` hosts, and this machine, on one bridge."""
    name, prefix = f"ms{os.getpid()}", _unused_prefix()
    here = Host(f"{prefix}.1", name)
    with ExitStack() as made:
        _ip("link", "add", name, "type", "bridge")
        made.callback(_ip, "link", "del", name)
        here.ip("addr", "add", f"{here.address}/24", "dev", name)
        here.ip("link", "set", name, "up")
        hosts = [Host(f"{prefix}.{number}", "eth0", f"{name}-{number}") for number in range(2, count + 2)]
        for host in hosts:
            _ip("netns", "add", host.namespace)
            made.callback(_ip, "netns", "del", host.namespace)
            host.ip("link", "set", "lo", "up")
            _ip("link", "add", host.namespace, "type", "veth", "peer", "name", host.device, "netns", host.namespace)
            made.callback(_ip, "link", "del", host.namespace)  # at once: that of the namespace may take a moment
            _ip("link", "set", host.namespace, "master", name, "up")
            host.ip("addr", "add", f"{host.address}/24", "dev", host.device)
            host.ip("link", "set", host.device, "up")
        yield Network(here, hosts)


@contextmanager
def cut(one: Host, other: Host) -> Iterator[None]:
    """Cuts the link between these two."""
    sides = ((one, other), (other, one))
    for side, far in sides:
        side.ip("neigh", "replace", far.address, "lladdr", NOBODY, "dev", side.device, "nud", "permanent")
    try:
        yield
    finally:
        for side, far in sides:
            side.ip("neigh", "del", far.address, "dev", side.device)


def can_cut() -> bool:
    """Whether networks can be created here."""
    try:
        with network(1):
            return True
    except (OSError, subprocess.SubprocessError):
        return False


def _unused_prefix() -> str:
    """Of the addresses for tests of networks (RFC 2544), 24 bits that no other network here has."""
    routes = _ip("-4", "route", "show")
    return random.choice([prefix for prefix in (f"198.18.{number}" for number in range(256)) if f"{prefix}.0/" not in routes])


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30).stdout
