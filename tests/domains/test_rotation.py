"""DKIM keys are replaced without a mail that cannot be verified: the new one is seen in DNS before it signs, the old one stays."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import pytest_twisted

from mailsvc.domains import maintenance
from mailsvc.domains.records import Publishing, quoted
from mailsvc.domains.rotation import Rules
from mailsvc.store.domains.domains import Domain
from mailsvc.store.encryption import rotation as encryption
from mailsvc.store.encryption.rotation import Reencrypted
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.postgres.pool import Pool
from tests.domains.rig import HOSTS, Rig
from tests.store.encryption.test_secrets import ENCRYPTION, ONE, TWO


async def states(rig: Rig, domain: Domain) -> list[tuple[str, str]]:
    """Algorithm and state of each key, the oldest first."""
    return [(key.algorithm, key.state) for key in await rig.domains.published_keys(domain.id)]


async def signing(rig: Rig, domain: Domain) -> set[str]:
    rig.domains.changed()
    return {key.selector for key in await rig.domains.signing_keys(domain.id)}


@pytest_twisted.ensureDeferred
async def test_a_rotation(rig: Rig) -> None:
    domain = await rig.verified(await rig.add())
    old = await signing(rig, domain)
    await rig.maintenance.rotate(domain)
    assert await signing(rig, domain) == old and (await rig.now_of(domain)).may_send
    with pytest.raises(maintenance.RotationInProgress):
        await rig.maintenance.rotate(domain)

    for _ in range(3):  # not published yet: the old ones sign on, and the domain stays verified
        await rig.later(hours=1)
        await rig.round()
        domain = await rig.now_of(domain)
        assert (domain.status, domain.since, await signing(rig, domain)) == ("verified", None, old)
    assert [r.status for r in domain.records if not r.required] == ["pending", "pending"]

    await rig.publish(domain)
    await rig.later(hours=1)
    await rig.round()
    domain = await rig.now_of(domain)
    new = await signing(rig, domain)
    assert domain.status == "verified" and len(new) == 2 and not new & old
    assert all(r.status == "verified" and r.required for r in domain.records)
    assert sorted(await states(rig, domain)) == [("ed25519", "leaving"), ("ed25519", "signing"), ("rsa", "leaving"), ("rsa", "signing")]

    await rig.later(days=6, hours=23)
    await rig.round()
    assert len(await states(rig, domain)) == 4
    await rig.later(hours=2)
    await rig.later(days=1)
    await rig.round()
    assert await states(rig, domain) == [("rsa", "signing"), ("ed25519", "signing")]
    kept = await rig.pool.rows("SELECT length(sealed_key) FROM dkim_keys WHERE state = 'retired'")
    assert kept == [(0,), (0,)]
    assert await encryption.unreadable(rig.pool, ENCRYPTION.keys) == []  # or the daemon would not start
    rotated = Encryption.read(ONE + TWO, "test")
    assert await encryption.unfinished(rig.pool, rotated) and await encryption.reencrypt(rig.pool, rotated) == Reencrypted(2, {})
    assert await encryption.count(rig.pool) == {2: 2}
    history = [what for _, what in await rig.domains.history(domain.id)]
    assert sum("is now signing" in line for line in history) == sum("is retired; you" in line for line in history) == 2


@pytest_twisted.ensureDeferred
async def test_the_operator_chooses_algorithms_whose_keys_are_in_dns(rig: Rig) -> None:
    domain = await rig.verified(await rig.add())
    selectors = {key.algorithm: key.selector for key in await rig.domains.published_keys(domain.id)}
    ed25519 = f"{selectors['ed25519']}._domainkey.example.com"
    chosen = await rig.maintenance.sign_with(domain, ["rsa"])
    assert chosen is not None and chosen.signs_with == ("rsa",) and chosen.may_send
    assert await signing(rig, domain) == {selectors["rsa"]}

    rig.set(ed25519, "TXT")  # its record may go
    await rig.later(days=1)
    assert (await rig.verified(chosen)).status == "verified"
    for algorithms in (["rsa", "ed25519"], ["ed25519"]):
        with pytest.raises(maintenance.KeysNotPublished, match=ed25519):
            await rig.maintenance.sign_with(await rig.now_of(domain), algorithms)  # type: ignore[arg-type]
    assert await signing(rig, domain) == {selectors["rsa"]}

    await rig.publish(await rig.now_of(domain))
    await rig.later(minutes=10)
    await rig.maintenance.sign_with(await rig.now_of(domain), ["rsa", "ed25519"])
    assert len(await signing(rig, domain)) == 2
    history = [what for _, what in await rig.domains.history(domain.id)]
    assert "Email is now signed with rsa." in history and "Email is now signed with rsa and ed25519." in history


@pytest_twisted.ensureDeferred
async def test_a_new_key_needs_the_resolver_too(rig: Rig) -> None:
    domain = await rig.verified(await rig.add())
    old = await signing(rig, domain)
    await rig.maintenance.rotate(domain)
    await rig.later(minutes=5)
    for key in await rig.domains.published_keys(domain.id):  # somebody asks before they are there: the resolver remembers
        await rig.checker.resolver.txt(f"{key.selector}._domainkey.{domain.name}")
    await rig.publish(domain)
    await rig.round()
    assert await signing(rig, domain) == old
    await rig.later(hours=1)
    await rig.round()
    assert not await signing(rig, domain) & old


@pytest_twisted.ensureDeferred
async def test_keys_are_replaced_by_age(rig: Rig) -> None:
    domain = await rig.verified(await rig.add())
    await rig.later(days=179)
    await rig.round()
    assert len(await states(rig, domain)) == 2
    await rig.later(days=1, minutes=1)
    await rig.round()
    assert [state for _, state in await states(rig, domain)] == ["signing", "signing", "published", "published"]
    await rig.later(days=1)
    await rig.round()
    assert len(await states(rig, domain)) == 4  # once


@pytest.mark.parametrize(("expire", "keep"), [(3600.0, 7), (5 * 86400.0, 7), (14 * 86400.0, 15)])
def test_an_old_key_outlives_the_queue(expire: float, keep: int) -> None:
    assert Rules.of(expire, 0) == Rules(timedelta(days=keep), None)


@pytest_twisted.ensureDeferred
async def test_delegated_keys_rotate_without_the_owner(pool: Pool) -> None:
    from twisted.internet import reactor

    rig = await Rig.start(pool, reactor, Publishing(HOSTS, dkim_zone="dkim.example.net"))
    try:
        domain = await rig.add()

        async def serve() -> None:
            """What the operator's own zone is filled with."""
            for line in rig.maintenance.publishing.zone(await rig.domains.delegated_keys()):
                name, _, text = line.split(" ", 2)
                rig.set(name.rstrip("."), "TXT", text)

        await serve()
        domain = await rig.verified(domain)
        assert domain.status == "verified" and await signing(rig, domain) == {"ms1r", "ms1e"}
        seen: Any = None
        for slots in ({"ms2r", "ms2e"}, {"ms1r", "ms1e"}):
            await rig.maintenance.rotate(domain)
            await rig.later(hours=1)
            await rig.round()
            assert not await signing(rig, domain) & slots  # the operator has not served it yet
            await serve()
            await rig.later(hours=25)
            await rig.round()
            domain = await rig.now_of(domain)
            assert (domain.status, await signing(rig, domain)) == ("verified", slots)
            await rig.later(days=8)
            await rig.round()
            await serve()
            revoked = [text for name, kinds in rig.dns.zones.items() for text in kinds.get("TXT", []) if text.endswith('p="')]
            assert len(revoked) == 2
            assert seen != (seen := await signing(rig, domain))
        assert {r.type for r in domain.records if r.purpose == "DKIM"} == {"CNAME"}
    finally:
        await rig.dns.stop()


@pytest.mark.parametrize(
    ("zone", "problem"),
    [
        ({"A": ["192.0.2.80"]}, "proxied"),
        ({"CNAME": ["elsewhere.example."]}, "other"),
        ({}, "missing"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_mistakes_at_a_delegated_name(pool: Pool, zone: dict[str, list[str]], problem: str) -> None:
    from twisted.internet import reactor

    rig = await Rig.start(pool, reactor, Publishing(HOSTS, dkim_zone="dkim.example.net"))
    try:
        domain = await rig.add()
        for line in rig.maintenance.publishing.zone(await rig.domains.delegated_keys()):
            name, _, text = line.split(" ", 2)
            rig.set(name.rstrip("."), "TXT", text)
        assert await rig.problems(domain) == {}
        rig.dns.zones["ms1r._domainkey.example.com"] = zone
        assert await rig.problems(domain) == {("DKIM", "CNAME"): problem}
        record = await rig.record(domain, "DKIM", "CNAME", "ms1r")
        rig.dns.zones["ms1r._domainkey.example.com"] = {"CNAME": [f"{record.value}.example.com."]}
        assert await rig.problems(domain) == {("DKIM", "CNAME"): "doubled_value"}
        rig.dns.zones["ms1r._domainkey.example.com"] = {"CNAME": [f"{record.value}."]}
        rig.set(record.value, "TXT", quoted("v=DKIM1; k=rsa; p="))
        rig.clock.advance(3600)
        assert await rig.problems(domain) == {("DKIM", "CNAME"): "not_served"}
    finally:
        await rig.dns.stop()
