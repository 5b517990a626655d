"""Experiments on accounts that are moved to another cell under load: the command, servers and daemons are killed at its steps."""

from __future__ import annotations

import json
import random
import re
import smtplib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID

import attrs

from mailsvc.store.cells import account_changes, account_place, nodes
from mailsvc.store.cells.account_copying import Side
from mailsvc.store.cells.account_move import AccountMove
from mailsvc.store.cells.account_place import Found
from mailsvc.store.cells.account_tables import KEPT, LEFT_BEHIND, PASSIVE, STAGED
from tests.chaos import account_move_process
from tests.chaos.cells import GAP, clustered
from tests.chaos.citus_nodes import CellServer, Node
from tests.chaos.experiments import CONNECTIONS, _all
from tests.chaos.ground import Client, Figures, TimedSink, ground, in_background, sink, until
from tests.end_to_end.relay_rig import connect
from tests.end_to_end.rig import PROJECT, Answer, Daemon, check_invariants, free_port, rows

ACCOUNT = "Shop"
STEPS = ("begun", "recording", "copied", "paused", "drained", "locked", "staged", "leaving", "left")
# What is killed, and at which step; all of them once, before any a second time at the same point.
KILLS = (
    ("old node", "recording"), ("new node", "copied emails"), ("coordinator", "copied"), ("daemons", "paused"),
    ("old node", "leaving"), ("new node", "staged"), ("coordinator", "locked"), ("daemons", "staged"),
    ("old node", "left"), ("new node", "left"), ("coordinator", "recording"), ("daemons", "drained"),
    ("old node", "paused"), ("new node", "drained"), ("coordinator", "left"), ("daemons", "left"),
    ("old node", "deleted emails"), ("new node", "arrived"), ("coordinator", "paused"), ("daemons", "copied"),
    ("old node", "locked"), ("new node", "paused"), ("coordinator", "arrived"), ("daemons", "arrived"),
)  # fmt: skip
RUNS = 6  # of the command, until one reaches the step at which something is killed; to complete or undo a move
ALREADY = re.compile(r"is in \w+ already\.\Z")  # said of an account that is where it was to be moved


@attrs.define(eq=False)
class Scene:
    """Two cells with a process each, and an account in the first one."""

    folder: Path
    servers: list[CellServer]
    daemons: list[Daemon]
    target: TimedSink
    account: UUID
    client: Client
    waits: list[float] = attrs.field(factory=list)  # seconds for each request
    submitted: int = 0  # emails over SMTP
    refused: list[str] = attrs.field(factory=list)  # replies after which a client gives an email up

    @contextmanager
    def load(self, emails: int) -> Iterator[None]:
        """Batches of five, at least until there are so many emails, and emails over SMTP. Afterwards all of them have arrived."""
        stop = threading.Event()

        def send() -> None:
            for number in range(1_000_000):
                if stop.is_set() and len(self.client.ids) >= emails:
                    return
                started = time.monotonic()
                self.client.batch(f"c{number}-{each}@example.net" for each in range(5))
                self.waits.append(time.monotonic() - started)
                stop.wait(GAP)

        sending = [in_background(send), in_background(lambda: self._submit(stop))]
        until(lambda: len(self.client.ids) >= 20, 60, "the first emails")
        yield
        stop.set()
        for each in sending:
            each.join(120)
            assert not each.is_alive()
        assert self.refused == [] and self.submitted
        until(lambda: not self._missing(), 120, lambda: f"the arrival of {len(self._missing())} more")

    def _submit(self, stop: threading.Event) -> None:
        """Emails over SMTP, one after the other. After a temporary failure, each is sent again, if need be to the other cell."""
        at, begun = 0, False
        while begun or not stop.is_set():
            with suppress(OSError, ValueError), connect(self.daemons[at], login=False) as session:
                code, reply = self._login(session, self.daemons[at])
                at = 1 - at if code == 454 else at
                while code in (235, 250) and (begun or not stop.is_set()):
                    begun = True
                    code, reply = self.client.submit(session, f"s{self.submitted}@example.net", key=f"s/{self.submitted}")
                    if code == 250:
                        self.submitted, begun = self.submitted + 1, False
                        stop.wait(GAP)
                if code >= 500:
                    self.refused.append(f"{code} {reply!r}")
                    return
            time.sleep(0.05)

    def _login(self, session: smtplib.SMTP, daemon: Daemon) -> tuple[int, bytes]:
        try:
            return session.login(daemon.facts["smtp_username"], self.client.key)
        except smtplib.SMTPAuthenticationError as failed:
            return failed.smtp_code, bytes(failed.smtp_error)

    def accepts(self) -> None:
        sent = len(self.client.ids)
        until(lambda: len(self.client.ids) > sent + 5, 60, "the acceptance after the move")

    def _missing(self) -> set[str]:
        return set(self.client.ids) - self.target.ids()

    def check(self, figures: Figures, at: int) -> None:
        """That the account is in this cell as a whole, and nothing of it in the other; and count."""
        here, other = self.servers[at], self.servers[1 - at]
        until(lambda: not rows(here.dsn, "SELECT 1 FROM queue"), 60, "an empty queue")
        check_invariants(here.dsn)
        kept = {email_id for (email_id,) in rows(here.dsn, "SELECT email_id::text FROM emails WHERE account_id = %s", str(self.account))}
        [(numbers, highest)] = rows(
            here.dsn, "SELECT count(DISTINCT sequence), max(sequence) FROM event_log WHERE account_id = %s", self.account
        )
        assert kept == set(self.client.ids) and numbers == highest, "each email once, and events numbered without gaps"
        assert rows(here.dsn, "SELECT 1 FROM accounts WHERE id = %s", str(self.account))
        left = left_in(other, self.account)
        assert left == {}, left
        figures.accepted, figures.delivered = len(self.client.ids), len(set(self.client.ids) & self.target.ids())
        figures.duplicates, figures.lost = self.target.duplicates(), len(self._missing())


@contextmanager
def scene() -> Iterator[Scene]:
    with sink() as target, clustered(2) as servers, ground(servers[0]) as here:
        daemons = []
        for number, server in enumerate(servers):
            development = {"domain": f"cell{number}.example.com", "dev_file": str(here.folder / f"daemon{number}" / "dev.json")}
            relay = {"listen": {"587": f"tcp:{free_port()}:interface=127.0.0.1"}, "self_signed": str(here.folder / f"tls{number}")}
            daemons.append(here.daemon({**_all(target.port), **server.settings, "development": development, "smtp": relay}))
        first = daemons[0]
        account = UUID(json.loads(first.command("account", "create", ACCOUNT, "--trusted", "--json"))["id"])
        first.command("domain", "add", "shop.example", "--account", ACCOUNT)
        first.command("domain", "trust", "shop.example", "--account", ACCOUNT)
        client = Moving(first, daemons=daemons)
        client.key = first.command("key", "create", "--account", ACCOUNT).strip()
        client.domain = "shop.example"
        yield Scene(here.folder, servers, daemons, target, account, client)


def moved_account(emails: int, moves: int) -> Figures:
    """T36: under load, an account is moved to and fro between two cells. Each time, the command is killed at each step first."""
    figures, began = Figures("T36 an account is moved"), time.monotonic()
    with scene() as here:
        with here.load(emails):
            for number in range(moves):
                source, other = (here.servers[(number + each) % 2] for each in (0, 1))
                found = Found(here.account, None, source.cell, other.cell)
                for step in STEPS:
                    interrupt(source, found, step)
                account_place.move(nodes.Cluster(source.cluster.url, {}), found, lambda _: None)
                here.accepts()
        here.check(figures, moves % 2)
    figures.notes = {"moves": moves, "kills": moves * len(STEPS), "longest wait": f"{max(here.waits):.1f} s"}
    assert (figures.lost, figures.duplicates) == (0, 0)
    figures.seconds = time.monotonic() - began
    return figures


def killed_while_moved(emails: int, kills: int, seconds: float = 150.0) -> Figures:
    """T37: under load, an account is moved to and fro by the command, while nodes, the coordinator and the daemons are killed in turn.

    After `seconds` no more is killed, so that it ends in time on a slow machine.
    """
    figures, began = Figures("T37 kills while an account is moved"), time.monotonic()
    with scene() as here:
        operator, done = Operator(here), 0
        with here.load(emails):
            started = time.monotonic()
            for done in range(1, kills + 1):
                operator.kill(done, *KILLS[(done - 1) % len(KILLS)])
                if time.monotonic() - started > seconds:
                    break
            operator.complete()
            here.accepts()
        here.check(figures, operator.at)
    figures.notes = {
        "kills": done,
        "completed moves": operator.moves,
        "runs that failed": operator.failed,
        "undone": operator.undone,
        "longest wait": f"{max(here.waits):.1f} s",
        "duplicates allowed": done * CONNECTIONS,
    }
    assert figures.lost == 0
    assert figures.duplicates <= done * CONNECTIONS
    figures.seconds = time.monotonic() - began
    return figures


@attrs.define(eq=False)
class Operator:
    """Runs the command to and fro. Each run that fails is followed by another one, or by one that undoes it."""

    scene: Scene
    at: int = 0  # the number of the cell in which the account is, or which it is leaving
    moves: int = 0
    failed: int = 0  # runs
    undone: int = 0
    sentences: set[str] = attrs.field(factory=set)  # with which runs have failed
    _moments: random.Random = attrs.field(factory=lambda: random.Random(2037), init=False)

    def kill(self, number: int, what: str, step: str) -> None:
        """Kill something at this step. The command finds it away, or started again, or is in its next statements when it is killed."""
        run = self._run_until(step)
        nodes_of = {"old node": self._node(self.at), "new node": self._node(1 - self.at), "coordinator": self._coordinator}
        victims: Sequence[Node | Daemon] = self.scene.daemons if what == "daemons" else [nodes_of[what]]
        failed, away, during = self.failed, number % 3 == 0, number % 3 == 2
        if during:
            run.proceed()
            time.sleep(self._moments.uniform(0.0, 0.3))
        for victim in victims:
            victim.kill()
        if away and what != "daemons":
            self._ended(run)
            self._ended(Run.of(self.scene, self._words))  # before the node is back
        elif what == "daemons":
            run.proceed()  # they cannot start while the command waits and all processes of the cell have to stand still
        for victim in victims:
            victim.start()
        self._ended(run)
        if self.failed > failed and self.failed % 2:
            self._undo()

    def complete(self) -> None:
        """Run the command until the account is in the other cell, as a whole."""
        before = self.moves
        for _ in range(RUNS):
            self._ended(Run.of(self.scene, self._words))
            if self.moves > before:
                return
        raise AssertionError(f"{RUNS} runs did not move the account: {self.sentences}")

    @property
    def _coordinator(self) -> Node:
        return self.scene.servers[0].cluster.coordinator

    def _node(self, number: int) -> Node:
        return self.scene.servers[number].node()

    @property
    def _words(self) -> list[str]:
        return [str(self.scene.account), self.scene.servers[1 - self.at].cell]

    def _run_until(self, step: str) -> Run:
        """One of the first runs may complete a move, or undo one and then find that something is not ready yet."""
        for _ in range(RUNS):
            run = Run.of(self.scene, self._words, step)
            if run.reached():
                return run
            self._ended(run)
        raise AssertionError(f"{RUNS} runs did not reach {step}: {self.sentences}")

    def _ended(self, run: Run) -> None:
        if run.seen:
            return
        status, printed = run.end()
        if status == 0 or ALREADY.search(printed.strip()):
            self.at, self.moves = 1 - self.at, self.moves + 1
        else:
            self.failed += 1
            self._note(printed)

    def _undo(self) -> None:
        for _ in range(RUNS):
            status, printed = Run.of(self.scene, [*self._words, "--undo"]).end()
            if status == 0:
                self.undone += 1
                return
            self._note(printed)
            if "already: run" in printed or "No move of" in printed:
                return
        raise AssertionError(f"{RUNS} runs did not undo the move: {self.sentences}")

    def _note(self, printed: str) -> None:
        """Why a run failed, in sentences for the operator and not as an unexpected error."""
        found = re.findall(r"^mailsvc: (.*(?:\n  .*)*)", printed, re.MULTILINE)
        assert len(found) == 1 and "Traceback" not in printed and not re.match(r"\w+: ", found[0]), printed
        self.sentences.add(found[0])


@attrs.define(eq=False)
class Run:
    """One run of the command, which waits at a step, if it comes to it, until `proceed` is called."""

    process: subprocess.Popen[bytes]
    printed: Path
    at: Path
    seen: bool = False

    @classmethod
    def of(cls, scene: Scene, words: Sequence[str], step: str = "") -> Run:
        printed, at = scene.folder / "account-move.txt", scene.folder / "account-move.step"
        at.unlink(missing_ok=True)
        daemon = scene.daemons[0]
        program = [sys.executable, "-m", account_move_process.__name__, step, str(at)]
        with printed.open("wb") as output:
            process = subprocess.Popen(
                [*program, "--config", str(daemon.config), "cell", "account-move", *words],
                cwd=PROJECT,
                env=daemon.environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return cls(process, printed, at)

    def reached(self) -> bool:
        """Whether it came to the step before it ended."""
        until(lambda: self.at.exists() or self.process.poll() is not None, 120, self._text)
        return self.at.exists()

    def proceed(self) -> None:
        assert self.process.stdin is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()

    def end(self) -> tuple[int, str]:
        """Its exit status, and what it printed."""
        self.proceed()
        self.seen = True
        try:
            return self.process.wait(150), self._text()
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"the command did not end:\n{self._text()}") from None

    def _text(self) -> str:
        return self.printed.read_text(errors="replace")


def interrupt(server: CellServer, found: Found, step: str) -> None:
    """End a move right after a step, without a chance to clean up."""

    def kill(name: str) -> None:
        if name == step:
            raise Killed

    sides = [Side.open(server.cluster.url, cell) for cell in (found.source, found.target)]
    try:
        AccountMove(*sides, found.account, moment=kill).run()
    except Killed:
        pass
    finally:
        for side in sides:
            side.close()


def left_in(server: CellServer, account: UUID) -> dict[str, int]:
    """How many rows of an account are in the tables of a cell that it has left, and what else its moves have not removed."""
    side = Side.open(server.cluster.url, server.cell)
    found = {}
    try:
        with side.connection, side.connection.cursor() as cursor:
            for name in (*PASSIVE, *STAGED, *LEFT_BEHIND):
                if name not in KEPT:
                    cursor.execute(f"SELECT count(*) FROM {name} t WHERE {side.tables[name].scope}", {"account": str(account)})
                    [found[name]] = cursor.fetchone()
            cursor.execute("SELECT count(*) FROM account_arrivals")
            [found["account_arrivals"]] = cursor.fetchone()
            cursor.execute("SELECT count(*) FROM account_moves WHERE account_id = %s AND finished_at IS NULL", (str(account),))
            [found["account_moves"]] = cursor.fetchone()
            names = (account_changes.RECORDER, account_changes.HOLDER)
            cursor.execute("SELECT count(*) FROM pg_trigger WHERE starts_with(tgname, %s) OR tgname = %s", names)
            [found["triggers"]] = cursor.fetchone()
    finally:
        side.close()
    return {name: count for name, count in found.items() if count}


class Killed(BaseException):
    """Instead of a signal."""


@attrs.define
class Moving(Client):
    """Goes to the other cell's process when this one says that the account has moved, as a proxy would."""

    daemons: list[Daemon] = attrs.field(factory=list)

    def refuse(self, answer: Answer) -> None:
        if answer.status != 421:
            super().refuse(answer)
            return
        self.daemon = self.daemons[1 - self.daemons.index(self.daemon)]
