"""Commands that read, export, erase and import everything, killed at moments spread over their duration, and run again to the end.

Each command is a process of its own. It is forked from one that has imported the modules, which saves a second each time.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import psycopg2
from psycopg2.extensions import make_dsn, parse_dsn
from psycopg2.extras import execute_values

from mailsvc.settings.privacy import Privacy
from mailsvc.store.account_data import tables
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.ids import uuid7
from mailsvc.store.postgres.embedded import EmbeddedPostgres
from mailsvc.store.postgres.migrate import migrate
from mailsvc.store.privacy.journal import Journal
from tests.chaos import command_process
from tests.chaos.ground import Figures, until
from tests.end_to_end.rig import Daemon, rows
from tests.store.privacy.filling import leaks

ZOE = "zoe.canary@person.example"
DEADLINE = 300.0  # seconds for one command
# What each run of a command adds to, and what is encrypted with a new nonce each time.
LOGGED = ("audit", "audit_details", "audit_heads")
SECRET = {"dkim_keys": ["sealed_key"], "webhooks": ["secret", "former"], "audience_keys": ["secret"]}
_PROCESSES = multiprocessing.get_context("forkserver")

_CONTENT = """
SELECT count(*), coalesce(sum(('x' || substr(md5((to_jsonb(t) - %s::text[])::text), 1, 15))::bit(60)::bigint), 0)::text FROM {} t
"""


@attrs.frozen
class Ended:
    """A command that was not killed."""

    status: int
    text: str
    errors: str
    seconds: float

    def json(self) -> Any:
        assert self.status == 0, self.errors
        return json.loads(self.text)


@attrs.define(eq=False)
class Place:
    """A database server, and the settings of an installation whose database is another one for each trial."""

    folder: Path
    server: str
    _number: int = 0

    def __attrs_post_init__(self) -> None:
        _PROCESSES.set_forkserver_preload([command_process.__name__])

    @property
    def journal(self) -> Path:
        return self.folder / "erasures"

    def use(self, database: str) -> str:
        """Have the commands use this database, with a new journal. Returns its DSN."""
        dsn = make_dsn(self.server, dbname=database)
        self.journal.unlink(missing_ok=True)
        Daemon(self.folder, dsn, {"privacy": {"journal": str(self.journal)}}).write()
        return dsn

    def administer(self, statement: str) -> None:
        connection = psycopg2.connect(self.server)
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement)
        connection.close()

    def create(self, template: str = "template0") -> str:
        self._number += 1
        name = f"{parse_dsn(self.server)['dbname']}_killed_{os.getpid()}_{self._number}"
        copied = "" if template == "template0" else " STRATEGY FILE_COPY"
        self.administer(f"CREATE DATABASE {name} TEMPLATE {template}{copied}")
        return name

    def drop(self, name: str) -> None:
        self.administer(f"DROP DATABASE {name} WITH (FORCE)")

    @contextmanager
    def copy(self, template: str) -> Iterator[str]:
        name = self.create(template)
        try:
            yield self.use(name)
        finally:
            self.drop(name)

    def run(self, *words: str, kill_after: float | None = None) -> Ended | None:
        """Run a command. None: it was killed after that time."""
        output = str(self.folder / "output")
        config = ("--config", str(self.folder / "mailsvc.toml"))
        process = _PROCESSES.Process(target=command_process.run, args=((*config, *words), output))
        began = time.monotonic()
        process.start()
        process.join(DEADLINE if kill_after is None else kill_after)
        seconds, alive = time.monotonic() - began, process.is_alive()
        process.kill()
        process.join()
        assert kill_after is not None or not alive, f"{words} takes more than {DEADLINE} s"
        if alive:
            return None
        return Ended(process.exitcode or 0, Path(output).read_text(), Path(f"{output}.err").read_text(), seconds)

    def settle(self, dsn: str) -> None:
        """Until the server has ended what the killed process had sent."""
        others = "SELECT 1 FROM pg_stat_activity WHERE datname = %s"
        until(lambda: not rows(self.server, others, parse_dsn(dsn)["dbname"]), 60, "the end of the killed process's statements")

    def done(self, *words: str) -> str:
        ended = self.run(*words)
        assert ended is not None and ended.status == 0, (words, ended)
        return ended.text.strip()


@attrs.frozen
class Given:
    """What is there before a command: names of databases, of which `empty` has only the schema, and of an account's archive."""

    full: str
    empty: str
    account: str
    archive: Path
    key: Path


def prepare(place: Place, emails: int) -> Given:
    full, empty = place.create(), place.create()
    dsn = make_dsn(place.server, dbname=full)
    for name in (full, empty):
        migrate(make_dsn(place.server, dbname=name))
    place.use(full)
    account = place.done("account", "create", "Acme")
    for words in (
        ("domain", "add", "acme.example"), ("domain", "trust", "acme.example"), ("key", "create"), ("member", "add", "ann@acme.example"),
        ("member", "add", ZOE),
    ):  # fmt: skip
        place.done(*words, "--account", account)
    fill(dsn, account, emails)
    place.done("audit", "adopt")
    place.done("account", "access", account, "--reason", "They move.", "--hours", "24")
    archive, key = place.folder / "account.zip", place.folder / "account.key"
    place.done("account", "export", account, "--output", str(archive), "--key", str(key), "--without-queued")
    return Given(full, empty, account, archive, key)


def fill(dsn: str, account: str, emails: int) -> None:
    """Emails with their history, every fifth to Zoe and the last ones queued; contacts, suppressions, and lines of the audit log."""
    connection = psycopg2.connect(dsn)
    now = datetime.now(UTC)
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT id::text FROM domains")
        [(domain,)] = cursor.fetchall()

        def add(table: str, columns: str, values: list[tuple[Any, ...]]) -> None:
            execute_values(cursor, f"INSERT INTO {table} ({columns}) VALUES %s", values, page_size=500)

        made = [(str(uuid7(now.timestamp() - n / 1000)), ZOE if n % 5 == 0 else f"c{n}@else.example", n) for n in range(emails, 0, -1)]
        message = "From: a@acme.example\r\nTo: {0}\r\nSubject: Order\r\n\r\nHello {0},\r\n\r\n" + "Thank you for your order.\r\n" * 100
        add(
            "emails", "account_id, email_id, created_at, source, domain_id, message_id, sender, to_, cc, bcc, reply_to, recipients,"
            " subject, size, bulk",
            [
                (account, id_, now, "api", domain, f"<{id_}@acme.example>", "a@acme.example", [to], [], [], [], [to], f"For {to}",
                 len(message.format(to)), False)
                for id_, to, _ in made
            ],
        )  # fmt: skip
        add("messages", "account_id, email_id, piece, bytes", [(account, id_, 0, message.format(to).encode()) for id_, to, _ in made])
        kept = [each for each in made if each[2] > 20]
        add(
            "events",
            "account_id, email_id, event_id, recipient, type, at",
            [(account, id_, id_, 0, "email.delivered", now) for id_, *_ in kept],
        )
        add(
            "attempts", "account_id, email_id, attempt_id, recipients, outcomes, replies, started_at, seconds, transcript",
            [(account, id_, id_, [0], ["delivered"], ["250 ok"], now, 0.2, f"C: RCPT TO:<{to}>\r\n") for id_, to, _ in kept],
        )  # fmt: skip
        add(
            "queue", "email_id, recipient, account_id, domain_id, region, address, destination, status, bulk, next_at, expires_at, reason",
            [(id_, 0, account, domain, "r", to, "x.example", "delayed", False, now, now, "Later") for id_, to, n in made if n <= 20],
        )  # fmt: skip
        people = [(str(uuid7(now.timestamp())), f"p{n}@else.example") for n in range(emails)] + [(str(uuid7(now.timestamp())), ZOE)]
        add(
            "contacts", "account_id, id, address, email, hash, created_at, updated_at",
            [(account, id_, to, to, to.encode(), now, now) for id_, to in people],
        )  # fmt: skip
        add(
            "suppressions", "id, account_id, address, email, origin, created_at",
            [(id_, account, to, to, "bounce", now) for id_, to in people[-500:]],
        )  # fmt: skip
        add(
            "audit", "account_id, id, at, actor, address, action, subject",
            [(account, str(uuid7(now.timestamp())), now, "ann@acme.example", "192.0.2.1", "contact changed", to) for _, to in people],
        )  # fmt: skip
    connection.close()


def contents(dsn: str, names: tuple[str, ...] = tables.ARCHIVED) -> Mapping[str, tuple[int, str]]:
    """The number of rows of each table, and a sum that other rows do not have."""
    return {name: rows(dsn, _CONTENT.format(name), SECRET.get(name, []))[0] for name in names}  # type: ignore[misc]


def archived(file: Path) -> Mapping[str, bytes]:
    """A whole archive, without what is different each time."""
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None and "manifest.json" in archive.namelist()
        without = {"manifest.json", "erasures.jsonl", *(f"tables/{name}.jsonl" for name in LOGGED)}
        return {name: _stable(name, archive.read(name)) for name in archive.namelist() if name not in without}


def _stable(name: str, content: bytes) -> bytes:
    secret = SECRET.get(Path(name).stem)
    if secret is None:
        return content
    return json.dumps(
        [{key: value for key, value in json.loads(row).items() if key not in secret} for row in content.splitlines()]
    ).encode()


def intact(place: Place) -> None:
    place.done("audit", "verify")


# Each takes what is there, and yields a function that kills the command after some time and runs it again. It returns whether the command
# was killed, and how long it took otherwise. The first call, with None, kills nothing: later ones must have the same result.
Trial = Callable[[float | None], tuple[bool, float]]


@contextmanager
def reading(place: Place, given: Given, *words: str) -> Iterator[Trial]:
    """A command that prints something: it prints the same afterwards."""
    with place.copy(given.full):
        reference = place.run(*words)
        assert reference is not None and reference.status == 0, reference

        def trial(moment: float | None) -> tuple[bool, float]:
            killed = place.run(*words, kill_after=moment)
            again = place.run(*words) if killed is None else killed
            assert again is not None and again.status == 0 and again.text == reference.text, (reference, again)
            return killed is None, again.seconds

        yield trial
        intact(place)


@contextmanager
def exporting(place: Place, given: Given, *words: str) -> Iterator[Trial]:
    """A command that writes an archive: a file with its name is whole, and has the same."""
    file = place.folder / "exported.zip"
    with place.copy(given.full):

        def trial(moment: float | None) -> tuple[bool, float]:
            killed, seconds = place.run(*words, "--output", str(file), kill_after=moment), 0.0
            if not file.exists():
                again = place.run(*words, "--output", str(file))
                assert again is not None and again.status == 0, again
                seconds = again.seconds
            found.append(archived(file))
            assert found[-1] == found[0] and len(found[0]) > 5
            assert not list(place.folder.glob(".exported*"))
            file.unlink()
            return killed is None, seconds if killed is None else killed.seconds

        found: list[Mapping[str, bytes]] = []
        yield trial
        intact(place)


def _erased(certificates: list[Any]) -> Mapping[str, int]:
    """What was erased, by all erasures together."""
    found: Counter[str] = Counter()
    for each in certificates:
        assert each["state"] == "finished" and not each["waiting"], each
        found.update(each["erased"])
    return found


@contextmanager
def erasing(place: Place, given: Given) -> Iterator[Trial]:
    """Nothing of the person is left, and the certificates count everything once. What belongs to others is as it was."""
    words = ("privacy", "erase", ZOE, "--yes")
    expected: list[Any] = []

    def trial(moment: float | None) -> tuple[bool, float]:
        with place.copy(given.full) as dsn:
            ended = killed = place.run(*words, kill_after=moment)
            if killed is None:
                ended = place.run(*words)
            assert ended is not None and ended.status == 0 and ended.json()["state"] == "finished", ended
            assert leaks(dsn, ZOE) == []
            certificates = [json.loads(line) for line in place.done("privacy", "erasures").splitlines()]
            others = contents(dsn, ("emails", "messages", "contacts", "attempts", "events", "suppressions", "queue"))
            assert rows(dsn, "SELECT 1 FROM erasures WHERE finished_at IS NULL") == []
            keys = Encryption.load(place.folder / "secret.key")
            entries = Journal(place.journal, keys, Privacy().backup_days).entries()
            assert entries and {str(each.id) for each in entries} == {each["id"] for each in certificates}
            intact(place)
            result = (_erased(certificates), {name: count for name, (count, _) in others.items()})
            expected.append(result)
            assert result == expected[0], (result, expected[0])
            return killed is None, ended.seconds

    yield trial


@contextmanager
def importing(place: Place, given: Given) -> Iterator[Trial]:
    """The account is absent, or suspended and known to be incomplete, or complete and the same."""
    words = ("account", "import", str(given.archive), "--key", str(given.key))
    names = tuple(name for name in tables.ARCHIVED if name not in ("audit", "audit_details", "audit_heads"))
    expected: list[Any] = []

    def trial(moment: float | None) -> tuple[bool, float]:
        with place.copy(given.empty) as dsn:
            killed = place.run(*words, kill_after=moment)
            place.settle(dsn)
            seconds = 0.0 if killed is None else killed.seconds
            state = rows(dsn, "SELECT suspended_at IS NOT NULL, archive IS NOT NULL FROM accounts")
            assert state in ([], [(True, True)], [(False, False)]), state
            if state != [(False, False)]:
                again = place.run(*words)
                assert again is not None and again.status == 0, again
                seconds = again.seconds
            assert rows(dsn, "SELECT suspended_at, archive FROM accounts") == [(None, None)]
            assert len(rows(dsn, "SELECT 1 FROM audit WHERE action = 'account imported'")) == 1
            intact(place)
            expected.append((contents(dsn, names), rows(dsn, "SELECT count(*) FROM audit")))
            assert expected[-1] == expected[0]
            return killed is None, seconds

    yield trial


@contextmanager
def closing(place: Place, given: Given) -> Iterator[Trial]:
    """Nothing of the account is left but the lines of its audit log, and the certificates count everything once."""
    words = ("account", "close", given.account, "--days", "0", "--yes")
    gone = tuple(name for name in (*tables.ARCHIVED, *tables.LEFT_OUT) if name not in tables.KEPT)
    expected: list[Any] = []

    def trial(moment: float | None) -> tuple[bool, float]:
        with place.copy(given.full) as dsn:
            ended = killed = place.run(*words, kill_after=moment)
            if killed is None:
                place.settle(dsn)
                ended = place.run(*words)
            assert ended is not None
            if ended.status:  # it was killed after everything was done
                assert "No account is called" in ended.errors and killed is None, ended
            left = {name: count for name, (count, _) in contents(dsn, (*gone, "accounts", "members", "users")).items() if count}
            assert left == {}, left
            assert rows(dsn, "SELECT 1 FROM audit_details WHERE actor IS NOT NULL AND account_id = %s", given.account) == []
            found = rows(dsn, "SELECT finished_at IS NOT NULL, counts -> 'erased' FROM erasures")
            expected.append(found)
            assert found == expected[0] and found[0][0], (found, expected[0])
            intact(place)
            return killed is None, ended.seconds

    yield trial


COMMANDS: Mapping[str, Callable[[Place, Given], Any]] = {
    "privacy find": lambda place, given: reading(place, given, "privacy", "find", ZOE, "--json"),
    "privacy export": lambda place, given: exporting(place, given, "privacy", "export", ZOE),
    "privacy erase": erasing,
    "account export": lambda place, given: exporting(
        place, given, "account", "export", given.account, "--key", str(given.key), "--without-queued"
    ),
    "account import": importing,
    "account close": closing,
    "audit verify": lambda place, given: reading(place, given, "audit", "verify"),
}


def killed(kills: int, emails: int) -> Figures:
    """T27: each command `kills` times, on a server of its own."""
    figures, began = Figures("T27 commands killed and run again"), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="mailsvc-chaos-", dir="/tmp"))
    folder.chmod(0o711)
    server = EmbeddedPostgres.at(folder / "postgres", {"fsync": "off", "shared_buffers": "64MB"})
    try:
        place = Place(folder, server.start_blocking())
        given = prepare(place, emails)
        for name in COMMANDS:
            late, seconds = kill(place, given, name, kills)
            figures.notes[name] = f"{kills} in {seconds:.1f} s, {late} late"
            print(f"{name}: killed {kills} times before its end after {seconds:.2f} s; {late} more kills were too late", flush=True)
    finally:
        server.stop_blocking()
        shutil.rmtree(folder, ignore_errors=True)
    figures.seconds = time.monotonic() - began
    return figures


def kill(place: Place, given: Given, name: str, kills: int) -> tuple[int, float]:
    """Kill a command midway, at moments spread over its duration. Returns how often it had ended by then and was tried again, and the
    duration."""
    with COMMANDS[name](place, given) as trial:
        seconds = min(trial(None)[1] for _ in range(2))  # the first one also fills caches
        late = sum(_midway(trial, seconds * (n + 0.5) / kills) for n in range(kills))
    return late, seconds


def _midway(trial: Trial, moment: float) -> int:
    """Kill a command at that moment, or earlier if it has ended by then, since some runs are faster than others."""
    for late in range(10):
        if trial(moment)[0]:
            return late
        moment *= 0.8
    raise AssertionError("the command was never killed before its end")
