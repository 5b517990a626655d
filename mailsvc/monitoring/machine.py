"""Checks this machine, for `mailsvc setup` and `mailsvc doctor`: disk, memory, open files, clock, and who has port 25.

What is measured is passed in, so that the checks themselves use neither files nor the network.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs

from mailsvc.monitoring.doctor import Finding
from mailsvc.settings.schema import Settings
from mailsvc.units import size

MEMORY = 1 << 30  # bytes; below this, Postgres and mailsvc on one machine soon have too little
DISK = 10 << 30  # bytes
DISK_LEAST = 1 << 30  # bytes; below this, Postgres soon stops accepting writes
_CGROUP = Path("/sys/fs/cgroup/memory.max")
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronized
_TIMEX = 512  # bytes; more than struct timex has


@attrs.frozen
class Machine:
    """`folder`: where the data is; `synchronized`: None if the system does not say whether its clock is."""

    folder: Path
    free: int
    memory: int
    files: int
    synchronized: bool | None


def measure(folder: Path) -> Machine:
    """Measures this machine. `folder` need not exist yet."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    unlimited = files == resource.RLIM_INFINITY
    return Machine(folder, shutil.disk_usage(there).free, _memory(), 1 << 30 if unlimited else files, _synchronized())


def _memory() -> int:
    """That of the machine or of the container, whichever is less."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        given = _CGROUP.read_text().strip()
    except OSError:
        return whole
    return min(whole, int(given)) if given.isdecimal() else whole


def _synchronized() -> bool | None:
    try:
        state = int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX)))  # reads only: no mode is set
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


def findings(machine: Machine, settings: Settings) -> list[Finding]:
    return [_disk(machine), _memory_of(machine), _files(machine, settings), _clock(machine)]


def _disk(machine: Machine) -> Finding:
    text, remedy = f"{size(machine.free)} are free for {machine.folder}.", "Free some space, or use a larger disk."
    if machine.free < DISK_LEAST:
        return Finding("disk", "error", text, remedy)
    return Finding("disk", "ok", text) if machine.free >= DISK else Finding("disk", "warning", text, remedy)


def _memory_of(machine: Machine) -> Finding:
    text = f"There are {size(machine.memory)}."
    if machine.memory >= MEMORY:
        return Finding("memory", "ok", text)
    return Finding("memory", "warning", text, "Use a machine with 1 GB or more, or lower http.in_flight and delivery.memory.")


def _files(machine: Machine, settings: Settings) -> Finding:
    needed = settings.http.connections + settings.smtp.connections + settings.delivery.connections + settings.webhooks.connections + 500
    if machine.files >= needed:
        return Finding("open files", "ok", f"The limit is {machine.files}.")
    text = f"The limit is {machine.files} here; with these settings, mailsvc opens up to {needed}."
    return Finding("open files", "warning", text, "The systemd unit of mailsvc raises it. Without the unit, raise it: `ulimit -n 65536`.")


def _clock(machine: Machine) -> Finding:
    if machine.synchronized:
        return Finding("clock of this machine", "ok", "It is synchronized.")
    text = "Whether it is synchronized is not known." if machine.synchronized is None else "It is not synchronized."
    return Finding("clock of this machine", "warning", text, "Install systemd-timesyncd or chrony. In a container, the host does this.")


async def port25(settings: Settings, banner: Callable[[str, int], Awaitable[tuple[str | None, str]]], running: bool) -> Finding:
    """Checks that no other program has port 25, and says how to test it from outside. `running`: whether mailsvc is known to run."""
    check, host = "incoming port 25", settings.delivery.ehlo_name
    outside = f"Test from another machine whether the firewall lets connections in: `nc -v {host} 25`."
    if "smtp" not in settings.roles or "25" not in settings.smtp.listen:
        return Finding(check, "ok", "Not needed: this process does not listen on it.")
    problem, greeting = await banner("127.0.0.1", 25)
    if not greeting and not running:
        return Finding(check, "ok", "It is free.", outside)
    if f" {host} " in greeting:
        return Finding(check, "ok", "mailsvc listens on it.", outside)
    found = f"Another program listens on it: {greeting!r}." if greeting else f"It {problem}."
    remedy = "Find it with `ss -ltnp 'sport = :25'` and stop it, for example with `systemctl disable --now exim4 postfix`."
    return Finding(check, "error", found, remedy)
