"""The embedded Postgres, for trials and tests: a child process that listens on a Unix socket only.

    <folder>/data     the cluster, owned by the user that runs the server
    <folder>/run      the socket, unless its path would be too long
    <folder>/start.log, <folder>/log/    the server's output at start, and its log
    <folder>/lock     held by the process that manages the server; other processes only connect

Where the programs come from: store/postgres/binaries. Who runs them: store/postgres/system_user. Restarting it:
store/postgres/supervisor.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import attrs
import psycopg2
from psycopg2.extensions import make_dsn
from twisted.logger import Logger

from mailsvc.store.postgres.binaries import Binaries, find_binaries, usable
from mailsvc.store.postgres.system_user import EmbeddedError, Owner, owner_for, reachable

NAME = "mailsvc"  # of the superuser and of the database
PORT = "5432"  # only part of the socket's name
LONGEST_SOCKET_PATH = 107  # sun_path of unix(7), without its closing NUL
START_SECONDS = 120.0
STOP_SECONDS = 60.0
FALLBACK = Path("/var/lib/mailsvc")

CONFIGURATION = """\
# Written by mailsvc at every start. Put your own settings into local.conf in this folder.
listen_addresses = ''
unix_socket_directories = '{socket}'
unix_socket_permissions = 0700
port = {port}
max_connections = 300                   # database.pool has up to 200, and commands have some, too
shared_buffers = '{buffers}'
max_parallel_workers_per_gather = 0     # statements are short, and containers have little shared memory
random_page_cost = 1.1
# Durability
fsync = on
synchronous_commit = on
full_page_writes = on
wal_compression = '{wal_compression}'
max_wal_size = '2GB'
checkpoint_timeout = '15min'
autovacuum_naptime = '15s'              # the queue changes all the time
# Values may be secrets or addresses: keep them out of the log.
log_error_verbosity = terse
log_min_error_statement = panic
log_parameter_max_length_on_error = 0
log_checkpoints = off
logging_collector = on
log_directory = '{logs}'
log_filename = 'postgres-%a.log'
log_truncate_on_rotation = on
log_rotation_age = '1d'
log_rotation_size = 0
timezone = 'UTC'
log_timezone = 'UTC'
include_if_exists = 'local.conf'
"""

Settings = Mapping[str, str]


@attrs.define(eq=False)
class EmbeddedPostgres:
    """The server whose files are in `folder`. `settings` are passed to it in addition to CONFIGURATION."""

    log = Logger()

    folder: Path
    owner: Owner
    settings: Settings
    managed: bool = False
    _child: subprocess.Popen[bytes] | None = None
    _lock: int | None = None

    @classmethod
    def at(cls, wanted: Path, settings: Settings | None = None) -> EmbeddedPostgres:
        """In `wanted`, or in a folder below /var/lib/mailsvc if root chose a folder that the server's user cannot reach."""
        folder, owner = _place(wanted := wanted.resolve())
        if folder != wanted:
            cls.log.info(
                "the user {user} cannot reach {wanted}; Postgres keeps its data in {folder}",
                user=owner.name,
                wanted=str(wanted),
                folder=str(folder),
            )
        return cls(folder, owner, settings or {})

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def pid(self) -> int | None:
        """The process ID of the running server, whoever started it."""
        pid_file = _pid_file(self.data)
        return int(pid_file[0]) if pid_file and _is_server(int(pid_file[0]), self.data) else None

    @property
    def alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return self.pid is not None

    def dsn(self) -> str | None:
        """The DSN to connect with, if it is running."""
        pid_file = _pid_file(self.data)
        if self.pid is None or len(pid_file) < 5:
            return None
        return make_dsn(host=pid_file[4], port=pid_file[3], user=NAME, dbname=NAME)

    def start_blocking(self, timeout: float = START_SECONDS) -> str:
        """Start the server or use the running one. Returns the DSN. The process that gets the lock manages the server."""
        try:
            return self._start(time.monotonic() + timeout)
        except subprocess.TimeoutExpired as error:
            program = Path(error.cmd[0]).name
            raise EmbeddedError(f"{program} did not finish within {error.timeout:.0f} s: the disk or the processor is too busy.") from None

    def _start(self, deadline: float) -> str:
        self._prepare_folder()
        self._take_lock()
        if self.managed and self.pid is None:
            self._launch(deadline)
        return self._wait_until_ready(deadline)

    def stop_blocking(self, timeout: float = STOP_SECONDS) -> None:
        """Stop the server if this process manages it: connections are closed and committed data is written."""
        if not self.managed:
            return
        for stop in (
            signal.SIGINT,
            signal.SIGQUIT,
        ):  # fast; if that takes too long, immediate, with recovery at the next start
            deadline = time.monotonic() + timeout
            pid = self._child.pid if self._child is not None else self.pid
            if pid is None or not self.alive:
                break
            os.kill(pid, stop)
            while self.alive and time.monotonic() < deadline:
                time.sleep(0.02)
        self._child = None
        self._release_lock()

    def _prepare_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EmbeddedError(f"The folder for Postgres, {self.folder}, cannot be created: {error.strerror}.") from None
        if self.owner.switched and self.folder.stat().st_uid != self.owner.uid:
            os.chown(self.folder, self.owner.uid, self.owner.gid)
        self.folder.chmod(0o700)
        if not reachable(self.folder, self.owner):
            raise EmbeddedError(f"The user {self.owner.name}, who runs Postgres, cannot reach {self.folder}.")

    def _take_lock(self) -> None:
        if self._lock is None:
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.managed = True
        except BlockingIOError:
            self.managed = False

    def _release_lock(self) -> None:
        self.managed = False
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _launch(self, deadline: float) -> None:
        version = self.data / "PG_VERSION"
        exists = version.exists()
        binaries = usable(find_binaries(int(version.read_text()) if exists else None), self.owner, self.folder)
        if not exists:
            self._create_cluster(binaries, deadline)
        self._configure(binaries)
        _drop_stale(self.data)
        extra = [word for key, value in self.settings.items() for word in ("-c", f"{key}={value}")]
        with os.fdopen(self._open_file("start.log"), "wb") as output:
            self._child = subprocess.Popen(  # noqa: S603  no input in it
                [binaries.program("postgres"), "-D", str(self.data), *extra],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                env=_environment(),
                start_new_session=True,  # so that Ctrl-C reaches only this process, which stops the server last
                **self.owner.process(),
            )

    def _create_cluster(self, binaries: Binaries, deadline: float) -> None:
        """Under a temporary name first, so that an interrupted initdb leaves no incomplete cluster. This process has the lock."""
        for left in self.folder.glob("data.*.initdb"):
            shutil.rmtree(left)
        temporary = Path(tempfile.mkdtemp(prefix="data.", suffix=".initdb", dir=self.folder))
        if self.owner.switched:
            os.chown(temporary, self.owner.uid, self.owner.gid)
        locale = ["--locale=C.UTF-8"]
        if binaries.major >= 17:
            locale = ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        command = [binaries.program("initdb"), "-D", str(temporary), "-U", NAME, "--encoding=UTF8", *locale]
        command += ["--auth-local=peer", "--auth-host=reject", "--no-instructions"]
        done = subprocess.run(  # noqa: S603
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=_environment(),
            timeout=max(1.0, deadline - time.monotonic()),
            **self.owner.process(),
        )
        if done.returncode != 0:
            raise EmbeddedError(f"initdb failed: {done.stderr.strip()}")
        temporary.rename(self.data)

    def _configure(self, binaries: Binaries) -> None:
        socket = self._socket_folder()
        (logs := self.folder / "log").mkdir(exist_ok=True)
        if self.owner.switched:
            os.chown(logs, self.owner.uid, self.owner.gid)
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
        conf = CONFIGURATION.format(
            socket=socket,
            port=PORT,
            logs=logs,
            buffers=f"{min(max(64, memory // 8), 512)}MB",
            wal_compression="lz4" if self._accepts(binaries, "wal_compression=lz4") else "off",
        )
        self._write("data/postgresql.conf", conf)
        users = {"root", self.owner.name}
        self._write("data/pg_ident.conf", "".join(f"{NAME} {user} {NAME}\n" for user in sorted(users)))
        self._write("data/pg_hba.conf", f"local all {NAME} peer map={NAME}\n")

    def _accepts(self, binaries: Binaries, setting: str) -> bool:
        command = [binaries.program("postgres"), "-D", str(self.data), "-C", "port", "-c", setting]
        done = subprocess.run(  # noqa: S603
            command, check=False, capture_output=True, cwd=self.folder, env=_environment(), timeout=30, **self.owner.process()
        )
        return done.returncode == 0

    def _socket_folder(self) -> Path:
        digest = hashlib.sha256(str(self.folder).encode()).hexdigest()[:12]
        candidates = [self.folder / "run"]
        if (runtime := os.environ.get("XDG_RUNTIME_DIR")) and not self.owner.switched:
            candidates.append(Path(runtime) / f"mailsvc-{digest}")
        candidates.append(Path("/tmp") / f"mailsvc-{self.owner.uid}-{digest}")  # noqa: S108  checked below
        for folder in candidates:
            if len(os.fsencode(folder / f".s.PGSQL.{PORT}")) <= LONGEST_SOCKET_PATH:
                return self._private(folder)
        raise EmbeddedError(f"The path of every folder for the socket is too long: {', '.join(map(str, candidates))}")

    def _private(self, folder: Path) -> Path:
        """Create it for the server's user only. In a folder that is writable for all, another user may have created it before."""
        try:
            folder.mkdir(mode=0o700)
            if self.owner.switched:
                os.chown(folder, self.owner.uid, self.owner.gid)
        except FileExistsError:
            pass
        info = folder.lstat()
        if folder.is_symlink() or not folder.is_dir() or info.st_uid != self.owner.uid:
            raise EmbeddedError(f"{folder} must be a folder owned by the user {self.owner.name}.")
        folder.chmod(0o700)
        return folder

    def _write(self, name: str, text: str) -> None:
        with os.fdopen(self._open_file(name), "w", encoding="utf-8") as file:
            file.write(text)

    def _open_file(self, name: str) -> int:
        """Open a file in the folder for writing. Never through a link, because root writes where another user may."""
        fd = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if self.owner.switched:
            os.fchown(fd, self.owner.uid, self.owner.gid)
        return fd

    def _wait_until_ready(self, deadline: float) -> str:
        problem = ""
        while time.monotonic() < deadline:
            if self._child is None and self.pid is None:  # a server that was running has ended, or the process that was starting it
                self._take_lock()
                if self.managed:
                    self._launch(deadline)
            if self._child is not None and self._child.poll() is not None:
                raise EmbeddedError(f"Postgres exited right after its start: {self._log_tail()}")
            dsn = self.dsn()
            if dsn is not None:
                try:
                    _ensure_database(dsn)
                    return dsn
                except psycopg2.Error as error:
                    problem = str(error).strip()
            time.sleep(0.02)
        raise EmbeddedError(f"Postgres in {self.folder} was not ready in time. {problem or self._log_tail()}")

    def _log_tail(self) -> str:
        files = [self.folder / "start.log", *sorted((self.folder / "log").glob("*.log"), key=lambda file: file.stat().st_mtime)[-1:]]
        return " / ".join(file.read_text(errors="replace").strip()[-1000:] for file in files if file.exists())


def _place(wanted: Path) -> tuple[Path, Owner]:
    owner = owner_for(wanted / "data")
    elsewhere = FALLBACK / hashlib.sha256(os.fsencode(wanted)).hexdigest()[:16] / wanted.name
    if owner.switched and not (wanted / "data").exists() and (elsewhere / "data").exists():
        return elsewhere, owner_for(elsewhere / "data")
    return (wanted, owner) if reachable(wanted, owner) else (elsewhere, owner)


def _pid_file(data: Path) -> list[str]:
    """The lines of postmaster.pid: process ID, data folder, start time, port, socket folder, … Empty if a power cut has damaged it."""
    try:
        lines = (data / "postmaster.pid").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return lines if lines and lines[0].isdecimal() else []


def _is_server(pid: int, data: Path) -> bool:
    """Whether this process is the server of `data`: its working directory is that folder. Process IDs are reused."""
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == data
    except OSError:
        if Path("/proc/self/cwd").exists():
            return False
    command = ["/bin/ps", "-o", "comm=", "-p", str(pid)]
    output = subprocess.run(command, check=False, capture_output=True, text=True, timeout=10).stdout  # noqa: S603
    return "postgres" in output


def _drop_stale(data: Path) -> None:
    """Without this the server would not start if another process now had the ID of a crashed server."""
    (data / "postmaster.pid").unlink(missing_ok=True)


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _ensure_database(dsn: str) -> None:
    connection = psycopg2.connect(dsn, dbname="postgres", connect_timeout=5)
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("SELECT FROM pg_database WHERE datname = %s", (NAME,))
            if cursor.fetchone() is None:
                cursor.execute(f"CREATE DATABASE {NAME}")
    finally:
        connection.close()
