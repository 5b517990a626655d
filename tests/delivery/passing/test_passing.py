"""The two ends, over real sockets of this machine."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import attrs
import pytest
import pytest_twisted
from twisted.internet import unix
from twisted.internet.task import deferLater

from mailsvc.delivery.passing import sockets
from mailsvc.delivery.passing.frames import LARGEST, Committed, LeasedRecipients, Passed
from mailsvc.delivery.passing.receiver import Receiver
from mailsvc.delivery.passing.replies import Refused
from mailsvc.delivery.passing.sender import _FILES, _WAITING, Sender
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.mail.spooled import Spooled
from mailsvc.store.mail.values import Accepted, NewEmail, NewRecipient
from mailsvc.store.queue.processes import Running
from tests.store.fixtures import email

pytestmark = pytest.mark.skipif(not sockets.SUPPORTED, reason="needs Linux")
NOW = datetime(2026, 11, 25, tzinfo=UTC)


def process(number: int, *roles: str, region: str = "eu", host: str = "here", pid: int | None = None) -> Running:
    return Running(number, host, number if pid is None else pid, region, roles, "", (), NOW)


@attrs.frozen
class Kept:
    email_id: UUID
    body: bytes | Spooled
    envelope: StoredEnvelope


@attrs.frozen
class Emails:
    """What a process that delivers is told."""

    rig: Rig
    number: int

    def passed(self, emails: Iterable[tuple[Passed, bytes | Spooled | None]], owner: object) -> set[Refused]:
        for frame, message in emails:
            self.rig.handed.append((self.number, frame.leased))
            self.rig.owners.append(owner)
            if message is not None:
                self.rig.kept.append(Kept(frame.email_id, message, frame.envelope))
        return self.rig.refusing

    def committed(self, frames: Iterable[Committed]) -> None:
        self.rig.committed += frames

    def dropped(self, email_id: UUID) -> None:
        self.rig.forgotten.append(email_id)

    def lost(self, owner: object) -> None:
        self.rig.lost.append(owner)


@attrs.define
class Rig:
    """A process that accepts, number 1, and the processes that deliver."""

    reactor: Any
    secret: bytes = attrs.field(factory=lambda: os.urandom(16))
    running: list[Running] = attrs.field(factory=lambda: [process(1, "smtp")])
    receivers: list[Receiver] = attrs.field(factory=list)
    kept: list[Kept] = attrs.field(factory=list)
    handed: list[tuple[int, LeasedRecipients | None]] = attrs.field(factory=list)  # with the process that it was passed on to
    forgotten: list[UUID] = attrs.field(factory=list)
    committed: list[Committed] = attrs.field(factory=list)
    owners: list[object] = attrs.field(factory=list)
    lost: list[object] = attrs.field(factory=list)
    refusing: set[Refused] = attrs.field(factory=set)
    now: float = 0.0
    behind: list[bool] = attrs.field(factory=list)
    sender: Sender = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        async def running() -> list[Running]:
            return self.running

        self.sender = Sender(self.reactor, lambda: 1, running, self.address, self.behind.append, lambda: self.now)

    def address(self, pid: int) -> str:
        return sockets.name(self.secret, pid % 100)

    def delivering(self, number: int, **where: Any) -> Receiver:
        self.running.append(process(number, "delivery", **where))
        receiver = Receiver(Emails(self, number))
        receiver.listen(self.reactor, self.address(number))
        self.receivers.append(receiver)
        return receiver

    async def connected(self, count: int = 1) -> None:
        await self.sender.look()
        await self.until(lambda: len(self.sender._connections) == count and len(self.behind) >= count)

    async def not_reading(self) -> Any:
        """The connection of a process that delivers and does not read what is passed on."""
        receiver = self.delivering(2)
        await self.connected()
        [connection] = receiver.connections
        connection.transport.pauseProducing()
        return connection

    async def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(500):
            if holds():
                return
            await deferLater(self.reactor, 0.01)
        raise AssertionError("it did not happen within five seconds")

    async def stop(self) -> None:
        await self.sender.stop()
        for receiver in self.receivers:
            await receiver.stop()
        await self.until(lambda: not self.sender._connections)


@pytest_twisted.async_yield_fixture
async def rig() -> AsyncIterator[Rig]:
    from twisted.internet import reactor

    rig = Rig(reactor)
    yield rig
    await rig.stop()


def passed(**changes: Any) -> NewEmail:
    return attrs.evolve(email(), **({"email_id": uuid7(NOW.timestamp()), "region": "eu", "message": b"From: a\r\n\r\nHi\r\n"} | changes))


@pytest_twisted.ensureDeferred
async def test_messages_reach_the_process_that_delivers(rig: Rig) -> None:
    rig.delivering(2)
    await rig.connected()
    first, second = passed(), passed(message=b"x" * LARGEST)
    rig.sender.pass_on(first)
    rig.sender.pass_on(second)
    await rig.until(lambda: len(rig.kept) == 2)
    assert rig.kept == [Kept(each.email_id, bytes(each.message), each.envelope) for each in (first, second)]


def in_file(body: bytes, prefix: bytes = b"Received: x\r\n") -> Spooled:
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (closed with its last reference)
    file.write(b"skipped" + body + b"skipped")
    return Spooled(prefix, file, 7, 7 + len(body))


@pytest_twisted.ensureDeferred
async def test_a_large_message_is_passed_on_as_its_file(rig: Rig) -> None:
    rig.delivering(2)
    await rig.connected()
    large = in_file(b"x" * 700_000 + b"\r\n")
    email = passed(message=large)
    rig.sender.pass_on(passed())
    rig.sender.pass_on(email)
    rig.sender.pass_on(passed())
    await rig.until(lambda: len(rig.kept) == 3)
    kept = rig.kept[1]
    assert isinstance(kept.body, Spooled) and b"".join(kept.body) == b"".join(large) and len(kept.body) == len(large)
    assert (kept.email_id, kept.envelope) == (email.email_id, email.envelope)
    assert kept.body.file.fileno() != large.file.fileno() and os.stat(kept.body.file.fileno()).st_nlink == 0


@pytest_twisted.ensureDeferred
async def test_the_file_of_a_message_that_is_stored_encrypted_is_not_passed_on(rig: Rig) -> None:
    rig.delivering(2)
    await rig.connected()
    rig.sender.pass_on(passed(message=in_file(b"x" * 300_000), encrypted=True))
    rig.sender.pass_on(small := passed(encrypted=True))
    await rig.until(lambda: bool(rig.kept))
    assert [each.email_id for each in rig.kept] == [small.email_id]


@pytest_twisted.ensureDeferred
async def test_a_file_stays_open_until_the_other_process_has_it(rig: Rig) -> None:
    connection = await rig.not_reading()
    bodies = [b"%d" % number * 300_000 for number in range(_FILES + 3)]
    for body in bodies:
        rig.sender.pass_on(passed(message=in_file(body)))
    [sending] = rig.sender._connections.values()
    assert sending.full and len(sending._files) == _FILES
    connection.transport.resumeProducing()
    await rig.until(lambda: len(rig.kept) == _FILES and not sending._files)
    assert [b"".join(kept.body) for kept in rig.kept] == [b"Received: x\r\n" + body for body in bodies[:_FILES]]
    assert not sending.full and not connection._files


@pytest_twisted.ensureDeferred
async def test_a_message_whose_file_does_not_arrive_is_not_kept(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.delivering(2)
    await rig.connected()
    monkeypatch.setattr(unix.Client, "sendFileDescriptor", lambda *_: None)
    rig.sender.pass_on(passed(message=in_file(b"x" * 300_000)))
    rig.sender.pass_on(last := passed())
    [sending] = rig.sender._connections.values()
    await rig.until(lambda: bool(rig.kept) and not sending._files)
    assert [each.email_id for each in rig.kept] == [last.email_id]


@pytest_twisted.ensureDeferred
async def test_the_outcome_of_the_commit_follows(rig: Rig) -> None:
    rig.delivering(2)
    await rig.connected()
    first, second = passed(), passed()
    rig.sender.pass_on(first)
    rig.sender.pass_on(second)
    await rig.until(lambda: len(rig.kept) == 2)
    assert not rig.committed
    rig.sender.committed(first)
    await rig.until(lambda: rig.committed == [Committed(first.email_id)])
    rig.sender.dropped(second.email_id)
    await rig.until(lambda: rig.forgotten == [second.email_id])
    assert rig.committed == [Committed(first.email_id)] and not rig.sender._passed


@pytest_twisted.ensureDeferred
async def test_a_process_that_has_ended_is_not_told_about_the_commit(rig: Rig) -> None:
    first = rig.delivering(2)
    await rig.connected()
    rig.sender.pass_on(each := passed())
    await rig.until(lambda: bool(rig.kept))
    del rig.running[1]
    await first.stop()
    await rig.until(lambda: not rig.sender._connections)
    assert rig.lost == rig.owners
    rig.delivering(3)
    await rig.connected()
    rig.sender.committed(each)
    rig.sender.committed(passed())  # was not passed on
    rig.sender.pass_on(last := passed())
    await rig.until(lambda: rig.kept[-1].email_id == last.email_id)
    rig.sender.committed(last)
    await rig.until(lambda: rig.committed == [Committed(last.email_id)])


def leased(lease: int, *recipients: NewRecipient, **changes: Any) -> NewEmail:
    """An email whose recipients are stored with this lease."""
    return passed(lease=lease, recipients=recipients or (NewRecipient("a@example.org", "mx.example.org", True),), **changes)


@pytest_twisted.ensureDeferred
async def test_an_email_goes_to_the_process_whose_lease_it_has(rig: Rig) -> None:
    for number in (2, 3):
        rig.delivering(number, pid=number + 100)
    await rig.connected(2)
    emails = []
    for _ in range(4):
        lease = rig.sender.lease("mx.example.org", False, "eu")
        assert rig.sender.lease("mx.example.net", False, "eu") == lease  # that of the next email, whatever its recipients are
        emails.append(leased(lease))
        rig.sender.pass_on(emails[-1])
    assert sorted(each.lease or 0 for each in emails) == [2, 2, 3, 3]
    await rig.until(lambda: len(rig.handed) == 4)
    assert all(leased is not None and leased.lease == number for number, leased in rig.handed)


@pytest_twisted.ensureDeferred
async def test_what_delivery_needs_is_handed_over(rig: Rig) -> None:
    rig.delivering(2)
    await rig.connected()
    rig.now = 12.5
    recipients = NewRecipient("a@example.org", "mx.example.org", True), NewRecipient("b@example.net", "example.net")
    email = leased(2, *recipients, bulk=True)
    rig.sender.pass_on(email)
    await rig.until(lambda: bool(rig.handed))
    assert rig.handed == [(2, LeasedRecipients(2, 12.5, email.account_id, email.domain_id, "eu", True, email.expires_at, recipients))]
    assert rig.kept == [Kept(email.email_id, bytes(email.message), email.envelope)]


@pytest_twisted.ensureDeferred
async def test_a_lease_is_handed_over_even_if_the_message_is_not(rig: Rig) -> None:
    rig.delivering(2)
    await rig.connected()
    for changes in ({"message": b"x" * (LARGEST + 1)}, {"message": in_file(b"x" * 300_000), "encrypted": True}):
        rig.sender.pass_on(leased(2, **changes))
    await rig.until(lambda: len(rig.handed) == 2)
    assert not rig.kept and all(leased is not None for _, leased in rig.handed)


@pytest_twisted.ensureDeferred
async def test_suppressed_recipients_are_named_with_the_commit(rig: Rig) -> None:
    rig.delivering(2)
    await rig.connected()
    names = [f"{n}@example.org" for n in range(3)]
    email = leased(2, *(NewRecipient(name, "mx.example.org", leased=n > 0) for n, name in enumerate(names)))
    rig.sender.pass_on(email)
    rig.sender.committed(Accepted({email.email_id: frozenset({0, 2})}).left(email))
    await rig.until(lambda: rig.committed == [Committed(email.email_id, (2,))])


@pytest_twisted.ensureDeferred
async def test_a_destination_without_room_gets_no_leases_for_a_second(rig: Rig) -> None:
    rig.delivering(2)
    await rig.connected()

    def leases() -> list[int]:
        return [rig.sender.lease(name, bulk, "eu") for name in ("full.example", "mx.example.org") for bulk in (False, True)]

    assert leases() == [2, 2, 2, 2] and rig.sender.lease("full.example", False, "us") == 0
    for refused, left in ((Refused("full.example", True), [2, 0, 2, 2]), (Refused("full.example", False), [0, 0, 2, 2])):
        rig.refusing = {refused}
        rig.sender.pass_on(leased(2))
        await rig.until(lambda left=left: leases() == left)
    rig.now += 1.0
    assert leases() == [2, 2, 2, 2]


@pytest_twisted.ensureDeferred
async def test_the_lease_of_a_process_that_registered_again_is_the_new_one(rig: Rig) -> None:
    rig.delivering(2)
    await rig.connected()
    rig.running[1] = process(9, "delivery", pid=2)
    await rig.sender.look()
    assert rig.sender.lease("mx.example.org", False, "eu") == 9
    rig.sender.pass_on(leased(2))  # the old one: nobody is told
    rig.sender.pass_on(leased(9))
    await rig.until(lambda: bool(rig.handed))
    assert len(rig.handed) == 1


@pytest_twisted.ensureDeferred
async def test_there_are_no_leases_while_nobody_delivers_or_reads(rig: Rig) -> None:
    assert rig.sender.lease("mx.example.org", False, "eu") == 0
    await rig.not_reading()
    for _ in range(100):
        rig.sender.pass_on(passed(message=b"x" * LARGEST))
    assert rig.sender.lease("mx.example.org", False, "eu") == 0


@pytest_twisted.ensureDeferred
async def test_several_processes_get_messages_in_turn(rig: Rig) -> None:
    for number in (2, 3):
        rig.delivering(number)
    await rig.connected(2)
    for _ in range(4):
        rig.sender.pass_on(passed())
    await rig.until(lambda: len(rig.handed) == 4)
    assert sorted(number for number, _ in rig.handed) == [2, 2, 3, 3]


@pytest.mark.parametrize(
    "changes",
    [
        {"message": b"x" * (LARGEST + 1)},
        {"region": "us"},
        {"scheduled_at": NOW + timedelta(hours=1)},
        {"topic_id": uuid7(0.0)},
    ],
    ids=["large", "another region", "scheduled", "about a topic"],
)
@pytest_twisted.ensureDeferred
async def test_other_mail_is_left_to_the_queue(rig: Rig, changes: dict[str, Any]) -> None:
    rig.delivering(2)
    await rig.connected()
    rig.sender.pass_on(passed(**changes))
    rig.sender.pass_on(last := passed())
    await rig.until(lambda: bool(rig.kept))
    assert [each.email_id for each in rig.kept] == [last.email_id]


@pytest_twisted.ensureDeferred
async def test_only_processes_of_the_same_machine_and_region_are_connected(rig: Rig) -> None:
    rig.delivering(2, host="elsewhere")
    rig.delivering(3, region="us")
    rig.delivering(4)
    await rig.connected()
    assert list(rig.sender._connections) == [4]


@pytest_twisted.ensureDeferred
async def test_a_process_that_has_ended_is_forgotten_and_a_new_one_found(rig: Rig) -> None:
    first = rig.delivering(2)
    await rig.connected()
    del rig.running[1]
    await first.stop()
    await rig.until(lambda: not rig.sender._connections)
    rig.sender.pass_on(passed())  # to nobody
    rig.delivering(3)
    await rig.connected()
    rig.sender.pass_on(passed())
    await rig.until(lambda: len(rig.kept) == 1)


@pytest_twisted.ensureDeferred
async def test_a_process_without_a_socket_is_looked_for_again(rig: Rig) -> None:
    rig.running.append(process(2, "delivery"))
    await rig.sender.look()
    await rig.until(lambda: not rig.sender._connecting)
    del rig.running[1]
    rig.delivering(2)
    await rig.connected()


@pytest_twisted.ensureDeferred
async def test_accepting_is_told_when_all_that_deliver_are_behind(rig: Rig) -> None:
    first, second = rig.delivering(2), rig.delivering(3)
    await rig.connected(2)
    first.set(True)
    await rig.until(lambda: any(each.behind for each in rig.sender._connections.values()))
    assert rig.behind[-1] is False
    second.set(True)
    await rig.until(lambda: rig.behind[-1])
    await first.stop()
    await second.stop()
    await rig.until(lambda: rig.behind[-1] is False)


@pytest_twisted.ensureDeferred
async def test_a_process_that_does_not_read_holds_nobody_up(rig: Rig) -> None:
    connection = await rig.not_reading()
    for _ in range(100):
        rig.sender.pass_on(passed(message=b"x" * LARGEST))
    [full] = rig.sender._connections.values()
    assert full.full and len(full.transport.dataBuffer) + full.transport._tempDataLen <= _WAITING + 2 * LARGEST
    connection.transport.resumeProducing()
    await rig.until(lambda: not full.full)
    assert 0 < len(rig.kept) < 100


@pytest_twisted.ensureDeferred
async def test_a_batch_is_passed_on_whole(rig: Rig) -> None:
    rig.delivering(2)
    await rig.connected()
    batch = [passed(message=b"x" * 20_000) for _ in range(100)]
    for each in batch:
        rig.sender.pass_on(each)
    await rig.until(lambda: len(rig.kept) == 100)
    assert [each.email_id for each in rig.kept] == [each.email_id for each in batch]


@pytest_twisted.ensureDeferred
async def test_messages_do_not_wait_for_many_turns_of_the_reactor(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    received = rig.delivering(2).received
    await rig.connected()
    turns: list[int] = []
    monkeypatch.setattr(Receiver, "received", lambda _, frames, *rest: (turns.append(len(frames)), received(frames, *rest))[1])
    for _ in range(40):
        rig.sender.pass_on(passed(message=b"x" * 50_000))
    await rig.until(lambda: len(rig.kept) == 40)
    assert len(turns) <= 20  # Twisted writes 128 KiB in one


@pytest_twisted.ensureDeferred
async def test_the_socket_holds_as_much_as_the_system_allows(rig: Rig) -> None:
    rig.delivering(2)
    await rig.connected()
    [connection] = rig.sender._connections.values()
    allowed = int(Path("/proc/sys/net/core/wmem_max").read_text("ascii"))
    assert connection.transport.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= min(sockets.BUFFER, allowed)


@pytest.mark.parametrize("end", ["Server", "Client"])
@pytest_twisted.ensureDeferred
async def test_each_end_refuses_other_users(rig: Rig, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """`end`: the type of the transport at the end that refuses."""
    asked: list[str] = []

    def same_user(transport: Any) -> bool:
        asked.append(type(transport).__name__)
        return asked[-1] != end

    monkeypatch.setattr(sockets, "same_user", same_user)
    receiver = rig.delivering(2)
    await rig.sender.look()
    await rig.until(lambda: len(asked) == 2 and not receiver.connections and not rig.sender._connections)
    rig.sender.pass_on(passed())
    assert rig.kept == []


@pytest_twisted.ensureDeferred
async def test_what_cannot_be_read_ends_the_connection(rig: Rig) -> None:
    receiver = rig.delivering(2)
    await rig.connected()
    [connection] = rig.sender._connections.values()
    connection.transport.write(b"\xff" * 25)
    await rig.until(lambda: not receiver.connections and not rig.sender._connections)


def test_installations_on_one_machine_have_different_names() -> None:
    names = {sockets.name(secret, number) for secret in (b"a" * 32, b"b" * 32) for number in (1, 2)}
    assert len(names) == 4 and all(name.startswith("\0mailsvc-") and len(name) < 100 for name in names)
