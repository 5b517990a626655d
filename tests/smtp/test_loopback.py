"""The server on real ports: smtplib, TLS 1.2 and 1.3, and the dialogues that involve TLS."""

from __future__ import annotations

import contextlib
import re
import smtplib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pytest
import pytest_twisted
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread
from twisted.protocols.tls import TLSMemoryBIOFactory

from mailsvc.smtp.server.certificates import self_signed, server_context
from mailsvc.smtp.server.listener import ServerFactory
from mailsvc.smtp.server.session import Listener, Session
from tests.smtp.dialogue import FOLDER, LISTENERS, Dialogue, everything, read
from tests.smtp.harness import Mail, Recorder

VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
PATIENCE = 60
T = TypeVar("T")


def trusting(version: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = context.maximum_version = VERSIONS[version]
    return context


@attrs.define
class Ports:
    """One listener, with STARTTLS and with implicit TLS."""

    context: Any
    recorders: list[Recorder] = attrs.field(factory=list)
    listening: list[Any] = attrs.field(factory=list)
    receivers: list[ServerFactory] = attrs.field(factory=list)

    def open(self, listener: Listener, *, implicit: bool = False) -> int:
        from twisted.internet import reactor

        receivers = ServerFactory(attrs.evolve(listener, context=self.context), self._welcome, reactor)
        factory = TLSMemoryBIOFactory(self.context, False, receivers) if implicit else receivers
        port = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.listening.append(port)
        self.receivers.append(receivers)
        number: int = port.getHost().port
        return number

    def _welcome(self, session: Session) -> Recorder:
        self.recorders.append(Recorder(session))
        return self.recorders[-1]

    @property
    def mails(self) -> list[Mail]:
        return [mail for recorder in self.recorders for mail in recorder.mails]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> object:
    return server_context(*self_signed(tmp_path_factory.mktemp("certificates"), "mx.test"))


@pytest_twisted.async_yield_fixture
async def ports(context: object) -> AsyncIterator[Ports]:
    from twisted.internet import reactor

    ports = Ports(context)
    yield ports
    for port in ports.listening:
        await port.stopListening()
    for _ in range(6000):
        if not any(receivers.live for receivers in ports.receivers):
            return
        await deferLater(reactor, 0.01)
    raise AssertionError("a connection is left")


def blocking(work: Callable[[], T]) -> Deferred[T]:
    """Run a blocking client while the reactor serves it."""
    return deferToThread(work)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("implicit", [False, True], ids=["starttls", "implicit"])
@pytest_twisted.ensureDeferred
async def test_smtplib_logs_in_and_sends(ports: Ports, version: str, implicit: bool) -> None:
    port = ports.open(LISTENERS["submission"], implicit=implicit)

    def send() -> None:
        if implicit:
            client: smtplib.SMTP = smtplib.SMTP_SSL("127.0.0.1", port, context=trusting(version), timeout=PATIENCE)
        else:
            client = smtplib.SMTP("127.0.0.1", port, timeout=PATIENCE)
            client.starttls(context=trusting(version))
        with client:
            client.login("mailsvc", "s3cret")
            assert "starttls" not in client.esmtp_features
            assert client.sendmail("a@b.example", ["c@d.example", "unknown@d.example"], "Subject: x\n\n.dot\n..\n").keys() == {
                "unknown@d.example"
            }

    await blocking(send)
    (mail,) = ports.mails
    assert mail.body == b"Subject: x\r\n\r\n.dot\r\n..\r\n"
    session = ports.recorders[0].session
    assert session.protocol == "ESMTPSA"
    assert session.tls is not None
    assert session.tls["version"] == f"TLSv{version}"
    assert set(session.tls) >= {"version", "cipher"} and session.tls.get("group", "x").isalnum()


@pytest_twisted.ensureDeferred
async def test_login_with_both_mechanisms(ports: Ports) -> None:
    port = ports.open(LISTENERS["submission"], implicit=True)

    def log_in(mechanism: str) -> int:
        with smtplib.SMTP_SSL("127.0.0.1", port, context=trusting("1.3"), timeout=PATIENCE) as client:
            client.user, client.password = "mailsvc", "s3cret"
            client.ehlo()
            return client.auth(mechanism, getattr(client, f"auth_{mechanism.lower()}"))[0]

    assert await blocking(lambda: log_in("PLAIN")) == 235
    assert await blocking(lambda: log_in("LOGIN")) == 235


@pytest_twisted.ensureDeferred
async def test_old_tls_is_refused(ports: Ports) -> None:
    port = ports.open(LISTENERS["submission"], implicit=True)

    def shake_hands() -> None:
        context = trusting("1.2")
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as raw, pytest.raises((ssl.SSLError, ConnectionError)):
            context.wrap_socket(raw)

    with pytest.warns(DeprecationWarning):
        await blocking(shake_hands)


@pytest_twisted.ensureDeferred
async def test_a_megabyte_of_clear_text_after_starttls(ports: Ports) -> None:
    port = ports.open(LISTENERS["submission"])

    def inject() -> bytes:
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as raw:
            raw.recv(1000)
            raw.sendall(b"STARTTLS\r\n")
            assert raw.recv(1000).startswith(b"220 ")
            with contextlib.suppress(ConnectionError):
                raw.sendall(b"EHLO a\r\nAUTH PLAIN AG1haWxzdmMAczNjcmV0\r\n" + b"NOOP\r\n" * 170_000)
            return read_to_the_end(raw)

    assert b"250" not in await blocking(inject)
    assert ports.recorders[0].calls == []


@pytest_twisted.ensureDeferred
async def test_a_megabyte_in_pieces_of_a_record(ports: Ports) -> None:
    port = ports.open(LISTENERS["submission"], implicit=True)
    body = (b"x" * 76 + b"\r\n") * 13_000

    def send() -> None:
        with smtplib.SMTP_SSL("127.0.0.1", port, context=trusting("1.3"), timeout=PATIENCE) as client:
            client.login("mailsvc", "s3cret")
            client.sendmail("a@b.example", ["c@d.example"], body)

    await blocking(send)
    assert ports.mails[0].body == body


def over_tls(path: Path) -> bool:
    """Whether a dialogue says the same inside implicit TLS: it does not ask what is offered."""
    dialogue = read(path)
    return dialogue.plain and dialogue.turns[1].sent.startswith(b"HELO") and sum(len(turn.sent) for turn in dialogue.turns) < 50_000


def with_starttls(path: Path) -> bool:
    dialogue = read(path)
    handshake = any(turn.sent == b"STARTTLS\r\n" and turn.expected == ["220 2.0.0 Ready to start TLS"] for turn in dialogue.turns)
    return handshake and dialogue.plain


EVERY = everything()
IMPLICIT, STARTTLS = [path for path in EVERY if over_tls(path)], [path for path in EVERY if with_starttls(path)]
IN_CLEAR = [path for path in EVERY if read(path).clear]


def test_dialogues_exist() -> None:
    assert len(IMPLICIT) > 30
    assert len(STARTTLS) > 10
    assert len(IN_CLEAR) == 2


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", IMPLICIT, ids=lambda path: str(path.relative_to(FOLDER).with_suffix("")))
@pytest_twisted.ensureDeferred
async def test_dialogue_inside_tls(ports: Ports, path: Path, version: str) -> None:
    dialogue = read(path)
    port = ports.open(attrs.evolve(LISTENERS[dialogue.listener], login_offered=False), implicit=True)

    def play() -> None:
        with trusting(version).wrap_socket(socket.create_connection(("127.0.0.1", port), PATIENCE)) as wire:
            converse(dialogue, wire, version)

    await blocking(play)
    if dialogue.mails is not None:
        assert len(ports.mails) == dialogue.mails


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", STARTTLS, ids=lambda path: str(path.relative_to(FOLDER).with_suffix("")))
@pytest_twisted.ensureDeferred
async def test_dialogue_with_starttls(ports: Ports, path: Path, version: str) -> None:
    dialogue = read(path)
    port = ports.open(LISTENERS[dialogue.listener])

    def play() -> None:
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as wire:
            converse(dialogue, wire, version)

    await blocking(play)
    if dialogue.mails is not None:
        assert len(ports.mails) == dialogue.mails


@pytest.mark.parametrize("path", IN_CLEAR, ids=lambda path: str(path.relative_to(FOLDER).with_suffix("")))
@pytest_twisted.ensureDeferred
async def test_dialogue_in_clear_text_instead_of_tls(ports: Ports, path: Path) -> None:
    dialogue = read(path)
    port = ports.open(LISTENERS[dialogue.listener])

    def play() -> bytes:
        """Returns what the server sends after the 220."""
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as wire:
            *before, last = dialogue.turns
            for turn in before:
                wire.sendall(turn.sent)
                assert len(receive(wire, len(turn.expected))) == len(turn.expected)
            wire.sendall(last.sent)
            return b"" if last.leaves else read_to_the_end(wire)

    received = await blocking(play)
    assert not re.search(rb"[2-5]\d\d[ -]", received) and ports.mails == [] and ports.recorders[0].calls == []


def read_to_the_end(wire: socket.socket) -> bytes:
    received = b""
    try:
        while data := wire.recv(1000):
            received += data
    except ConnectionError:
        pass
    return received


def converse(dialogue: Dialogue, wire: socket.socket, version: str) -> None:
    """Sends each byte of short turns in its own segment or TLS record."""
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for turn in dialogue.turns:
        pieces = [turn.sent] if len(turn.sent) > 300 else [turn.sent[i : i + 1] for i in range(len(turn.sent))]
        for piece in pieces:
            wire.sendall(piece)
        received = receive(wire, len(turn.expected))
        for line, wanted in zip(received, turn.expected, strict=True):
            assert re.fullmatch(re.escape(wanted).replace("…", ".*"), line), f"{line!r} after line {turn.line}"
        if turn.expected == ["220 2.0.0 Ready to start TLS"]:
            wire = trusting(version).wrap_socket(wire)
    wire.close()


def receive(wire: socket.socket, count: int) -> list[str]:
    data = b""
    while data.count(b"\n") < count:
        try:
            more = wire.recv(65536)
        except ConnectionError:
            more = b""
        data += more or b"(closed)\r\n"
        if not more:
            break
    return data.decode().split("\r\n")[:-1]
