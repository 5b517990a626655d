"""A submission is committed completely and once per idempotency key, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import pytest
import pytest_twisted
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from mailsvc.store.mail import idempotency
from mailsvc.store.mail.accept import (
    LARGE,
    LONGEST_WAIT,
    Acceptance,
    Accepted,
    InProgress,
    Mismatch,
    NewEmail,
    NewRecipient,
    Replayed,
    Submission,
)
from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.mail.inserts import SMALL, STATEMENT
from mailsvc.store.mail.messages import InPieces
from mailsvc.store.mail.spooled import PIECE
from mailsvc.store.postgres.errors import Conflict, Contention, DataRejected, StoreError, Unavailable
from mailsvc.store.postgres.pool import Pool, Transaction
from tests.store.fixtures import ACCOUNT, DAY, MINUTE, NOW, OTHER, REGION, StoreRig, email, keyed, together


@pytest_twisted.ensureDeferred
async def test_an_accepted_email_is_stored_completely(store: StoreRig) -> None:
    mail = email(
        "a@example.org",
        "b@example.net",
        cc=("C <c@example.org>",),
        subject="Grüße",
        tags=(("kind", "welcome"), ("kind", "again")),
        headers={"X-Entity-Ref-ID": "7"},
        envelope=StoredEnvelope("me@example.com", ret="HDRS"),
        bulk=True,
    )
    assert await store.accept(mail) == [Accepted()]
    found = await store.emails.get(ACCOUNT, mail.email_id)
    assert found is not None
    wanted = attrs.asdict(mail, recurse=False)
    for name in ("created_at", "source", "key_id", "domain_id", "message_id", "sender", "to", "cc", "bcc", "subject", "tags", "headers"):
        assert getattr(found, name) == wanted[name], name
    assert (found.envelope, found.size, found.bulk) == (mail.envelope, len(mail.message), True)
    assert found.recipients == ("a@example.org", "b@example.net")
    assert await store.statuses(mail) == ["queued", "queued"]
    assert await store.events(mail) == [("email.sent", None)]
    assert await store.count("fresh_events") == 1
    stored = await store.messages.load(ACCOUNT, mail.email_id)
    assert stored is not None and (stored.signature, stored.body) == (None, mail.message)


@pytest_twisted.ensureDeferred
async def test_recipients_inserted_with_a_lease_are_not_claimed_by_others(store: StoreRig) -> None:
    mixed = email("a@example.org", "b@example.org", lease=store.lease)
    mixed = attrs.evolve(mixed, recipients=(mixed.recipients[0], NewRecipient("b@example.org", "example.org", False)))
    await store.accept(mixed)
    assert await store.statuses(mixed) == ["sending", "queued"]
    assert [leased.recipient for leased in await store.claim(lease=await store.process())] == [1]
    assert list(await store.queue.leased(store.lease)) == [(mixed.email_id, 0)]


@pytest_twisted.ensureDeferred
async def test_a_shared_commit_is_one_statement(store: StoreRig) -> None:
    before = store.pool.statements
    assert await store.accept(*(email() for _ in range(50))) == [Accepted()] * 50
    assert store.pool.statements - before == 1


@pytest.mark.parametrize("message", [b"", b"\0\xff" * 10, "ü\\\r\n'".encode() * 9, os.urandom(64 * 1024), os.urandom(1_000_000)])
@pytest_twisted.ensureDeferred
async def test_messages_are_stored_byte_for_byte(store: StoreRig, message: bytes) -> None:
    mail = email(message=message)
    await store.accept(mail)
    stored = await store.messages.load(ACCOUNT, mail.email_id)
    assert stored is not None and stored.body == message


class Spooled:
    """A message that comes in chunks of any size."""

    chunks = (b"a" * 10, b"b" * 600_000, b"c" * 512 * 1024)

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.chunks)


@pytest_twisted.ensureDeferred
async def test_large_messages_are_stored_in_pieces(store: StoreRig) -> None:
    mail = email(message=Spooled())
    await store.accept(mail, email())
    sizes = await store.pool.rows("SELECT length(bytes) FROM messages WHERE email_id = %s ORDER BY piece", (mail.email_id,))
    assert max(size for (size,) in sizes) <= PIECE
    stored = await store.messages.load(ACCOUNT, mail.email_id)
    assert stored is not None and stored.body == b"".join(Spooled.chunks)
    sizes: list[int] = []

    async def before_rest(size: int) -> None:
        sizes.append(size)

    pieces = await InPieces(store.messages).load(ACCOUNT, mail.email_id, before_rest)
    assert sizes == [len(mail.message)]
    assert pieces is not None and b"".join(pieces.body) == stored.body  # type: ignore[arg-type]
    assert len(pieces.body) == len(stored.body)
    assert max(len(piece) for piece in pieces.body) <= PIECE  # type: ignore[arg-type]


@pytest_twisted.ensureDeferred
async def test_large_messages_do_not_delay_small_ones(store: StoreRig) -> None:
    """Each large one takes thousands of turns of the reactor; the small one takes a few."""

    class Large(Spooled):
        chunks = (b"x" * 299 + b"\n",) * 4000  # type: ignore[assignment]

    ended: list[str] = []

    async def accept(what: str, mail: Any) -> None:
        await store.accept(mail)
        ended.append(what)

    large = [Deferred.fromCoroutine(accept("large", email(message=Large()))) for _ in range(LARGE + 1)]
    small = [Deferred.fromCoroutine(accept("small", email())) for _ in range(3)]
    for waiting in (*small, *large):
        await waiting
    assert ended == ["small"] * 3 + ["large"] * len(large)


@pytest_twisted.ensureDeferred
async def test_while_a_large_message_is_committed_another_one_is_written(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no third one: the other connections are for small ones."""
    commit, gate, both, begun = Transaction.commit, Deferred[None](), Deferred[None](), 0

    async def late(transaction: Transaction) -> None:
        nonlocal begun
        begun += 1
        if begun == LARGE:
            both.callback(None)
        await gate
        await commit(transaction)

    with pytest.raises(DataRejected):
        await store.acceptance.accept(Submission(ACCOUNT, (email(subject="a\0b", message=Spooled()),)))
    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "commit", late)
        large = [Deferred.fromCoroutine(store.accept(email(message=Spooled()))) for _ in range(LARGE + 1)]
        await both
        await store.accept(*(email() for _ in range(20)))
        assert begun == LARGE
    gate.callback(None)
    for each in large:
        await each
    assert await store.count("emails") == LARGE + 1 + 20


@pytest_twisted.ensureDeferred
async def test_large_messages_do_not_wait_long_for_others_that_fail(store: StoreRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their clients get a temporary error instead of waiting for the time limit of each one before them."""
    clock, locked = Clock(), [Deferred[None]() for _ in range(LARGE)]
    writes = iter(locked)

    async def lock(*_: object) -> None:
        await next(writes)

    acceptance = Acceptance(store.pool, clock)
    monkeypatch.setattr(Pool, "transact", lock)
    waiting = [Deferred.fromCoroutine(acceptance.accept(Submission(ACCOUNT, (email(message=Spooled()),)))) for _ in range(LARGE + 3)]
    clock.advance(LONGEST_WAIT / LARGE + 1)
    assert acceptance.large.waiting == 3
    locked[0].errback(Contention("55P03", "canceling statement due to lock timeout"))
    for late in (waiting[0], *waiting[LARGE:]):
        with pytest.raises((Contention, Unavailable)):
            await late
    assert acceptance.large.waiting == 0
    locked[1].errback(Contention("55P03", "canceling statement due to lock timeout"))
    with pytest.raises(Contention):
        await waiting[1]


@pytest_twisted.ensureDeferred
async def test_an_email_that_cannot_be_stored_fails_alone(store: StoreRig) -> None:
    poisons = {"nul": email(subject="a\0b"), "surrogate": email(subject="\ud800"), "recipients": email(*["a@example.org"] * 40_000)}
    mails = [email() for _ in range(100)]
    results = await together(
        *(outcome(store.acceptance.accept(Submission(ACCOUNT, (mail,)))) for mail in [*mails[:50], *poisons.values(), *mails[50:]])
    )
    assert [r for r in results if r == Accepted()] == [Accepted()] * 100
    assert all(isinstance(r, DataRejected) for r in results[50:53])
    assert await store.count("emails") == await store.count("queue") == await store.count("messages") == 100


async def outcome(coroutine: Any) -> Any:
    try:
        return await coroutine
    except StoreError as error:
        return error


@pytest_twisted.ensureDeferred
async def test_a_batch_is_stored_completely_or_not_at_all(store: StoreRig) -> None:
    with pytest.raises(DataRejected):
        await store.acceptance.accept(Submission(ACCOUNT, (email(), email(subject="\0"))))
    assert await store.count("emails") == 0
    good = tuple(email() for _ in range(100))
    await store.acceptance.accept(Submission(ACCOUNT, good))
    assert await store.count("emails") == 100


@pytest_twisted.ensureDeferred
async def test_a_repeated_request_gets_the_first_response(store: StoreRig) -> None:
    first = keyed(email())
    assert await store.acceptance.accept(first) == Accepted()
    assert first.idempotency is not None
    again = await store.acceptance.accept(keyed(email()))
    assert again == Replayed(first.idempotency.answer)
    assert isinstance(again, Replayed) and list(again.answer) == ["ids", "also"]  # type: ignore[call-overload]
    assert await store.acceptance.accept(keyed(email(), fingerprint=b"g" * 32)) == Mismatch()
    assert await store.acceptance.accept(keyed(email(), key="key/2")) == Accepted()
    assert await store.acceptance.accept(keyed(email(account=OTHER), key="key/1")) == Accepted()
    assert await store.count("emails") == 3


@pytest_twisted.ensureDeferred
async def test_an_expired_key_counts_as_unused(store: StoreRig) -> None:
    assert await store.acceptance.accept(keyed(email(), expires_at=NOW - MINUTE)) == Accepted()
    assert await store.acceptance.accept(keyed(email(), fingerprint=b"g" * 32)) == Accepted()
    assert await store.acceptance.accept(keyed(email(), fingerprint=b"g" * 32)) == Replayed(await answer_of(store))


async def answer_of(store: StoreRig) -> Any:
    return (await store.pool.rows("SELECT answer FROM idempotency"))[0][0]


@pytest_twisted.ensureDeferred
async def test_a_hundred_concurrent_requests_with_one_key_send_one_email(store: StoreRig) -> None:
    second = Acceptance(store.pool, store.clock)  # as another process would
    acceptances = [store.acceptance, second]
    results = await together(*(acceptances[n % 2].accept(keyed(email())) for n in range(100)))
    assert results.count(Accepted()) == 1
    assert all(isinstance(r, (Accepted, InProgress, Replayed)) for r in results)
    assert await store.count("emails") == 1
    results = await together(*(acceptances[n % 2].accept(keyed(email(), key="other")) for n in range(100)))
    assert await store.count("emails") == 2


@pytest_twisted.ensureDeferred
async def test_two_processes_cannot_accept_one_key_concurrently(store: StoreRig) -> None:
    submission = keyed(email())
    assert submission.idempotency is not None
    claim = idempotency.Claim(ACCOUNT, submission.idempotency)

    async def meanwhile(tx: Any) -> Any:
        await idempotency.stored_results(tx, [claim], NOW)
        return await store.acceptance.accept(submission)

    assert await store.pool.transact(meanwhile) == InProgress()
    assert await store.acceptance.accept(submission) == Accepted()


@pytest_twisted.ensureDeferred
async def test_a_refused_request_does_not_hold_its_key(store: StoreRig) -> None:
    with pytest.raises(DataRejected):
        await store.acceptance.accept(keyed(email(subject="\0")))
    assert await store.acceptance.accept(keyed(email())) == Accepted()


@pytest_twisted.ensureDeferred
async def test_keyed_and_other_requests_share_a_commit(store: StoreRig) -> None:
    await store.acceptance.accept(keyed(email()))
    before = store.pool.commits
    results = await together(
        store.acceptance.accept(keyed(email())),
        store.acceptance.accept(keyed(email(), key="new")),
        store.acceptance.accept(Submission(ACCOUNT, (email(),))),
    )
    assert [type(r) for r in results] == [Replayed, Accepted, Accepted]
    assert store.pool.commits - before == 1
    assert await store.count("emails") == 3


@pytest_twisted.ensureDeferred
async def test_expired_responses_are_deleted_in_batches(store: StoreRig) -> None:
    await together(*(store.acceptance.accept(keyed(email(), key=str(n), expires_at=NOW + n * MINUTE)) for n in range(-4, 3)))
    assert [await store.ledger.sweep(NOW, 3), await store.ledger.sweep(NOW, 3), await store.ledger.sweep(NOW, 3)] == [3, 2, 0]
    assert await store.count("idempotency") == 2


@pytest_twisted.ensureDeferred
async def test_cancelling_the_caller_does_not_cancel_the_commit(store: StoreRig) -> None:
    mail = email(lease=store.lease)
    waiting = Deferred.fromCoroutine(store.acceptance.accept(Submission(ACCOUNT, (mail,))))
    waiting.cancel()
    with pytest.raises(CancelledError):
        await waiting
    while not await store.statuses(mail):  # each is a round trip
        pass
    assert list(await store.queue.leased(store.lease)) == [(mail.email_id, 0)]  # delivery/chores gives it back


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("count", [1, 2])
async def test_leases_of_an_unknown_commit_are_left_to_their_process(store: StoreRig, count: int) -> None:
    """It may have given them back and claimed the emails again under the same number, and be sending them."""

    class Doubtful(Pool):
        """Commits, and loses the answer."""

        async def rows(self, sql: str, params: Any = ()) -> Any:
            await super().rows(sql, params)
            raise Unavailable("lost", unknown=True)

    clock = Clock()
    doubtful = Doubtful(store.pool.dsn, store.clock, size=1)
    await doubtful.start()
    acceptance = Acceptance(doubtful, clock)
    mails = [email(lease=store.lease) for _ in range(count)]
    accepting = [Deferred.fromCoroutine(acceptance.accept(Submission(ACCOUNT, (mail,)))) for mail in mails]
    clock.advance(1.0)
    for each in accepting:
        with pytest.raises(Unavailable):
            await each
    for seconds in (0.0, 5.0, 60.0, 600.0):
        await store.queue.release([(mail.email_id, 0) for mail in mails], store.lease)
        assert len(await store.claim()) == count
        clock.advance(seconds)
        await doubtful.run("SELECT")  # there is one connection: after what began now
        assert [await store.statuses(mail) for mail in mails] == [["sending"]] * count
    await doubtful.stop()


@pytest_twisted.ensureDeferred
async def test_scheduled_mail_waits_for_its_time(store: StoreRig) -> None:
    mail = email(scheduled_at=NOW + MINUTE)
    await store.accept(mail)
    assert await store.events(mail) == [("email.scheduled", None)]
    assert await store.queue.ready(REGION, NOW + DAY) == []
    found = await store.emails.get(ACCOUNT, mail.email_id)
    assert found is not None and (found.scheduled_at, found.last_event) == (NOW + MINUTE, "email.scheduled")


@pytest_twisted.ensureDeferred
async def test_writing_is_called_with_the_emails_of_each_write(store: StoreRig) -> None:
    written: list[list[NewEmail]] = []

    def writing(emails: Sequence[NewEmail]) -> None:
        written.append(list(emails))

    acceptance = Acceptance(store.pool, store.clock, writing=writing)
    small, twin, large = email("a@example.org"), email("b@example.org"), attrs.evolve(email("c@example.org"), message=b"x" * (SMALL + 1))
    await together(*(acceptance.accept(Submission(ACCOUNT, emails)) for emails in ((small, twin), (large,))))
    assert sorted(map(len, written)) == [1, 2]
    assert {each.email_id for emails in written for each in emails} == {small.email_id, twin.email_id, large.email_id}


@pytest_twisted.ensureDeferred
async def test_more_than_fits_into_a_statement_is_accepted_in_one_commit(store: StoreRig) -> None:
    await store.pool.run(
        "INSERT INTO suppressions (id, account_id, address, email, origin, created_at)"
        " VALUES (%s, %s, 'last@example.org', 'last@example.org', 'manual', %s)",
        (ACCOUNT, ACCOUNT, NOW),
    )
    names = [*(f"a{n}@example.org" for n in range(STATEMENT // SMALL)), "last@example.org"]
    second, mails = (tuple(email(name, message=b"%d" % n + b"x" * (SMALL - 10)) for n, name in enumerate(names)) for _ in range(2))
    result = await store.acceptance.accept(Submission(ACCOUNT, mails))
    assert isinstance(result, Accepted) and result.suppressed == {mails[-1].email_id: frozenset({0})}
    assert await store.statuses(mails[0]) == ["queued"]
    for mail in mails:
        found = await store.messages.load(ACCOUNT, mail.email_id)
        assert found is not None and found.body == mail.message
    with pytest.raises(Conflict):  # the last statement: its email is stored already
        await store.acceptance.accept(Submission(ACCOUNT, (*second, mails[-1])))
    assert await store.count("emails") == len(mails)
