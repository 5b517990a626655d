"""Runs hostile inputs against a daemon, and measures how they affect other clients.

For each input, it measures the slowest response of `/healthz` (requested every 20 ms over a persistent connection, by a separate
process), the slowest mail of another account, and the peak of the daemon's memory above its size at rest. The input of each family after
which the daemon grew most is repeated: how much larger is the daemon after the tenth time than after the first?

The noise of the machine is measured in the same way, without input, and added to the limits.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import attrs
import psycopg2

from mailsvc.sandbox.welcome import ACCOUNT
from tests.end_to_end.rig import PROJECT, Daemon, free_port
from tests.end_to_end.visitor import Visitor
from tests.hostile import audience, bodies, mails, pictures, wires
from tests.hostile.inputs import FAMILIES, SIZES, Family
from tests.hostile.servers import STAGES, Endpoint, Exchanger, Nameserver
from tests.hostile.targets import Targets

assert audience and bodies and mails and pictures and wires  # importing them registers their families

HEALTH_MOST = 0.25
MAIL_MOST = 1.0
MEMORY_MOST = 2 * 256 * 1024 * 1024  # twice http.in_flight
GROWTH_MOST = 20 * 1024 * 1024
COLLECTED = 12.0  # seconds in which the daemon collects garbage twice: reference cycles of a failed request are not a leak
NOISE_MOST = 0.75  # seconds; noise above this is ignored
# Seconds of CPU for an input, plus those of its family for each MB; more suggests that the time is not linear. Both are of a machine that
# takes PACE seconds of CPU for the work in `pace`. A slower one gets more time, a faster one does not get less.
CPU_MOST = 1.0
PACE = 0.03
TARGET_MOST = 60.0  # seconds for one input
JUST_BEFORE = 0.05  # seconds before an input in which an observation that it affects can begin
TIMES = 10
ADDRESSES = 240  # of mail exchangers
WATCHED = "mailbox.example"
_ROWS = "someone@watch.example \n" * 3000
_ADDRESS = re.compile(r"[a-z]+@[a-z.]+$")


@attrs.define
class Figure:
    """The measurements of one input, at one size."""

    family: Family
    name: str
    size: str
    seconds: float = 0.0
    cpu: float = 0.0
    length: int = 0  # bytes
    health: float = 0.0
    mail: float = 0.0
    memory: int = 0
    growth: int | None = None
    grown: int = 0
    windows: list[tuple[float, float]] = attrs.field(factory=list)

    @property
    def called(self) -> str:
        return f"{self.family.name} / {self.name} ({self.family.target}, {self.size})"


class Watch:
    """The watching process and its observations."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.health: list[tuple[float, float | None]] = []
        self.mail: list[tuple[float, float | None]] = []
        self.late: list[tuple[float, float]] = []
        self.senders: dict[str, str] = {}
        self.reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            what, when, took = json.loads(line)
            if what == "from":
                self.senders[when] = took
            else:
                getattr(self, what).append((when, took))

    async def past(self, moment: float, kind: str = "health", most: float = 90.0) -> None:
        """Waits for a completed observation that began after `moment`."""
        seen = getattr(self, kind)
        deadline = time.monotonic() + most
        while not seen or seen[-1][0] < moment:
            assert self.process.returncode is None, "the watching process ended"
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(0.01)

    def worst(self, kind: str, begun: float, ended: float) -> float:
        """Returns the longest observation that began in this period, or just before it, without delays of the watching process itself."""
        seen = [(when, took) for when, took in self._of(kind) if begun - JUST_BEFORE <= when <= ended and when + took >= begun]
        return max([max(0.0, took - self._lateness(when, took)) for when, took in seen], default=0.0)

    def _of(self, kind: str) -> list[tuple[float, float]]:
        """Returns the latest observations. A failed one counts as 60 seconds."""
        return [(when, 60.0 if took is None else took) for when, took in getattr(self, kind)[-20_000:]]

    def _lateness(self, when: float, took: float) -> float:
        return max([late for due, late in self.late[-200:] if when <= due + late <= when + took + 0.1], default=0.0)

    async def end(self) -> None:
        self.process.kill()
        await self.process.wait()
        self.reading.cancel()
        with suppress(asyncio.CancelledError):
            await self.reading


@attrs.define
class Ground:
    """A daemon under attack, and the measurements."""

    daemon: Daemon
    targets: Targets
    watch: Watch
    resting: int = 0
    noise: float = 0.0
    mail_noise: float = 0.0
    usual: float = 0.0  # the share of a core that the daemon uses without input
    slower: float = 1.0  # how many times as much CPU this machine takes as the one of the limits
    figures: list[Figure] = attrs.field(factory=list)

    async def calibrate(self, seconds: float) -> None:
        """Measures the delays without input. The worst of all calibrations counts."""
        begun = time.monotonic()
        used = self.cpu()
        await asyncio.sleep(seconds)
        self.usual = max(self.usual, (self.cpu() - used) / (time.monotonic() - begun)) if seconds >= 1 else self.usual
        await self.watch.past(time.monotonic())
        self.noise = min(NOISE_MOST, max(self.noise, self.watch.worst("health", begun, time.monotonic())))
        self.mail_noise = min(2 * NOISE_MOST, max(self.mail_noise, self.watch.worst("mail", begun, time.monotonic())))
        self.slower = max(self.slower, min(pace() for _ in range(3)) / PACE)

    async def once(self, figure: Figure, data: bytes) -> None:
        """Sends an input once, and adds to its measurements."""
        pids = self._reset_peaks()
        before = sum(_status(pid, "VmRSS") for pid in pids)
        begun, used = time.monotonic(), self.cpu()
        with suppress(TimeoutError, OSError):
            await asyncio.wait_for(self.targets.target(figure.family.target)(data), TARGET_MOST)
        if self.cpu() - used > 0.2:
            await self._idle()
        ended = time.monotonic()
        figure.length = len(data)
        figure.cpu = max(figure.cpu, self.cpu() - used - (ended - begun) * self.usual)
        await self.watch.past(ended)
        figure.windows.append((begun, ended))
        figure.seconds = max(figure.seconds, ended - begun)
        figure.memory = max(figure.memory, sum(_status(pid, "VmHWM") for pid in self._processes()) - self.resting)
        figure.grown = self.size() - before
        assert self.daemon.process is not None and self.daemon.process.poll() is None, f"{figure.called} ended the daemon"

    async def _idle(self) -> None:
        """Waits until the daemon has finished with the last input, or for TARGET_MOST seconds."""
        deadline = time.monotonic() + TARGET_MOST
        while time.monotonic() < deadline:
            used, begun = self.targets.cpu(), time.monotonic()
            await asyncio.sleep(0.03)
            if self.targets.cpu() - used < 0.5 * (time.monotonic() - begun):
                return

    def cpu(self) -> float:
        assert self.daemon.process is not None
        return _cpu(self.daemon.process.pid)

    def size(self) -> int:
        return sum(_status(pid, "VmRSS") for pid in self._processes())

    def _processes(self) -> list[int]:
        """Returns the IDs of the daemon and its descendants."""
        assert self.daemon.process is not None
        found = [self.daemon.process.pid]
        for pid in found:
            with suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    found += [int(child) for child in (task / "children").read_text().split()]
        return found

    def _reset_peaks(self) -> list[int]:
        pids = self._processes()
        for pid in pids:
            with suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")
        return pids


def pace() -> float:
    """Returns the seconds of CPU for a fixed amount of what the daemon does with strangers' text: splitting, matching, objects, JSON."""
    used = time.thread_time()
    for _ in range(10):
        rows = [{"line": number, "text": row.strip(), "at": row.find("@")} for number, row in enumerate(_ROWS.split("\n"))]
        found = sum(1 for row in rows if _ADDRESS.match(str(row["text"])))
        assert found == len(json.loads(json.dumps(rows))) - 1
    return time.thread_time() - used


def _waiting(database: str) -> Callable[[str], bool]:
    connection = psycopg2.connect(database)
    connection.autocommit = True
    cursor = connection.cursor()

    def waiting(email_id: str) -> bool:
        cursor.execute("SELECT count(*) FROM queue WHERE email_id = %s AND attempts = 0 AND status <> 'scheduled'", (email_id,))
        return bool(cursor.fetchone()[0])

    return waiting


def _cpu(pid: int, fields: int = 1) -> float:
    """Returns the CPU seconds of a process; with two fields, plus the seconds that it waited for a CPU."""
    with suppress(OSError):
        stats = [(task / "schedstat").read_text().split()[:fields] for task in Path(f"/proc/{pid}/task").iterdir()]
        return sum(int(field) for stat in stats for field in stat) / 1e9
    return 0.0


def _status(pid: int, name: str) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    return 0


@asynccontextmanager
async def ground(folder: Path, database: str) -> AsyncIterator[Ground]:
    endpoint, exchanger, names = Endpoint(), Exchanger(ADDRESSES), Nameserver()
    endpoint_port, exchanger_port, nameserver = await endpoint.start(), await exchanger.start(), await names.start()
    smtp_port, sandbox_port = free_port(), free_port()
    daemon = Daemon(folder, database, _settings(folder, exchanger, exchanger_port, smtp_port, sandbox_port, nameserver))
    await asyncio.to_thread(daemon.start)
    try:
        key = await asyncio.to_thread(_another_account, daemon)
        facts = daemon.facts
        visitor = Visitor(daemon)
        await asyncio.to_thread(visitor.sign_in, facts["sign_in"])
        targets = Targets(
            daemon.port,
            facts["smtp"],
            facts["api_key"],
            facts["smtp_username"],
            visitor,
            endpoint,
            endpoint_port,
            exchanger,
            names,
            lambda: _cpu(daemon.process.pid, 2) if daemon.process else 0.0,
            _waiting(database),
        )
        assert daemon.process is not None
        arguments = [str(daemon.port), str(daemon.process.pid), str(smtp_port), key, f"w@{WATCHED}"]
        watching = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.hostile.watch", *arguments, stdout=asyncio.subprocess.PIPE, cwd=PROJECT, limit=1 << 20
        )
        watch = Watch(watching)
        try:
            await watch.past(time.monotonic())
            found = Ground(daemon, targets, watch)
            await targets.track()
            await targets.http(_first_email(targets))
            while "x@watch.example" not in watch.senders:
                await asyncio.sleep(0.02)
            targets.return_path = watch.senders["x@watch.example"]
            await found.calibrate(2.0)
            found.resting = found.size()
            yield found
        finally:
            await watch.end()
    finally:
        process = daemon.process
        try:
            if process is not None and process.poll() is None:
                await asyncio.to_thread(daemon.stop)
        finally:
            if process is not None and process.poll() is None:  # an input prevents the shutdown
                process.kill()
                process.wait()


def _first_email(targets: Targets) -> bytes:
    return bodies.post("/emails", bodies.email())


def _settings(
    folder: Path, exchanger: Exchanger, exchanger_port: int, smtp_port: int, sandbox_port: int, nameserver: str
) -> dict[str, dict[str, object]]:
    routes = {f"mx{n}.example": f"smtp://{host}:{exchanger_port}" for n, host in enumerate(exchanger.hosts)}
    routes |= {"watch.example": f"smtp://127.0.0.1:{smtp_port}", "sandbox.example": f"smtp://127.0.0.1:{sandbox_port}"}
    listen = {number: f"tcp:{free_port()}:interface=127.0.0.1" for number in ("25", "465")}
    return {
        "smtp": {"listen": listen, "self_signed": str(folder / "tls"), "login_failures": 1000, "tarpit": 0},
        "sandbox": {"listen": [f"tcp:{sandbox_port}:interface=127.0.0.1"]},
        "delivery": {"routes": routes, "nameservers": [nameserver], "retry": [2, 2, 2], "hold_first": 1, "hold_longest": 1, "expire": 60},
        "fetch": {"ports": [], "allow_http": True, "allowed_networks": ["127.0.0.0/8"]},
        "dashboard": {"sign_up": True},
        "domains": {"per_account": 100_000, "unverified": 100_000, "adds_per_hour": 100_000},
        "webhooks": {"timeout": 5, "schedule": [5]},
        "": {"sender": "mailsvc <no-reply@mailsvc.example>"},
    }


def _another_account(daemon: Daemon) -> str:
    """Creates the account whose mail must not be delayed. Returns its API key."""
    account = daemon.command("account", "create", "Watched", "--trusted").strip()
    for name, owner in ((WATCHED, account), (bodies.DOMAIN, ACCOUNT)):
        daemon.command("domain", "add", name, "--account", owner)
        daemon.command("domain", "trust", name, "--account", owner)
    return daemon.command("key", "create", "--account", account, "--name", "watch").strip().splitlines()[-1]


# --- runs and verdicts ----------------------------------------------------------------------------------------------------


async def run_family(ground: Ground, family: Family, size: str, times: int = TIMES, only: str = "") -> list[Figure]:
    """Sends all inputs of a family at one size. One that seems slow is sent twice more, and the median counts."""
    figures: list[Figure] = []
    most_grown: tuple[int, str] = (0, "")
    await ground.watch.past(time.monotonic())
    for name, data in family.make(min(SIZES[size], family.most)):
        if only and only not in f"{family.name} / {name}":
            continue
        figure = Figure(family, name, size)
        await ground.once(figure, data)
        figure.health = ground.watch.worst("health", *figure.windows[-1])
        if figure.health > HEALTH_MOST and figure.health < 5.0:
            for _ in range(2):
                await ground.once(figure, data)
            figure.health = sorted(ground.watch.worst("health", *window) for window in figure.windows)[1]
        figures.append(figure)
        most_grown = max(most_grown, (figure.grown, name))
    if times > 1 and family.repeat is None and most_grown[1]:
        await _repeat(ground, family, size, times, next(figure for figure in figures if figure.name == most_grown[1]))
    await ground.watch.past(time.monotonic(), "mail")
    for figure in figures:
        figure.mail = sorted(ground.watch.worst("mail", *window) for window in figure.windows)[(len(figure.windows) - 1) // 2]
    return figures


async def _repeat(ground: Ground, family: Family, size: str, times: int, figure: Figure) -> None:
    if figure.health > 1.0 or figure.cpu > 5.0:  # it has failed already; repeating it only takes time
        return
    data = next(data for name, data in family.make(min(SIZES[size], family.most)) if name == figure.name)
    again = Figure(family, figure.name, size)
    await ground.once(again, data)
    first = ground.size()
    for _ in range(times - 1):
        await ground.once(again, data)
    figure.growth = ground.size() - first
    until = time.monotonic() + COLLECTED
    while figure.growth > GROWTH_MOST and time.monotonic() < until:
        await asyncio.sleep(0.5)
        figure.growth = ground.size() - first


def wrong(figure: Figure, ground: Ground) -> list[str]:
    """Returns the limits that an input exceeded, as sentences."""
    found = []
    if figure.health > HEALTH_MOST + ground.noise:
        found.append(f"/healthz answered after {figure.health * 1000:.0f} ms")
    if figure.mail > MAIL_MOST + ground.mail_noise:
        found.append(f"another account's mail took {figure.mail:.1f} s")
    if figure.cpu > (allowed := (CPU_MOST + figure.family.cpu * figure.length / (1 << 20)) * ground.slower):
        found.append(f"{figure.cpu:.1f} s of CPU, {allowed:.1f} s allowed")
    if figure.memory > MEMORY_MOST:
        found.append(f"{figure.memory >> 20} MB more than at rest")
    if figure.growth is not None and figure.growth > GROWTH_MOST:
        found.append(f"{figure.growth >> 20} MB larger after {TIMES} times than after one")
    return [f"{figure.called}: {each}" for each in found]


def chosen(targets: Sequence[str] = (), families: Sequence[str] = ()) -> list[Family]:
    """Returns the selected families; all of them by default. The target `replies` selects all stages."""
    return [
        family
        for family in FAMILIES
        if (not targets or family.target in targets or (family.target in STAGES and "replies" in targets))
        and (not families or family.name in families)
    ]


def table(figures: Sequence[Figure], most: int = 40) -> str:
    """Returns the worst inputs as a Markdown table."""
    lines = ["| input | took | CPU | /healthz | another's mail | memory | growth |", "|---|--:|--:|--:|--:|--:|--:|"]
    worst = sorted(figures, key=lambda figure: (max(figure.health, figure.mail / 4, figure.cpu / 10), figure.memory), reverse=True)[:most]
    for figure in worst:
        growth = "" if figure.growth is None else f"{figure.growth / (1 << 20):+.0f} MB"
        lines.append(
            f"| {figure.called} | {figure.seconds:.2f} s | {figure.cpu:.2f} s | {figure.health * 1000:.0f} ms | {figure.mail:.2f} s "
            f"| {figure.memory / (1 << 20):+.0f} MB | {growth} |"
        )
    return "\n".join(lines)
