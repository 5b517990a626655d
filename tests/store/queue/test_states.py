"""The store makes exactly the state changes of recipients that outcome.MOVES lists."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import pytest
import pytest_twisted

from mailsvc.outcome import EVENTS, MOVES, WAITING, Bounced, Deferred, Delivered, Failed, Outcome, State, Uncertain
from mailsvc.store.events.suppressions import Suppressions
from mailsvc.store.mail.accept import NewEmail, NewRecipient
from tests.end_to_end.rig import check_invariants
from tests.store.fixtures import ACCOUNT, DAY, MINUTE, NOW, House, email

Move = Callable[[House, NewEmail], Awaitable[object]]

# What brings about each move: a DSN or a complaint about what was delivered is not the store's own doing.
ELSEWHERE = {("delivered", "bounced"), ("delivered", "complained")}


def settle(outcome: Outcome) -> Move:
    return lambda house, mail: house.settle(mail, outcome)


async def claim(house: House, mail: NewEmail) -> None:
    await house.claim(now=NOW + MINUTE)


async def release(house: House, mail: NewEmail) -> None:
    await house.queue.release([(mail.email_id, 0)], house.lease)


async def cancel(house: House, mail: NewEmail) -> None:
    await house.emails.cancel(ACCOUNT, mail.email_id, NOW)


async def expire(house: House, mail: NewEmail) -> None:
    await house.queue.expire(NOW + 9 * DAY)


async def fail(house: House, mail: NewEmail) -> None:
    await house.settle(mail, Failed("The domain is gone."))


async def due(house: House, mail: NewEmail) -> None:
    await house.queue.release_scheduled(NOW + DAY)


async def suppress(house: House, mail: NewEmail) -> None:
    await Suppressions(house.pool, house.clock).add(mail.account_id, [each.address for each in mail.recipients])


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
    ("delayed", "sending"): (claim,),
    ("delayed", "canceled"): (cancel,),
    ("delayed", "failed"): (claim, fail),
    ("delayed", "bounced"): (expire,),
    ("uncertain", "sending"): (claim,),
    ("uncertain", "bounced"): (expire,),
}


async def at(house: House, state: State) -> NewEmail:
    """An email whose recipient is in that state."""
    mail = email(scheduled_at=NOW + MINUTE if state == "scheduled" else None)
    if state in ("sending", "delayed", "uncertain", "delivered", "bounced", "failed"):
        mail = attrs.evolve(mail, lease=house.lease, recipients=(NewRecipient("rcpt@example.org", "example.org", True),))
    await house.accept(mail)
    reach: dict[State, Move] = {
        "delayed": LATER,
        "uncertain": PERHAPS,
        "delivered": settle(Delivered("250")),
        "bounced": settle(Bounced("550")),
        "failed": fail,
        "canceled": cancel,
    }
    if state in reach:
        await reach[state](house, mail)
    assert await house.statuses(mail) == [state]
    return mail


def test_every_move_is_covered() -> None:
    assert MAKES.keys() == {(old, new) for old, news in MOVES.items() for new in news} - ELSEWHERE


@pytest.mark.parametrize(("old", "new"), MAKES)
@pytest_twisted.ensureDeferred
async def test_each_move_happens_with_its_event(house: House, old: State, new: State) -> None:
    mail = await at(house, old)
    for move in MAKES[old, new]:
        await move(house, mail)
    assert await house.statuses(mail) == [new]
    assert EVENTS[new] in [kind for kind, _ in await house.events(mail)]
    assert await house.count("queue") == (new in WAITING)
    assert await house.count("fresh_events") == len(await house.events(mail)) + (new == "suppressed")  # and that of the list


@pytest.mark.parametrize("old", [state for state in MOVES if state not in ("suppressed", "complained")])
@pytest_twisted.ensureDeferred
async def test_nothing_else_changes_the_state(house: House, old: State) -> None:
    """After any operation a recipient has its state or one reachable by a move (`delayed` may be retried within one)."""
    everything: list[Move] = [due, claim, release, cancel, expire, fail, LATER, PERHAPS, settle(Delivered("250")), settle(Bounced("550"))]
    for move in everything:
        mail = await at(house, old)
        await move(house, mail)
        [now] = await house.statuses(mail)
        assert now == old or (old, now) in MAKES, (old, move, now)


@pytest_twisted.ensureDeferred
async def test_the_invariants_checked_after_each_test_find_violations(house: House, database: str) -> None:
    lost, ended = email(), email()
    await house.accept(lost, ended)
    check_invariants(database)
    await house.pool.run("UPDATE queue SET next_at = 'infinity', expires_at = 'infinity'")
    with pytest.raises(AssertionError, match="without a reason or a time"):
        check_invariants(database)
    await house.pool.run("UPDATE queue SET next_at = %s, expires_at = %s", (NOW, NOW + DAY))
    await house.claim()
    await house.settle(ended, Delivered("250 ok"))
    await house.settle(lost, Deferred("later", NOW))
    check_invariants(database)
    await house.pool.run("DELETE FROM queue")
    with pytest.raises(AssertionError, match="not exactly one state"):
        check_invariants(database)
