"""A Postgres server for experiments: on a separate port, with access to its disks, processes and copies."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs
import psycopg2
from psycopg2.extensions import make_dsn

from mailsvc.store.postgres.binaries import Binaries, find_binaries, usable
from mailsvc.store.postgres.system_user import Owner, owner_for
from tests.end_to_end.rig import free_port
from tests.memory import in_memory

NAME = "mailsvc"
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "64MB",
    "max_connections": "100",
    "restart_after_crash": "on",
    "timezone": "UTC",
}


@attrs.define(eq=False)
class Cluster:
    """`wal`: a separate folder for the WAL. `environment`: that of the server's processes."""

    folder: Path
    settings: Mapping[str, str] = attrs.field(factory=dict)
    environment: Mapping[str, str] = attrs.field(factory=dict)
    wal: Path | None = None
    port: int = attrs.field(factory=free_port)
    _child: subprocess.Popen[bytes] | None = attrs.field(default=None, init=False)
    owner: Owner = attrs.field(init=False)
    binaries: Binaries = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.owner = owner_for(self.data)
        self.own(self.folder)
        self.binaries = usable(find_binaries(), self.owner, self.folder)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def dsn(self) -> str:
        return make_dsn(host="127.0.0.1", port=self.port, user=NAME, dbname=NAME)

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def own(self, folder: Path) -> Path:
        """Creates a folder that the server can write to."""
        folder.mkdir(exist_ok=True)
        if self.owner.switched:
            os.chown(folder, self.owner.uid, self.owner.gid)
        return folder

    def make(self) -> None:
        where = [] if self.wal is None else [f"--waldir={self.wal}"]
        self.run("initdb", "-D", str(self.data), "-U", NAME, "--auth=trust", "--encoding=UTF8", "--wal-segsize=1", *where)

    def copy_of(self, primary: Cluster) -> None:
        """Makes this server a standby, named after its folder."""
        source = f"host=127.0.0.1 port={primary.port} user={NAME} application_name={self.folder.name}"
        self.run("pg_basebackup", "-D", str(self.data), "-d", source, "-R", "-X", "stream", "-c", "fast")

    def run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self.binaries.program(program), *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            **self.owner.process(),
        )
        assert done.returncode == 0, done.stderr

    def start_blocking(self) -> str:
        settings = {**SETTINGS, **self.settings, "port": str(self.port)}
        arguments = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        with (self.folder / "server.log").open("ab") as log:
            self._child = subprocess.Popen(
                [self.binaries.program("postgres"), "-D", str(self.data), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC", **self.environment},
                start_new_session=True,
                **self.owner.process(),
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                self._ensure_database()
                return self.dsn
            except psycopg2.Error as error:
                assert self.alive and time.monotonic() < deadline, f"{error}\n{self.log[-3000:]}"
                time.sleep(0.05)

    @property
    def log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")

    def _ensure_database(self) -> None:
        connection = psycopg2.connect(make_dsn(self.dsn, dbname="postgres"), connect_timeout=5)
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_is_in_recovery(), EXISTS (SELECT FROM pg_database WHERE datname = %s)", (NAME,))
                if cursor.fetchone() == (False, False):
                    cursor.execute(f"CREATE DATABASE {NAME}")
        finally:
            connection.close()

    def stop_blocking(self) -> None:
        """Stops immediately; the next start recovers."""
        if self._child is not None and self.alive:
            self._signal(signal.SIGCONT)
            self._child.send_signal(signal.SIGQUIT)
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(30)
        self.kill()

    def kill(self) -> None:
        """Kills all processes at once, like a power failure."""
        while self._signal(signal.SIGKILL):
            time.sleep(0.01)
        if self._child is not None:
            self._child.wait()
            self._child = None

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> int:
        """Signals the server, then its children. Returns how many there were."""
        processes = sorted(self._processes(), key=lambda pid: pid != self.pid)
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return len(processes)

    def _processes(self) -> Iterator[int]:
        for each in Path("/proc").iterdir():
            if each.name.isdigit():
                with suppress(OSError):
                    if (each / "cwd").readlink() == self.data and "Z" not in (each / "stat").read_text().rpartition(")")[2].split()[0]:
                        yield int(each.name)


@contextmanager
def with_standby(wal_level: str = "replica") -> Iterator[tuple[Cluster, Cluster]]:
    """A primary and its standby."""
    with place() as folder:
        settings = {"wal_level": wal_level, "hot_standby": "on"}
        primary, standby = Cluster(folder / "primary", settings), Cluster(folder / "standby", settings)
        primary.make()
        try:
            primary.start_blocking()
            standby.copy_of(primary)
            standby.start_blocking()
            yield primary, standby
        finally:
            primary.kill()
            standby.kill()


@contextmanager
def place() -> Iterator[Path]:
    """Creates a folder that the server's user can access, in memory if it has room: kills do not depend on a disk."""
    folder = Path(tempfile.mkdtemp(prefix="mailsvc-cluster-", dir=in_memory() or "/tmp"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def can_mount() -> bool:
    """Whether small file systems can be created here."""
    with place() as folder:
        try:
            with disk(folder / "disk", "1m"):
                return True
        except (OSError, subprocess.SubprocessError):
            return False


@contextmanager
def disk(folder: Path, size: str) -> Iterator[Path]:
    """Mounts a file system of this size."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True, capture_output=True, timeout=30)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True, timeout=30)


def fill(folder: Path) -> Path:
    """Fills a file system. Returns the file that fills it."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file, suppress(OSError):
        for size in (1 << 20, 4096):
            with suppress(OSError):
                while file.write(b"x" * size):
                    pass
    return filler
