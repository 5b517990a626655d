"""The operator's view of the queue and changes by hand; facts about attempts in the queue."""

from __future__ import annotations

import attrs
import pytest
import pytest_twisted
from twisted.internet.task import Clock

from mailsvc.accounts.onboarding import Refused
from mailsvc.monitoring.operator_commands import OperatorCommands
from mailsvc.outcome import Deferred, Uncertain
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.queue.claims import FOREVER, Slowdown
from mailsvc.store.queue.operator import Operating
from mailsvc.store.queue.settle import RecipientOutcome
from mailsvc.store.queue.tls import TlsRecords
from tests.store.fixtures import ACCOUNT, DAY, MINUTE, NOW, OTHER, REGION, StoreRig, attempt, email


def at_provider(*names: str) -> list[object]:
    """Emails for destinations of one provider."""
    created = []
    for name in names:
        mail = email()
        place = attrs.evolve(mail.recipients[0], destination=f"big/{name}")
        created.append(attrs.evolve(mail, recipients=(place,)))
    return created


@pytest_twisted.ensureDeferred
async def test_one_hold_applies_to_all_destinations_of_a_provider(store: StoreRig) -> None:
    mails = at_provider("mx1.a", "mx1.b")
    await store.accept(*mails, email())
    await store.queue.hold(REGION, "big", "paused", "It asked for less.", NOW + DAY)
    assert [each.destination for each in await store.queue.ready(REGION, NOW)] == ["example.org"]
    rows = await store.pool.rows("SELECT destination, reason, next_at FROM waiting_at(%s) ORDER BY destination", (NOW,))
    assert {(name, reason) for name, reason, _ in rows if name.startswith("big/")} == {
        ("big/mx1.a", "It asked for less."), ("big/mx1.b", "It asked for less.")
    }  # fmt: skip
    assert {until for name, _, until in rows if name.startswith("big/")} == {NOW + DAY}
    assert await store.queue.unexplained(NOW) == 0
    shown = {each.name: each for each in await Operating(store.pool).destinations(REGION, NOW)}
    assert (shown["big/mx1.a"].state, shown["big/mx1.a"].reason, shown["big/mx1.a"].queued) == ("paused", "It asked for less.", 1)
    assert shown["big"].queued == 0
    assert shown["example.org"].state is None
    await store.queue.lift(REGION, "big", paused=True)
    assert len(await store.queue.ready(REGION, NOW)) == 3


@pytest_twisted.ensureDeferred
async def test_holds_of_the_operator_take_precedence_over_rules(store: StoreRig) -> None:
    await store.queue.hold(REGION, "big", "paused", "By the operator.", FOREVER, ordered=True)
    await store.queue.hold(REGION, "big", "paused", "By a rule.", NOW + DAY)
    assert (await store.queue.holds(REGION))["big"].reason == "By the operator."
    await store.queue.hold(REGION, "big", "paused", "By the operator, shorter.", NOW + MINUTE, ordered=True)
    assert (await store.queue.holds(REGION))["big"].until == NOW + MINUTE


@pytest_twisted.ensureDeferred
async def test_a_slowdown_lasts_until_its_end_or_until_resumed(store: StoreRig) -> None:
    mails = at_provider("mx1.a")
    await store.accept(*mails)
    await store.queue.slow(REGION, "big", Slowdown(6.0, "Six.", NOW + MINUTE), NOW)
    await store.queue.slow(REGION, "big", Slowdown(60.0, "Sixty, for longer.", NOW + DAY), NOW)
    assert await store.queue.slowed(REGION, NOW) == {"big": Slowdown(6.0, "Sixty, for longer.", NOW + DAY)}
    assert await store.queue.slowed(REGION, NOW + DAY) == await store.queue.slowed("elsewhere", NOW) == {}
    assert len(await store.queue.ready(REGION, NOW)) == 1  # slowly, but it goes
    [shown] = await Operating(store.pool).destinations(REGION, NOW)
    assert (shown.name, shown.state, shown.reason, shown.until) == ("big/mx1.a", "slow", "Sixty, for longer.", NOW + DAY)
    await store.queue.slow(REGION, "big", Slowdown(60.0, "Sixty.", NOW + 2 * DAY), NOW + DAY)
    assert await store.queue.slowed(REGION, NOW + DAY) == {"big": Slowdown(60.0, "Sixty.", NOW + 2 * DAY)}
    await store.queue.lift(REGION, "big")
    assert await store.queue.slowed(REGION, NOW) != {}
    await store.queue.lift(REGION, "big", paused=True)
    assert await store.queue.slowed(REGION, NOW) == {}


@pytest_twisted.ensureDeferred
async def test_old_holds_are_deleted(store: StoreRig) -> None:
    await store.queue.hold(REGION, "dead", "backoff", "It did not answer.", NOW, 3)
    await store.queue.hold(REGION, "resting", "backoff", "It does not answer.", NOW + DAY, 3)
    await store.queue.hold(REGION, "paused", "paused", "By the operator.", FOREVER, ordered=True)
    await store.queue.slow(REGION, "dead", Slowdown(6.0, "Six.", NOW), NOW)
    assert await store.queue.forget_holds(REGION, NOW) == 0
    assert await store.queue.forget_holds(REGION, NOW + MINUTE) == 1
    assert set(await store.queue.holds(REGION)) == {"resting", "paused"}
    assert await store.count("slowdowns") == 0


@pytest_twisted.ensureDeferred
async def test_claimed_mail_of_a_paused_account_is_given_back_and_due_when_resumed(store: StoreRig) -> None:
    operating, mine, theirs = Operating(store.pool), email(), email(account=OTHER)
    await store.accept(mine, theirs)
    await operating.pause_account(ACCOUNT, "Paused by the operator.", FOREVER, NOW)
    assert await store.queue.paused_accounts(NOW) == {ACCOUNT: FOREVER}
    claimed = await store.claim()
    keys = [(each.email_id, each.recipient) for each in claimed if each.account_id == ACCOUNT]
    await store.queue.release_paused(keys, store.lease, ACCOUNT, NOW)
    assert await store.claim() == []
    [(reason,)] = await store.pool.rows("SELECT reason FROM waiting_at(%s) WHERE account_id = %s", (NOW, ACCOUNT))
    assert reason == "Paused by the operator."
    assert await store.queue.unexplained(NOW) == 0
    assert await operating.resume_account(ACCOUNT, NOW) == 1
    assert [each.email_id for each in await store.claim()] == [mine.email_id]


@pytest_twisted.ensureDeferred
async def test_mail_given_back_after_a_pause_was_lifted_is_due_at_once(store: StoreRig) -> None:
    operating, mail = Operating(store.pool), email()
    await store.accept(mail)
    [leased] = await store.claim()
    await store.queue.release_paused([(leased.email_id, 0)], store.lease, ACCOUNT, NOW)
    assert len(await store.claim()) == 1
    assert await operating.pauses(NOW) == {}


@pytest_twisted.ensureDeferred
async def test_an_email_is_paused_and_retried(store: StoreRig) -> None:
    operating, mail = Operating(store.pool), email("a@example.org", "b@example.org")
    await store.accept(mail)
    assert await operating.pause_email(mail.email_id, "Paused by the operator.", NOW + DAY, NOW) == (2, 0)
    assert await store.claim() == []
    assert {each.reason for each in await operating.email(mail.email_id, NOW)} == {"Paused by the operator."}
    assert await operating.retry_email(mail.email_id, NOW) == 2
    assert len(await store.claim()) == 2
    assert await operating.pause_email(mail.email_id, "Again.", NOW + DAY, NOW) == (0, 2)


@pytest_twisted.ensureDeferred
async def test_retrying_a_provider_moves_all_of_its_destinations(store: StoreRig) -> None:
    mails = at_provider("mx1.a", "mx1.b")
    await store.accept(*mails, email())
    await store.pool.run("UPDATE queue SET next_at = %s", (NOW + DAY,))
    assert await Operating(store.pool).retry_destination(REGION, "big", NOW) == 2
    assert await Operating(store.pool).retry_destination(REGION, "example.org", NOW) == 1
    assert len(await store.queue.ready(REGION, NOW)) == 3


@pytest_twisted.ensureDeferred
async def test_the_queue_stores_the_source_and_local_faults_of_attempts(store: StoreRig) -> None:
    mail = email()
    await store.accept(mail)
    await store.claim()
    await store.settle(mail, Uncertain("No reply.", NOW), attempt=attempt(source="192.0.2.9"))
    [leased] = await store.claim()
    assert (leased.host, leased.source, leased.faults, leased.status) == ("mx.example.org", "192.0.2.9", 0, "uncertain")
    for faults in (1, 2):
        outcome = RecipientOutcome(0, Deferred("Ours.", NOW), fault=True)
        await store.settle(mail, attempt=None, outcomes=(outcome,))
        [leased] = await store.claim()
        assert (leased.faults, leased.host, leased.source) == (faults, "mx.example.org", "192.0.2.9")


@pytest_twisted.ensureDeferred
async def test_mta_sts_policies_and_tls_counts_are_stored(store: StoreRig) -> None:
    records = TlsRecords(store.pool)
    assert await records.policy("example.org") is None
    await records.keep_policy("example.org", "2", "new", NOW, NOW + DAY)
    await records.keep_policy("example.org", "1", "older", NOW - MINUTE, NOW + DAY)
    assert await records.policy("example.org") == ("2", "new", NOW, NOW + DAY)
    assert await records.sweep(NOW + DAY + MINUTE, 90 * DAY) == 1
    key = (NOW.date(), "example.org", "sts", "mx.example.org", "success")
    await records.add({key: 2})
    await records.add({key: 3, (*key[:4], "certificate-expired"): 1})
    rows = await store.pool.rows("SELECT result, sessions FROM tls_results ORDER BY result")
    assert rows == [("certificate-expired", 1), ("success", 5)]


@pytest_twisted.ensureDeferred
async def test_the_pause_of_an_account_is_shown_if_all_mail_for_a_destination_waits_for_it(store: StoreRig) -> None:
    await store.accept(email(), email(account_id=OTHER))
    clock = Clock()
    clock.advance(NOW.timestamp())
    commands = OperatorCommands(store.queue, Operating(store.pool), REGION, clock.seconds, Accounts(store.pool, clock), lambda: None)
    await Operating(store.pool).pause_account(ACCOUNT, "Paused.", FOREVER, NOW)
    await store.pool.run("UPDATE queue SET next_at = %s, reason = '451 4.7.1' WHERE account_id = %s", (FOREVER, ACCOUNT))
    [shown] = (await commands.show())["destinations"]  # type: ignore[misc]
    assert (shown["reason"], shown["until"]) == ("Waiting for a connection.", None)  # the other account's mail
    await store.accept(email(account_id=OTHER), email(account_id=OTHER))
    await store.pool.run("UPDATE queue SET reason = '450 busy' WHERE account_id = %s", (OTHER,))
    await store.pool.run("UPDATE queue SET reason = '452 full' WHERE email_id = (SELECT max(email_id::text)::uuid FROM queue)")
    [shown] = (await commands.show())["destinations"]  # type: ignore[misc]
    assert shown["reason"] == "450 busy", "the most frequent reason"
    await store.pool.run("DELETE FROM queue WHERE account_id = %s", (OTHER,))
    [shown] = (await commands.show())["destinations"]  # type: ignore[misc]
    assert (shown["reason"], shown["until"]) == ("Paused.", "resumed")
    with pytest.raises(Refused, match="queue release"):
        await commands.resume("destination", "*")


@pytest_twisted.ensureDeferred
async def test_resuming_says_what_still_holds_the_mail(store: StoreRig) -> None:
    mail = email()
    await store.accept(mail, email(account_id=OTHER))
    clock, operating = Clock(), Operating(store.pool)
    clock.advance(NOW.timestamp())
    commands = OperatorCommands(store.queue, operating, REGION, clock.seconds, Accounts(store.pool, clock), lambda: None)
    for kind, name in (("email", str(mail.email_id)), ("destination", "example.org")):
        assert (await commands.resume(kind, name))["held"] == []
    await operating.pause_account(ACCOUNT, "Paused.", FOREVER, NOW)
    [shown] = await operating.email(mail.email_id, NOW)
    assert shown.next_at == shown.expires_at == NOW + 2 * DAY, "it expires during the pause"
    paused = {"kind": "account", "name": str(ACCOUNT), "reason": "Paused."}
    for kind, name in (("email", str(mail.email_id)), ("destination", "example.org")):
        assert (await commands.resume(kind, name))["held"] == [paused]
    await store.queue.hold(REGION, "*", "paused", "Held.", FOREVER, ordered=True)
    held = {"kind": "destination", "name": "*", "reason": "Held."}
    assert (await commands.retry("email", str(mail.email_id)))["held"] == [held, paused]
    await operating.resume_account(ACCOUNT, NOW)
    await store.queue.hold(REGION, "example.org", "paused", "There.", FOREVER, ordered=True)
    assert (await commands.resume("destination", "example.org"))["held"] == [held]
    assert await operating.held_by("account", ACCOUNT, REGION, NOW) == [("destination", "*", "Held.")]
