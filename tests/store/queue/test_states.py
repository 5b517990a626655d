"""The store makes exactly the state changes of recipients that outcome.MOVES lists."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import pytest
import pytest_twisted

from mailsvc.outcome import EVENTS, MOVES, WAITING, Bounced, Canceled, Deferred, Delivered, Failed, Outcome, State, Uncertain
from mailsvc.store.events.suppressions import Suppressions
from mailsvc.store.mail.accept import NewEmail, NewRecipient
from tests.end_to_end.rig import check_invariants
from tests.store.fixtures import ACCOUNT, DAY, MINUTE, NOW, StoreRig, email

Move = Callable[[StoreRig, NewEmail], Awaitable[object]]

# What brings about each move: a DSN or a complaint about what was delivered is not the store's own doing.
ELSEWHERE = {("delivered", "bounced"), ("delivered", "complained")}


def settle(outcome: Outcome) -> Move:
    return lambda store, mail: store.settle(mail, outcome)


async def claim(store: StoreRig, mail: NewEmail) -> None:
    await store.claim(now=NOW + MINUTE)


async def release(store: StoreRig, mail: NewEmail) -> None:
    await store.queue.release([(mail.email_id, 0)], store.lease)


async def cancel(store: StoreRig, mail: NewEmail) -> None:
    await store.emails.cancel(ACCOUNT, mail.email_id, NOW)


async def expire(store: StoreRig, mail: NewEmail) -> None:
    await store.queue.expire(NOW + 9 * DAY)


async def fail(store: StoreRig, mail: NewEmail) -> None:
    await store.settle(mail, Failed("The domain is gone."))


async def due(store: StoreRig, mail: NewEmail) -> None:
    await store.queue.release_scheduled(NOW + DAY)


async def suppress(store: StoreRig, mail: NewEmail) -> None:
    await Suppressions(store.pool, store.clock).add(mail.account_id, [each.address for each in mail.recipients])


LATER = settle(Deferred("451", NOW))
PERHAPS = settle(Uncertain("lost", NOW))

MAKES: dict[tuple[State, State], tuple[Move, ...]] = {
    ("scheduled", "queued"): (due,),
    ("scheduled", "canceled"): (cancel,),
    ("scheduled", "failed"): (expire,),
    ("scheduled", "suppressed"): (suppress, due),
    ("queued", "sending"): (claim,),
    ("queued", "canceled"): (cancel,),
    ("queued", "failed"): (expire,),
    ("sending", "queued"): (release,),
    ("sending", "delivered"): (settle(Delivered("250")),),
    ("sending", "bounced"): (settle(Bounced("550")),),
    ("sending", "delayed"): (LATER,),
    ("sending", "uncertain"): (PERHAPS,),
    ("sending", "failed"): (fail,),
    ("sending", "canceled"): (settle(Canceled()),),
    ("delayed", "sending"): (claim,),
    ("delayed", "canceled"): (cancel,),
    ("delayed", "failed"): (claim, fail),
    ("delayed", "bounced"): (expire,),
    ("uncertain", "sending"): (claim,),
    ("uncertain", "bounced"): (expire,),
}


async def at(store: StoreRig, state: State) -> NewEmail:
    """An email whose recipient is in that state."""
    mail = email(scheduled_at=NOW + MINUTE if state == "scheduled" else None)
    if state in ("sending", "delayed", "uncertain", "delivered", "bounced", "failed"):
        mail = attrs.evolve(mail, lease=store.lease, recipients=(NewRecipient("rcpt@example.org", "example.org", True),))
    await store.accept(mail)
    reach: dict[State, Move] = {
        "delayed": LATER,
        "uncertain": PERHAPS,
        "delivered": settle(Delivered("250")),
        "bounced": settle(Bounced("550")),
        "failed": fail,
        "canceled": cancel,
    }
    if state in reach:
        await reach[state](store, mail)
    assert await store.statuses(mail) == [state]
    return mail


def test_every_move_is_covered() -> None:
    assert MAKES.keys() == {(old, new) for old, news in MOVES.items() for new in news} - ELSEWHERE


@pytest.mark.parametrize(("old", "new"), MAKES)
@pytest_twisted.ensureDeferred
async def test_each_move_happens_with_its_event(store: StoreRig, old: State, new: State) -> None:
    mail = await at(store, old)
    for move in MAKES[old, new]:
        await move(store, mail)
    assert await store.statuses(mail) == [new]
    assert EVENTS[new] in [kind for kind, _ in await store.events(mail)]
    assert await store.count("queue") == (new in WAITING)
    assert await store.count("fresh_events") == len(await store.events(mail)) + (new == "suppressed")  # and that of the list


@pytest.mark.parametrize("old", [state for state in MOVES if state not in ("suppressed", "complained")])
@pytest_twisted.ensureDeferred
async def test_nothing_else_changes_the_state(store: StoreRig, old: State) -> None:
    """After any operation a recipient has its state or one reachable by a move (`delayed` may be retried within one)."""
    everything: list[Move] = [due, claim, release, cancel, expire, fail, LATER, PERHAPS, settle(Delivered("250")), settle(Bounced("550"))]
    for move in everything:
        mail = await at(store, old)
        await move(store, mail)
        [now] = await store.statuses(mail)
        assert now == old or (old, now) in MAKES, (old, move, now)


@pytest_twisted.ensureDeferred
async def test_what_may_have_been_delivered_cannot_be_canceled_after_another_attempt(store: StoreRig) -> None:
    mail = await at(store, "uncertain")
    await claim(store, mail)
    await LATER(store, mail)
    assert await store.emails.cancel(ACCOUNT, mail.email_id, NOW) == "too_late"
    assert await store.statuses(mail) == ["uncertain"]


@pytest_twisted.ensureDeferred
async def test_the_invariants_checked_after_each_test_find_violations(store: StoreRig, database: str) -> None:
    lost, ended = email(), email()
    await store.accept(lost, ended)
    check_invariants(database)
    await store.pool.run("UPDATE queue SET next_at = 'infinity', expires_at = 'infinity'")
    with pytest.raises(AssertionError, match="without a reason or a time"):
        check_invariants(database)
    await store.pool.run("UPDATE queue SET next_at = %s, expires_at = %s", (NOW, NOW + DAY))
    await store.claim()
    await store.settle(ended, Delivered("250 ok"))
    await store.settle(lost, Deferred("later", NOW))
    check_invariants(database)
    await store.pool.run("DELETE FROM queue")
    with pytest.raises(AssertionError, match="not exactly one state"):
        check_invariants(database)
