"""A daemon to try whole ways with: its settings, its start and its violent end; and what speaks HTTP to it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import psycopg2

from mailsvc.monitoring import control_socket
from mailsvc.store.cells.views import find
from mailsvc.store.postgres.cells import at, cell_of
from tests.http.contract import Contract

PROJECT = Path(__file__).parents[2]


_ports_given: set[int] = set()


def free_port() -> int:
    """A loopback port that nobody listens on just now, from below those that the system gives to outgoing connections.

    No port is given twice, nor to two workers of pytest: whoever got it may not listen on it yet.
    """
    worker, workers = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = random.randrange(10_000 + worker, 32_000, workers)
            probe.bind(("127.0.0.1", port))
            if port not in _ports_given:
                _ports_given.add(port)
                return port


def toml(settings: Mapping[str, Mapping[str, object]]) -> str:
    """Tables of strings, numbers, booleans, lists and inline tables, as a settings file has them."""
    lines: list[str] = []
    for table, values in settings.items():
        lines += [f"[{table}]"] if table else []
        lines += [f"{key} = {_value(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_value(v)}" for k, v in value.items()) + " }"
    return json.dumps(value)


def _found(enough: Callable[[Any], bool], answer: Any) -> bool:
    try:
        return enough(answer)
    except LookupError:
        return False


def eventually(look: Callable[[], list[tuple[Any, ...]]], seconds: float = 30) -> list[tuple[Any, ...]]:
    """What `look` finds, as soon as it finds anything; an AssertionError when it does not in time."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"not in {seconds} s"
        time.sleep(0.05)  # another process: it has to be polled
    return found


def rows(database: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """What a statement answers, over a connection of its own; a percent sign in it is written twice."""
    connection = psycopg2.connect(with_tables(database))
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall())
    finally:
        connection.close()


@attrs.define
class Answer:
    """What the API answered."""

    status: int
    headers: Mapping[str, str]
    body: Any


def with_tables(database: str) -> str:
    """The server with the tables: that of the cell, if the DSN is one of a cell."""
    cell = cell_of(database)
    return database if cell is None else at(database, find(database, cell).node)


# Each accepted recipient has one state: it waits in the queue, or exactly one event ended it and nothing of it waits. A late report
# may follow a delivery. What waits has a reason and a time.
_STATES = """
WITH accepted AS (
    SELECT e.account_id, e.email_id, n - 1 AS recipient FROM emails e, generate_series(1, cardinality(e.recipients)) AS n
), counted AS (
    SELECT a.email_id, a.recipient,
           (SELECT count(*) FROM queue q WHERE q.email_id = a.email_id AND q.recipient = a.recipient) AS waiting,
           (SELECT count(*) FROM events v WHERE v.account_id = a.account_id AND v.email_id = a.email_id
            AND (v.recipient = a.recipient OR v.recipient IS NULL)
            AND v.type IN ('email.delivered', 'email.bounced', 'email.failed', 'email.canceled', 'email.suppressed')
            AND NOT (v.type = 'email.bounced' AND EXISTS (
                SELECT FROM events d WHERE d.account_id = v.account_id AND d.email_id = v.email_id AND d.recipient = v.recipient
                AND d.type = 'email.delivered'))) AS ended
    FROM accepted a
)
SELECT email_id::text, recipient, waiting, ended FROM counted WHERE waiting + ended <> 1 LIMIT 5
"""
_UNEXPLAINED = """
SELECT w.email_id::text, w.recipient, w.status, w.reason, w.next_at::text FROM waiting_at(now()) w
WHERE coalesce(w.reason, '') = '' OR w.next_at IS NULL OR NOT isfinite(w.next_at) LIMIT 5
"""


def check_invariants(database: str) -> None:
    """Whatever happened: an AssertionError with the first recipients that have no state, or two, or wait for no reason."""
    connection = psycopg2.connect(with_tables(database))
    try:
        with connection, connection.cursor() as cursor:
            for what, statement in (("not exactly one state", _STATES), ("waits without a reason or a time", _UNEXPLAINED)):
                cursor.execute(statement)
                found = cursor.fetchall()
                assert not found, f"{what}: {found}"
    finally:
        connection.close()


@attrs.define
class Daemon:
    """One `twistd -n mailsvc` with settings of its own; everything that it writes stays in `folder`."""

    folder: Path
    database: str
    changes: Mapping[str, Mapping[str, object]] = attrs.field(factory=dict)
    port: int = attrs.field(factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    _contract: Contract | None = None
    python: Path = Path(sys.executable)
    home: Path = PROJECT  # its working folder
    source: Path | None = PROJECT  # where it is run from; None: it is installed
    variables: Mapping[str, str] = attrs.field(factory=dict)  # more of its environment
    address: str = "127.0.0.1"
    core: int | None = None  # that it runs on; None: any
    compress: bool = True  # messages. False: the setting is not written, as for a release that does not know it

    @property
    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | dict(self.variables)
        return inherited if self.source is None else {**inherited, "PYTHONPATH": str(self.source)}

    @property
    def config(self) -> Path:
        return self.folder / "mailsvc.toml"

    @property
    def socket(self) -> str:
        """Short enough for a Unix socket, wherever the tests keep their files."""
        return f"/tmp/mailsvc-{os.getpid()}-{self.port}.sock"

    @property
    def facts(self) -> dict[str, Any]:
        """What the daemon wrote for scripts: address, key, domain."""
        facts = json.loads((self.folder / "dev.json").read_text())
        assert isinstance(facts, dict)
        return facts

    @property
    def log(self) -> str:
        return (self.folder / "daemon.log").read_text(errors="replace")

    def write(self) -> None:
        settings: dict[str, dict[str, object]] = {
            "": {"base_url": f"http://127.0.0.1:{self.port}"},
            "database": {"url": self.database, **({"compress": True} if self.compress else {})},
            "http": {"listen": [f"tcp:{self.port}:interface=127.0.0.1"], "rate_limit": 100_000},
            "smtp": {"listen": {}},
            "delivery": {
                "ehlo_name": "localhost",
                "allowed_networks": ["127.0.0.0/8"],
                "retry": [1, 2, 5],
            },
            "domains": {"allow_trust": True},
            "control": {"socket": self.socket},
            "secrets": {"key_file": str(self.folder / "secret.key")},
            "log": {"format": "text"},
            "development": {"dev_file": str(self.folder / "dev.json")},
        }
        for table, values in self.changes.items():
            settings.setdefault(table, {}).update(values)
        self.config.write_text(toml(settings))

    def start(self, seconds: float = 60) -> None:
        """Start and wait until it is ready; an AssertionError tells its log when it is not."""
        self.write()
        (self.folder / "dev.json").unlink(missing_ok=True)
        with (self.folder / "daemon.log").open("ab") as log:
            self.process = self._popen(log)
        deadline = time.monotonic() + seconds
        while not (self.folder / "dev.json").exists():
            assert self.process.poll() is None, f"the daemon ended:\n{self.log[-3000:]}"
            assert time.monotonic() < deadline, f"the daemon is not ready:\n{self.log[-3000:]}"
            time.sleep(0.02)

    def _popen(self, log: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command(), cwd=self.home, stdout=log, stderr=subprocess.STDOUT, env=self.environment)

    def _command(self) -> list[str]:
        bound = [] if self.core is None else ["/usr/bin/taskset", "--cpu-list", str(self.core)]
        return [*bound, str(self.python.with_name("twistd")), "--nodaemon", "--pidfile=", "mailsvc", "--config", str(self.config)]

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End it as an operator would; the exit status. What holds at all times holds then too."""
        status = self._end(signal.SIGTERM)
        Path(self.socket).unlink(missing_ok=True)
        check_invariants(self.database)
        return status

    def _end(self, how: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        status = self.process.wait(60)
        self.process = None
        return status

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        seconds: float = 30,
    ) -> Answer:
        """One request; every status is an answer, a lost connection or no answer within `seconds` is an OSError."""
        request = urllib.request.Request(
            f"http://{self.address}:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {key or self.facts['api_key']}",
                "Content-Type": "application/json",
                "User-Agent": "tests",
                **(headers or {}),
            },
        )
        answer = self._answer(request, seconds)
        if self._contract is None and path != "/openapi.json":
            self._contract = Contract(self.call("GET", "/openapi.json").body)
        if self._contract is not None:
            kind = next((value for name, value in answer.headers.items() if name.lower() == "content-type"), "")
            self._contract.check(method, path, answer.status, kind, answer.body)
        return answer

    def _answer(self, request: urllib.request.Request, seconds: float) -> Answer:
        try:
            with urllib.request.urlopen(request, timeout=seconds) as response:
                return Answer(response.status, dict(response.headers), json.load(response))
        except urllib.error.HTTPError as error:
            return Answer(error.code, dict(error.headers), json.load(error))

    def until(self, path: str, key: str, enough: Callable[[Any], bool], seconds: float = 30) -> Any:
        """What GET answers once it is `enough`; an AssertionError with the last answer when it is not by then.

        Something that `enough` looks for and does not find in the answer may still come.
        """
        deadline = time.monotonic() + seconds
        while not _found(enough, answer := self.call("GET", path, key=key).body):
            assert time.monotonic() < deadline, f"not in {seconds} s: {answer}"
            time.sleep(0.05)  # another process: it has to be polled
        return answer

    def control(self, **command: object) -> dict[str, Any]:
        """What the daemon answers to an order over its control socket."""
        return control_socket.send(Path(self.socket), command)

    def until_waiting(self, email: str, seconds: float = 20) -> list[dict[str, Any]]:
        """The recipients of an email that wait, as the operator is shown them, once it is there."""
        deadline = time.monotonic() + seconds
        while not (found := self.control(do="email", email=email)["waiting"]):
            assert time.monotonic() < deadline, f"{email} does not wait"
        return list(found)

    def command(self, *arguments: str) -> str:
        """What `mailsvc` prints when an operator calls it with this daemon's settings."""
        done = self._run(arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def command_fails(self, *arguments: str) -> tuple[int, str]:
        """The exit status, which is not 0, and what was printed to either side."""
        done = self._run(arguments)
        assert done.returncode != 0, done.stdout
        return done.returncode, done.stdout + done.stderr

    def _run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.python), "-c", "from mailsvc.cli.main import main; main()", "--config", str(self.config), *arguments],
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=60,
            env=self.environment,
        )
