"""Messages that are encrypted with a key of their account: stored, read, claimed, searched, moved, and made unreadable. With Postgres."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import attrs
import pytest
import pytest_twisted
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.store.encryption import body_keys, rotation
from mailsvc.store.encryption.body_cipher import OVERHEAD
from mailsvc.store.encryption.body_key_files import BodyKeyError, BodyKeyFiles
from mailsvc.store.encryption.body_keys import MAX_AGE, READ_SECONDS, BodyKeys
from mailsvc.store.encryption.secrets import Encryption, Keys
from mailsvc.store.mail.accept import Acceptance, Accepted, NewEmail, Submission
from mailsvc.store.mail.inserts import SMALL
from mailsvc.store.mail.messages import InPieces, Messages
from mailsvc.store.mail.spooled import PIECE
from mailsvc.store.people.audit import by_operator
from mailsvc.store.people.minimization import Minimization
from mailsvc.store.postgres.errors import Unavailable
from mailsvc.store.privacy.eraser import Eraser
from mailsvc.store.privacy.erasures import the_account
from mailsvc.store.privacy.finding import Finder, Message
from mailsvc.store.privacy.messages import UNREADABLE
from mailsvc.store.queue.claims import Queue
from tests.store.fixtures import ACCOUNT, NOW, OTHER, REGION, StoreRig, email
from tests.store.privacy.filling import KEYS
from tests.store.privacy.test_eraser import at_once

CANARY = b"canary-7f3a-of-the-message"
TEXT = b"Subject: Hello\r\n\r\n" + CANARY + b" to zoe@person.example\r\n"


class Rig:
    """The store with an account that is switched on. `bodies` has the keys as one process has them."""

    def __init__(self, store: StoreRig, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.bodies = self.another()
        self.acceptance = Acceptance(store.pool, store.clock, bodies=self.bodies)
        self.messages = Messages(store.pool, store.clock, bodies=self.bodies)

    def another(self, encryption: Encryption = KEYS) -> BodyKeys:
        """Another process, with nothing in memory."""
        return BodyKeys(self.store.pool, self.store.clock, encryption, BodyKeyFiles(self.folder))

    async def accept(self, *emails: NewEmail) -> None:
        given = tuple(attrs.evolve(each, encrypted=True) for each in emails)
        assert isinstance(await self.acceptance.accept(Submission(given[0].account_id, given)), Accepted)

    async def read(self, mail: NewEmail, bodies: BodyKeys | None = None) -> bytes:
        stored = await Messages(self.store.pool, self.store.clock, bodies=bodies or self.another()).load(mail.account_id, mail.email_id)
        assert stored is not None
        return stored.body

    @property
    def file(self) -> Path:
        return self.folder / str(ACCOUNT)


@pytest_twisted.async_yield_fixture
async def rig(store: StoreRig, tmp_path: Path) -> Any:
    for account in (ACCOUNT, OTHER):
        await store.pool.run("INSERT INTO accounts (id, name, created_at) VALUES (%s, 'Acme', now()) ON CONFLICT DO NOTHING", (account,))
    rig = Rig(store, tmp_path / "secrets" / "body-keys")
    rig.folder.parent.mkdir()
    await rig.bodies.turn_on(ACCOUNT, [])
    yield rig


@attrs.frozen
class Piecemeal:
    """A message in odd pieces, as the spool of an SMTP session has it."""

    content: bytes

    def __len__(self) -> int:
        return len(self.content)

    def __iter__(self) -> Any:
        return (self.content[start : start + 100_001] for start in range(0, len(self.content), 100_001))


@pytest.mark.parametrize("size", [0, 1, SMALL - len(TEXT), SMALL, PIECE, 3 * PIECE + 7])
@pytest.mark.parametrize("whole", [True, False])
@pytest_twisted.ensureDeferred
async def test_a_message_is_not_in_the_database_and_is_read_as_it_was(rig: Rig, size: int, whole: bool) -> None:
    content = TEXT + b"x" * size + CANARY
    mail = email(message=content if whole else Piecemeal(content))
    await rig.accept(mail)
    stored = await rig.store.pool.rows("SELECT bytes, length(bytes) FROM messages ORDER BY piece")
    assert stored and all(CANARY not in bytes(each) and length <= PIECE + OVERHEAD for each, length in stored)
    assert await rig.read(mail) == content
    assert await rig.store.pool.rows("SELECT size, encrypted FROM emails") == [(len(content), True)]
    pieces = await InPieces(rig.messages).load(ACCOUNT, mail.email_id, _nothing)
    assert pieces is not None and len(pieces.body) == len(content)


async def _nothing(size: int) -> None: ...


@pytest_twisted.ensureDeferred
async def test_messages_with_and_without_encryption_share_a_commit_and_a_claim(rig: Rig) -> None:
    plain = [email(f"p{n}@example.org", account=OTHER, message=b"plain %d\r\n\r\n" % n) for n in range(3)]
    sealed = [attrs.evolve(email(f"s{n}@example.org", message=TEXT + b"%d" % n), encrypted=True) for n in range(3)]
    await rig.bodies.of(ACCOUNT)
    for each in (Submission(OTHER, tuple(plain)), Submission(ACCOUNT, tuple(sealed))):
        await rig.acceptance.accept(each)
    claimed = await Queue(rig.store.pool, bodies=rig.bodies).claim(REGION, {"example.org": 50}, NOW, rig.store.lease, 1 << 20)
    assert {id_: content for id_, (content, _) in claimed.messages.items()} == {each.email_id: each.message for each in plain + sealed}
    for each in plain + sealed:
        assert await rig.read(each) == each.message


@pytest_twisted.ensureDeferred
async def test_a_claim_never_waits_for_a_key_and_never_brings_what_is_encrypted(rig: Rig) -> None:
    mail = email("a@example.org", message=TEXT)
    await rig.accept(mail)
    cold = Queue(rig.store.pool, bodies=rig.another())
    claimed = await cold.claim(REGION, {"example.org": 50}, NOW, rig.store.lease, 1 << 20)
    assert len(claimed.rows) == 1 and claimed.messages == {}


@pytest_twisted.ensureDeferred
async def test_switching_it_off_and_on_keeps_the_key_and_what_is_stored(rig: Rig) -> None:
    first, second, third = (email(message=TEXT + b"%d" % n) for n in range(3))
    switched = Minimization(rig.store.pool, rig.store.clock)
    await rig.accept(first)
    await rig.bodies.turn_off(ACCOUNT, [by_operator(ACCOUNT, "off")])
    assert not await switched.encrypted(ACCOUNT)
    await rig.store.accept(second)
    await rig.bodies.turn_on(ACCOUNT, [by_operator(ACCOUNT, "on")])
    await rig.bodies.turn_on(ACCOUNT, [by_operator(ACCOUNT, "on, again")])
    assert await switched.encrypted(ACCOUNT)
    await rig.accept(third)
    for each in (first, second, third):
        assert await rig.read(each) == each.message
    [(count,)] = await rig.store.pool.rows("SELECT count(*) FROM messages WHERE position(%s in bytes) > 0", (CANARY,))
    assert count == 1
    assert await rig.store.pool.rows("SELECT action FROM audit ORDER BY seq") == [("off",), ("on",)]


@pytest_twisted.ensureDeferred
async def test_a_rotation_of_the_encryption_keys_does_not_need_the_files(rig: Rig) -> None:
    mail = email(message=TEXT)
    await rig.accept(mail)
    secret = rig.file.read_bytes()
    rig.file.unlink()
    [old] = KEYS.keys.by_number.values()
    newer = Encryption(Keys({1: old, 2: b"n" * 32}))
    assert await rotation.unreadable(rig.store.pool, newer.keys) == [] and (await rotation.reencrypt(rig.store.pool, newer)).done == 1
    rig.file.write_bytes(secret)
    assert await rig.read(mail, rig.another(Encryption(Keys({2: b"n" * 32})))) == TEXT


@pytest_twisted.ensureDeferred
async def test_without_its_file_nothing_is_read_or_accepted_and_nothing_is_lost(rig: Rig) -> None:
    mail = email(message=TEXT)
    await rig.accept(mail)
    secret = rig.file.read_bytes()
    broken: list[tuple[Callable[[], object], str]] = [
        (rig.file.unlink, "does not exist"),
        (lambda: rig.file.write_bytes(base64.b64encode(b"o" * 32)), "is another one"),
        (lambda: rig.file.write_bytes(b"%&/"), "is damaged"),
        (lambda: rig.file.write_bytes(secret[:20]), "is damaged"),
    ]
    for breaking, why in broken:
        breaking()
        with pytest.raises(BodyKeyError, match=why):
            await rig.read(mail)
        with pytest.raises(BodyKeyError, match=why):
            await rig.another().turn_on(ACCOUNT, [])
        late = Acceptance(rig.store.pool, rig.store.clock, bodies=rig.another())
        with pytest.raises(Unavailable, match="not available"):
            await late.accept(Submission(ACCOUNT, (attrs.evolve(email(message=TEXT), encrypted=True),)))
        missing, left = await rig.another().problems()
        assert list(missing) == [ACCOUNT] and why in missing[ACCOUNT] and left == []
    with pytest.raises(Unavailable):  # a process that was not given the keys never stores it as it is
        await Acceptance(rig.store.pool, rig.store.clock).accept(Submission(ACCOUNT, (attrs.evolve(email(), encrypted=True),)))
    unset = BodyKeys(rig.store.pool, rig.store.clock, KEYS, None)
    for attempt in (unset.of(ACCOUNT), unset.turn_on(OTHER, []), rig.another(Encryption(Keys({7: b"x" * 32}))).of(ACCOUNT)):
        with pytest.raises(BodyKeyError):
            await attempt
    rig.file.write_bytes(secret)
    assert await rig.read(mail) == TEXT and await rig.another().problems() == ({}, [])
    assert len(await rig.store.pool.rows("SELECT 1 FROM emails")) == 1


@pytest_twisted.ensureDeferred
async def test_a_key_stays_in_memory_for_a_short_time(rig: Rig) -> None:
    clock = Clock()
    reads: list[object] = []

    def counted(work: Callable[[], Any]) -> Deferred[Any]:
        reads.append(work)
        done: Deferred[Any] = Deferred()
        done.callback(work())
        return done

    bodies = BodyKeys(rig.store.pool, clock, KEYS, BodyKeyFiles(rig.folder), counted)
    for _ in range(5):
        await bodies.of(ACCOUNT)
    assert len(reads) == 1 and bodies.known(ACCOUNT) is not None
    clock.advance(MAX_AGE)
    assert bodies.known(ACCOUNT) is None
    await bodies.of(ACCOUNT)
    assert len(reads) == 2


@pytest_twisted.ensureDeferred
async def test_a_folder_that_does_not_answer_holds_up_one_caller_only(rig: Rig) -> None:
    clock = Clock()
    asked: list[object] = []

    def silent(work: Callable[[], Any]) -> Deferred[Any]:
        asked.append(work)
        return Deferred()

    bodies = BodyKeys(rig.store.pool, clock, KEYS, BodyKeyFiles(rig.folder), silent)
    waiting = Deferred.fromCoroutine(bodies.of(ACCOUNT))
    while not asked:
        await _turn()
    clock.advance(READ_SECONDS)
    with pytest.raises(BodyKeyError, match="does not answer"):
        await waiting
    with pytest.raises(BodyKeyError, match="does not answer"):
        await bodies.of(ACCOUNT)
    assert len(asked) == 1


def _turn() -> Awaitable[None]:
    from twisted.internet import reactor
    from twisted.internet.task import deferLater

    return deferLater(reactor, 0.001)  # type: ignore[arg-type]


@pytest_twisted.ensureDeferred
async def test_a_person_is_found_exported_and_erased_in_encrypted_messages(rig: Rig) -> None:
    has, long, others = (
        email(message=TEXT),
        email(message=b"S: x\r\n\r\n" + b"y" * PIECE + TEXT),
        email(message=b"Subject: x\r\n\r\nnobody\r\n"),
    )
    await rig.accept(has, long, others)

    async def find(bodies: BodyKeys) -> dict[str, int]:
        return dict((await Finder(rig.store.pool, "zoe@person.example", ACCOUNT, at_once, bodies).find()).counts)

    assert await find(rig.another()) == {"messages.bytes": 2}
    archived = [each async for each in Finder(rig.store.pool, "zoe@person.example", None, at_once, rig.another()).archive()]
    assert {each.content for each in archived if isinstance(each, Message)} == {has.message, long.message}
    secret = rig.file.read_bytes()
    rig.file.unlink()
    assert await find(rig.another()) == {UNREADABLE: 3}
    await rig.store.pool.run("DELETE FROM queue")
    unread = await erased(rig, "zoe@person.example")
    assert unread.counts["kept"] == {UNREADABLE: 3} and unread.finished_at is not None
    rig.file.write_bytes(secret)
    assert (await erased(rig, "zoe@person.example")).counts["erased"]["messages.bytes"] == 2
    assert await rig.read(others) == others.message


async def erased(rig: Rig, what: str) -> Any:
    from twisted.internet import reactor

    eraser = Eraser(rig.store.pool, reactor, KEYS, at_once, patience=0.0, bodies=rig.another())
    begun = await eraser.erasures.begin(ACCOUNT, eraser.erasures.new_id(), what, False, "command")
    return await eraser.run(begun, what)


@pytest_twisted.ensureDeferred
async def test_deleting_an_account_makes_a_backup_of_its_messages_unreadable(rig: Rig) -> None:
    mail = email(message=TEXT)
    await rig.accept(mail)
    [(key, stored)] = await rig.store.pool.rows("SELECT k.key, m.bytes FROM body_keys k, messages m")
    done = await erased(rig, the_account(ACCOUNT))
    assert done.counts["erased"]["body_keys"] == 1 and not rig.file.exists() and list(rig.folder.iterdir()) == []
    # A backup has what the database had. A new file does not help.
    await rig.store.pool.run("INSERT INTO body_keys VALUES (%s, %s, now())", (ACCOUNT, key))
    with pytest.raises(BodyKeyError, match="does not exist"):
        await rig.another().of(ACCOUNT)
    BodyKeyFiles(rig.folder).make(ACCOUNT)
    with pytest.raises(BodyKeyError, match="is another one"):
        await rig.another().of(ACCOUNT)
    assert CANARY not in bytes(stored)


@pytest_twisted.ensureDeferred
async def test_an_account_is_not_deleted_where_its_file_cannot_be(rig: Rig) -> None:
    from twisted.internet import reactor

    eraser = Eraser(rig.store.pool, reactor, KEYS, at_once, bodies=BodyKeys(rig.store.pool, reactor, KEYS, None))
    begun = await eraser.erasures.begin(ACCOUNT, eraser.erasures.new_id(), the_account(ACCOUNT), False, "command")
    with pytest.raises(BodyKeyError, match=r"secrets\.body_keys"):
        await eraser.run(begun, the_account(ACCOUNT))
    assert len(await rig.store.pool.rows("SELECT 1 FROM body_keys")) == 1 and rig.file.exists()


@pytest_twisted.ensureDeferred
async def test_files_are_private_and_those_of_nobody_are_reported(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rig.file.stat().st_mode & 0o777 == 0o600 and rig.folder.stat().st_mode & 0o777 == 0o700
    left = rig.folder / str(UUID(int=7))
    left.write_bytes(rig.file.read_bytes())
    assert await rig.another().problems() == ({}, [left])
    monkeypatch.setattr(body_keys, "cell_of", lambda dsn: "us_1")
    assert await rig.another().problems() == ({}, [])  # it can be of an account in another cell
    first = rig.file.read_bytes()
    assert base64.b64encode(BodyKeyFiles(rig.folder).make(ACCOUNT)) == first.strip()  # never replaced
