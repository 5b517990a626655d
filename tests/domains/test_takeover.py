"""Several accounts with one domain name: DNS decides who has it, and an unverified domain excludes nobody."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import attrs
import pytest
import pytest_twisted
from twisted.internet.defer import Deferred, gatherResults

from mailsvc.delivery.message_loader import Gone
from mailsvc.delivery.sending_domain import SendingDomains
from mailsvc.domains.maintenance import AlreadyAdded
from mailsvc.domains.records import Publishing
from mailsvc.net.dns import Temporary
from mailsvc.store.domains.domains import Domain
from mailsvc.store.domains.values import DomainLimits, LimitReached
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.postgres.errors import Conflict
from tests.domains.rig import HOSTS, Rig
from tests.store.fixtures import StoreRig, email

NAME = "example.com"


async def other(rig: Rig) -> UUID:
    return (await Accounts(rig.pool, rig.clock).create("other")).id


async def of(rig: Rig, domain: Domain) -> Domain:
    found = await rig.domains.own(domain.account_id, domain.id)
    assert found is not None
    return found


async def pressed(rig: Rig, domain: Domain) -> Domain:
    """Its owner presses verify, and it is checked."""
    await rig.maintenance.verify(domain)
    await rig.round()
    return await of(rig, domain)


async def unpublish(rig: Rig, domain: Domain) -> None:
    """Its own DKIM records go; SPF is the same for everybody."""
    for record in await rig.records(domain):
        if record.purpose == "DKIM":
            rig.set(record.name, record.type)


@pytest_twisted.ensureDeferred
async def test_an_unverified_domain_blocks_nobody(rig: Rig) -> None:
    squatter = await rig.maintenance.add(await other(rig), NAME, "r1")
    owner = await rig.add(NAME)  # with its records published
    with pytest.raises(AlreadyAdded):
        await rig.maintenance.add(rig.account.id, NAME, "r1")
    assert (await pressed(rig, squatter)).status == "pending"  # the owner's records prove nothing for anybody else
    assert (await pressed(rig, owner)).status == "verified"
    assert (await pressed(rig, squatter)).status == "pending"
    found = await rig.domains.called(NAME)
    assert found is not None and found.account_id == rig.account.id


@pytest_twisted.ensureDeferred
async def test_a_verified_domain_takes_over_a_name_without_records(rig: Rig) -> None:
    old = await rig.verified(await rig.add(NAME))
    new = await rig.maintenance.add(await other(rig), NAME, "r1")
    await rig.publish(new)
    waiting = await pressed(rig, new)
    assert (waiting.status, waiting.may_send) == ("pending", False)
    [held] = [record for record in waiting.records if record.problem == "held"]
    assert "still in DNS" in (held.message or "") and (await of(rig, old)).may_send
    await unpublish(rig, old)
    await rig.later(hours=1)
    await rig.round()
    assert ((await of(rig, new)).status, (await of(rig, old)).status) == ("verified", "failed")
    lost = await of(rig, old)
    assert not lost.may_send and lost.missing == lost.lost and lost.next_check_at is None
    assert {record.status for record in lost.records if record.purpose == "DKIM"} == {"failed"}
    [kind, data] = [event for event in await rig.events() if event[1]["id"] == str(old.id)][-1]
    assert (kind, data["status"], data["failure_reason"]) == ("domain.updated", "failed", lost.lost)
    assert (await rig.domains.history(old.id))[0][1] == lost.lost
    again = await pressed(rig, lost)  # and without its records it does not get the name back
    assert again.status == "pending" and (await of(rig, new)).status == "verified"


@pytest_twisted.ensureDeferred
async def test_the_former_owner_can_take_the_name_back(rig: Rig) -> None:
    old = await rig.verified(await rig.add(NAME))
    new = await rig.maintenance.add(await other(rig), NAME, "r1")
    await unpublish(rig, old)
    await rig.publish(new)
    assert (await pressed(rig, new)).status == "verified"
    await unpublish(rig, new)
    await rig.publish(old)
    back = await pressed(rig, await of(rig, old))
    assert (back.status, back.lost_at, back.may_send) == ("verified", None, True)
    assert (await of(rig, new)).lost is not None


@pytest.mark.parametrize("answer", ["silence", "differing"])
@pytest_twisted.ensureDeferred
async def test_unanswered_records_do_not_count_as_gone(rig: Rig, answer: str) -> None:
    old = await rig.verified(await rig.add(NAME))
    new = await rig.maintenance.add(await other(rig), NAME, "r1")
    kept = {record.name for record in await rig.records(old) if record.purpose == "DKIM"}
    await unpublish(rig, old)
    await rig.publish(new)
    query = rig.checker.authorities.query

    async def unclear(name: str, kind: str, account: Any = None) -> Any:
        seen = await query(name, kind, account)
        if name not in kept:
            return seen
        return attrs.evolve(seen, problem="no answer") if answer == "silence" else attrs.evolve(seen, differing="a and b differ")

    rig.checker.authorities = SimpleNamespace(query=unclear)  # type: ignore[assignment]
    if answer == "silence":
        resolver = rig.checker.resolver
        txt = resolver.txt

        async def lost(name: str) -> Any:
            return Temporary("no answer") if name in kept else await txt(name)

        resolver.txt = lost  # type: ignore[method-assign]
    waiting = await pressed(rig, new)
    assert waiting.status == "pending" and (await of(rig, old)).status == "verified"
    assert any("did not confirm" in (record.message or "") for record in waiting.records)


@pytest_twisted.ensureDeferred
async def test_a_trusted_name_is_not_taken_over(rig: Rig) -> None:
    trusted = await rig.add(NAME, publish=False)
    await rig.domains.trust(rig.account.id, NAME)
    new = await rig.maintenance.add(await other(rig), NAME, "r1")
    with pytest.raises(Conflict):
        await rig.domains.trust(new.account_id, NAME)
    await rig.publish(new)
    assert (await pressed(rig, new)).status == "pending" and (await of(rig, trusted)).may_send


@pytest_twisted.ensureDeferred
async def test_two_concurrent_checks_verify_one_domain(rig: Rig) -> None:
    """Both were looked at while nobody had the name; the second to be written down finds that somebody has it."""
    one, two = await rig.add(NAME), await rig.maintenance.add(await other(rig), NAME, "r1")
    await rig.publish(two)
    await rig.maintenance.verify(one)
    await rig.maintenance.verify(two)
    taken = await rig.checks.due(10)
    await gatherResults([Deferred.fromCoroutine(rig.maintenance.check(domain)) for domain in taken])
    assert sorted([(await of(rig, one)).status, (await of(rig, two)).status]) == ["pending", "verified"]


@pytest_twisted.ensureDeferred
async def test_queued_mail_of_a_lost_domain_ends(rig: Rig) -> None:
    old = await rig.verified(await rig.add(NAME))
    store = StoreRig(rig.pool, rig.reactor)
    store.lease = await store.process()
    queued = attrs.evolve(email(account=rig.account.id), domain_id=old.id)
    await store.accept(queued)
    new = await rig.maintenance.add(await other(rig), NAME, "r1")
    await unpublish(rig, old)
    await rig.publish(new)
    await pressed(rig, new)
    assert await store.statuses(queued) == ["failed"]
    [recipient] = await store.emails.recipients(rig.account.id, queued.email_id)
    assert recipient.last_reply == f"The sending domain {NAME} now belongs to another account."
    side = SendingDomains(rig.domains, Accounts(rig.pool, rig.clock), lambda: (b"x" * 32,), lambda work: work(), lambda work: work())  # type: ignore[arg-type]
    rig.domains.changed()
    with pytest.raises(Gone, match="now belongs to another account"):
        await side.origin(SimpleNamespace(domain_id=old.id))  # type: ignore[arg-type]


@pytest_twisted.ensureDeferred
async def test_delegated_keys_differ_between_accounts(rig: Rig) -> None:
    rig.maintenance.publishing = rig.checker.publishing = Publishing(HOSTS, dkim_zone="dkim.example.net")
    one, two = await rig.add(NAME, publish=False), await rig.maintenance.add(await other(rig), NAME, "r1")
    values = [{record.value for record in await rig.records(domain) if record.purpose == "DKIM"} for domain in (one, two)]
    assert len(values[0]) == 4 and not values[0] & values[1]


# Limits


@pytest_twisted.ensureDeferred
async def test_limits_include_deleted_domains(rig: Rig) -> None:
    rig.maintenance.limits = DomainLimits(per_account=3, unverified=2, adds_per_hour=4)
    one = await rig.verified(await rig.add("a.example"))
    await rig.add("b.example")
    three = await rig.add("c.example")
    with pytest.raises(LimitReached, match="at most 3 domains"):
        await rig.add("d.example")
    await rig.domains.delete(rig.account.id, one.id)
    with pytest.raises(LimitReached, match="at most 2 unverified domains"):
        await rig.add("d.example")
    await rig.domains.delete(rig.account.id, three.id)
    await rig.add("d.example")
    hosts = ("send.d.example", "d.example", "other.d.example", "")
    assert [await rig.domains.has_return_path(host) for host in hosts] == [True, False, False, False]
    await rig.domains.delete(rig.account.id, (await rig.maintenance.domains.all_named("d.example"))[0].id)
    with pytest.raises(LimitReached, match="at most 4 domains per hour") as refused:
        await rig.add("e.example")
    assert 0 < (refused.value.retry_after or 0) <= 3600
    assert await rig.maintenance.add(await other(rig), "e.example", "r1")  # another account's limits are its own
    assert await rig.maintenance.add(rig.account.id, "f.example", "r1", limited=False)
    await rig.later(hours=1)
    await rig.domains.delete(rig.account.id, (await rig.maintenance.domains.all_named("f.example"))[0].id)
    await rig.add("e.example")


@pytest_twisted.ensureDeferred
async def test_concurrent_adds_respect_the_limit(rig: Rig) -> None:
    rig.maintenance.limits = DomainLimits(per_account=2)
    added = [rig.maintenance.add(rig.account.id, f"n{number}.example", "r1") for number in range(8)]
    ended = await gatherResults([Deferred.fromCoroutine(one).addErrback(lambda failure: failure.value) for one in added])
    assert sum(isinstance(one, Domain) for one in ended) == 2
    assert sum(isinstance(one, LimitReached) for one in ended) == 6
