"""The signing process: real children of this process, which answer, die, hang or do not want to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import pytest_twisted
from twisted.internet import reactor as installed
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import deferLater

from mailsvc.delivery.signing import child as child_
from mailsvc.delivery.signing.child import Lost, SigningProcess
from mailsvc.delivery.signing.signer import FROM, MOST, SignedElsewhere, signer
from mailsvc.mail.authentication import dkim, rsa_batch
from mailsvc.runtime.together import Together

reactor: Any = installed
KEYS = [(f"s{number}", dkim.load_key(algorithm, dkim.generate(algorithm)[0])) for number, algorithm in enumerate(get_args(dkim.Algorithm))]
SILENT = (sys.executable, "-c", "import os, time; os.write(0, b'\\0\\0\\0\\5ready'); time.sleep(60)")
DEAF = (sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)")
AT_ONCE = (sys.executable, "-c", "raise SystemExit('no memory')")


@pytest_twisted.async_yield_fixture
async def made() -> AsyncIterator[Callable[..., SigningProcess]]:
    """Creates and starts children."""
    children: list[SigningProcess] = []

    def make(program: tuple[str, ...] = child_.PROGRAM) -> SigningProcess:
        children.append(SigningProcess(reactor, program))
        children[-1].start()
        return children[-1]

    yield make
    for each in children:
        await each.stop()


async def until(true: Callable[[], Any]) -> None:
    for _ in range(4000):
        if true():
            return
        await deferLater(reactor, 0.005)  # another process: it has to be polled
    raise AssertionError


async def ready(child: SigningProcess) -> SigningProcess:
    await until(lambda: child.ready)
    return child


def message(number: int) -> bytes:
    return b"From: a@b.example\r\nSubject: %d\r\n\r\nHi\r\n" % number


def expected(number: int) -> bytes:
    return dkim.sign(message(number), "b.example", KEYS, 1)


def sign(together: Any, count: int) -> Deferred[list[bytes]]:
    return gatherResults([together(lambda n=n: dkim.prepare(message(n), "b.example", KEYS, 1)) for n in range(count)])  # type: ignore[misc]


def hashes(count: int) -> list[tuple[dkim.SigningKey, bytes]]:
    return [(KEYS[number % 2][1], bytes([number % 256]) * 32) for number in range(count)]


def pid(child: SigningProcess) -> int:
    return int(child._process.pid)


@pytest_twisted.ensureDeferred
async def test_its_signatures_are_those_of_the_daemon(made: Callable[..., SigningProcess]) -> None:
    child = await ready(made())
    asked = [hashes(count) for count in (1, 2, 3, 100)]
    assert await gatherResults([child.sign(each) for each in asked]) == [dkim.signatures(each) for each in asked]


@pytest_twisted.ensureDeferred
async def test_a_key_that_was_replaced_in_the_child_is_sent_again(
    made: Callable[..., SigningProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_, "KEYS", 2)
    child = await ready(made())
    keys = [dkim.load_key("ed25519", dkim.generate("ed25519")[0]) for _ in range(3)]
    for order in ((0, 1), (2, 0), (1, 1, 1), (2, 2), (0, 1), (0, 2)):
        asked = [(keys[number], bytes([number]) * 32) for number in order]
        assert await child.sign(asked) == dkim.signatures(asked)


@pytest_twisted.ensureDeferred
async def test_what_a_killed_child_has_not_answered_is_signed_by_the_daemon(
    made: Callable[..., SigningProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_, "AGAIN", 0.0)
    child = await ready(made())
    first = pid(child)
    os.kill(first, signal.SIGSTOP)
    signing = sign(Together(reactor, SignedElsewhere(child), MOST), 40)
    await until(lambda: child._link and child._link.waiting)
    os.kill(first, signal.SIGKILL)
    assert await signing == [expected(number) for number in range(40)]
    await until(lambda: child.start() or child.ready)  # type: ignore[func-returns-value]
    assert pid(child) != first and await child.sign(hashes(3)) == dkim.signatures(hashes(3))


@pytest_twisted.ensureDeferred
async def test_a_child_that_does_not_answer_is_killed(made: Callable[..., SigningProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_, "DEADLINE", 0.05)
    child = await ready(made(SILENT))
    with pytest.raises(Lost):
        await child.sign(hashes(3))
    await until(lambda: child._process is None)
    assert not child.ready
    child.start()
    assert child._process is None  # too soon


@pytest_twisted.ensureDeferred
async def test_without_a_child_the_daemon_signs(made: Callable[..., SigningProcess]) -> None:
    for program in (AT_ONCE, ("/nowhere",)):
        child = made(program)
        await until(lambda child=child: child._ended_at is not None)
        assert await sign(Together(reactor, SignedElsewhere(child), MOST), 20) == [expected(number) for number in range(20)]


@pytest_twisted.ensureDeferred
async def test_a_child_that_is_behind_gets_no_more(made: Callable[..., SigningProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_, "MOST", 10)
    child = await ready(made(SILENT))
    waiting = child.sign(hashes(10))
    waiting.addErrback(lambda failure: failure.trap(Lost))
    assert not child.ready
    assert await sign(Together(reactor, SignedElsewhere(child), MOST), 5) == [expected(number) for number in range(5)]


@pytest_twisted.ensureDeferred
async def test_it_ends_with_the_daemon_and_not_before(made: Callable[..., SigningProcess]) -> None:
    child = await ready(made())
    for number in (signal.SIGTERM, signal.SIGINT):  # as a terminal or systemd sends them to the whole group
        os.kill(pid(child), number)
    assert await child.sign(hashes(3)) == dkim.signatures(hashes(3))
    running = pid(child)
    await child.stop()
    assert not Path(f"/proc/{running}").exists()
    child.start()
    assert child._process is None


@pytest_twisted.ensureDeferred
async def test_one_that_does_not_end_is_killed(made: Callable[..., SigningProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_, "LEAVE", 0.05)
    child = made(DEAF)
    running = pid(child)
    await child.stop()
    assert not Path(f"/proc/{running}").exists()


@pytest_twisted.ensureDeferred
async def test_it_does_not_get_the_daemons_secrets(made: Callable[..., SigningProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAILSVC_SECRETS__KEY", "a secret")
    child = await ready(made())
    assert b"a secret" not in Path(f"/proc/{pid(child)}/environ").read_bytes()


def test_it_ends_when_the_daemon_was_killed() -> None:
    """The daemon's end of the socket is closed by the kernel."""
    daemon = """if True:
        import os, socket, subprocess, sys
        ours, theirs = socket.socketpair()
        print(subprocess.Popen(sys.argv[1:], stdin=theirs).pid, flush=True)
        os.kill(os.getpid(), 9)
    """
    done = subprocess.run(
        [sys.executable, "-c", daemon, *child_.PROGRAM], capture_output=True, timeout=60, env=child_._environment(), check=False
    )
    assert done.returncode == -signal.SIGKILL and done.stderr == b""  # it waits until the child has closed its output, too
    assert not Path(f"/proc/{int(done.stdout)}/fd/0").exists()


class Noted:
    """A child that notes what it is asked."""

    def __init__(self) -> None:
        self.ready, self.started, self.signed = False, False, 0

    def start(self) -> None:
        self.started = True

    def sign(self, requests: Any) -> Deferred[list[bytes]]:
        self.signed += len(requests)
        result: Deferred[list[bytes]] = Deferred()
        result.callback(dkim.signatures(requests))
        return result


@pytest_twisted.ensureDeferred
async def test_it_is_started_for_several_messages_and_then_signs_all() -> None:
    child: Any = Noted()
    together = Together(reactor, SignedElsewhere(child), MOST)
    assert await sign(together, FROM - 1) == [expected(number) for number in range(FROM - 1)]
    assert not child.started
    assert await sign(together, FROM) == [expected(number) for number in range(FROM)]
    assert child.started and not child.signed
    child.ready = True
    assert await sign(together, 1) == [expected(0)]
    assert child.signed == len(KEYS)


@pytest.mark.parametrize("lanes", [True, False])
def test_a_processor_that_makes_several_at_once_needs_no_child(monkeypatch: pytest.MonkeyPatch, lanes: bool) -> None:
    monkeypatch.setattr(rsa_batch, "available", lanes)
    opened: list[str] = []

    class Opened:
        def add(self, name: str, _: Any) -> None:
            opened.append(name)

    signer(reactor, Opened())
    assert opened == ([] if lanes else ["signing"])
