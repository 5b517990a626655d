"""What an account does not want to be stored is not stored."""

from __future__ import annotations

import attrs
import psycopg2
import pytest
import pytest_twisted

from mailsvc.accounts.retention import RetentionSweep
from mailsvc.domains.tracking import awaits_record, inactive
from mailsvc.outcome import Delivered
from mailsvc.settings import retention as settings
from mailsvc.store.audience import evidence
from mailsvc.store.audience.evidence import By, Evidence, Person
from mailsvc.store.domains.domains import Domains
from mailsvc.store.ids import uuid7
from mailsvc.store.logs.requests import RequestLog
from mailsvc.store.people.audit import by_operator
from mailsvc.store.people.minimization import KINDS, Minimization, network_of
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.tracking.hits import Hits
from tests.store.fixtures import ACCOUNT, NOW, OTHER, StoreRig, email
from tests.store.logs.test_requests import ENTRY
from tests.store.privacy.filling import KEYS


@pytest.fixture
def account(database: str) -> None:
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO accounts (id, name, created_at) VALUES (%s, 'Acme', now())", (str(ACCOUNT),))


@pytest_twisted.ensureDeferred
async def test_it_is_chosen_and_audited(account: None, store: StoreRig) -> None:
    notified: list[str] = []
    chosen = Minimization(store.pool, store.clock, notified.append)
    assert await chosen.of(ACCOUNT) == [] and await chosen.of(OTHER) == []
    await chosen.set(ACCOUNT, ["tracking", "bodies", "nonsense"], [by_operator(ACCOUNT, "data minimization changed")])
    assert await chosen.of(ACCOUNT) == ["bodies", "tracking"] and notified == ["keys"]
    await chosen.set(ACCOUNT, KINDS)
    assert await chosen.of(ACCOUNT) == list(KINDS)
    assert await store.pool.rows("SELECT action FROM audit") == [("data minimization changed",)]


@pytest_twisted.ensureDeferred
async def test_bodies_are_deleted_when_nobody_waits_for_them(account: None, store: StoreRig) -> None:
    sweep = RetentionSweep(store.pool, store.clock, settings.Retention())
    done = email(lease=store.lease)
    waiting, several = email("later@else.example"), email("a@else.example", "b@else.example", lease=store.lease)
    await store.accept(done, waiting, several)
    await store.settle(done, Delivered("250 OK"))
    await store.settle(several, Delivered("250 OK"), None)
    await sweep.sweep()
    assert await store.count("messages") == 3
    await Minimization(store.pool, store.clock).set(ACCOUNT, ["bodies"])
    await sweep.sweep()
    kept = {email_id for (email_id,) in await store.pool.rows("SELECT email_id FROM messages")}
    assert kept == {waiting.email_id, several.email_id} and await store.count("emails") == 3


@pytest_twisted.ensureDeferred
async def test_the_request_log_has_no_bodies(account: None, pool: Pool, store: StoreRig) -> None:
    log = RequestLog(pool)
    entries = [attrs.evolve(ENTRY, log_id=uuid7(NOW.timestamp()), response_body=b"{}") for _ in range(2)]
    await log.write(entries[:1])
    await Minimization(pool, store.clock).set(ACCOUNT, ["requests"])
    await log.write(entries[1:])
    found = await pool.rows("SELECT request_body IS NULL, response_body IS NULL, path FROM request_log ORDER BY log_id")
    assert found == [(False, False, "/emails"), (True, True, "/emails")]


@pytest_twisted.ensureDeferred
async def test_the_request_log_of_encrypted_messages_has_no_bodies(account: None, pool: Pool, store: StoreRig) -> None:
    minimization = Minimization(pool, store.clock)
    assert not await minimization.encrypted(ACCOUNT)
    await pool.run("UPDATE accounts SET encrypt_bodies = true WHERE id = %s", (ACCOUNT,))
    assert await minimization.encrypted(ACCOUNT)
    await RequestLog(pool).write([attrs.evolve(ENTRY, log_id=uuid7(NOW.timestamp()), response_body=b"{}")])
    assert await pool.rows("SELECT request_body, response_body, path FROM request_log") == [(None, None, "/emails")]


@pytest_twisted.ensureDeferred
async def test_consents_have_only_the_network(account: None, store: StoreRig) -> None:
    act = evidence.Act("all", "subscribed")
    for kinds in ([], ["addresses"]):
        await Minimization(store.pool, store.clock).set(ACCOUNT, kinds)
        by = By("confirmation", {"ip": "192.0.2.77", "user_agent": "x"})
        await store.pool.transact(lambda tx, by=by: evidence.record(tx, Person(ACCOUNT, b"h" * 16), [act], by, NOW))
    found = [each.details["ip"] for each in await Evidence(store.pool).of(ACCOUNT, b"h" * 16)]
    assert sorted(found) == ["192.0.2.0", "192.0.2.77"]


@pytest_twisted.ensureDeferred
async def test_nothing_is_tracked(account: None, store: StoreRig) -> None:
    domains = Domains(store.pool, store.clock, KEYS)
    domain = await domains.add(ACCOUNT, "tracked.example", "r1", [])
    await store.pool.run("UPDATE domains SET open_tracking = true WHERE id = %s", (domain.id,))
    mail = email()
    await store.accept(mail)
    tracked = await domains.get(domain.id)
    assert tracked is not None and tracked.tracking_host("own.example") == "own.example"
    await Minimization(store.pool, store.clock).set(ACCOUNT, ["tracking"])
    tracked = await Domains(store.pool, store.clock, KEYS).get(domain.id)
    assert tracked is not None and tracked.tracking_host("own.example") is None and tracked.open_tracking
    assert inactive(tracked, "own.example") == "Opens are not tracked: the account wants no tracking (Settings, Data)."
    assert not awaits_record(attrs.evolve(tracked, tracking_subdomains=("links",)))
    facts = await Hits(store.pool).facts([(ACCOUNT, mail.email_id)])
    assert facts[ACCOUNT, mail.email_id].minimized == ["tracking"]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.77", "192.0.2.0"),
        ("2001:db8:1:2:3::4", "2001:db8:1::"),
        ("192.0.2.77/32", "192.0.2.0"),
        ("a socket", "a socket"),
        ("", ""),
    ],
)
def test_addresses_are_shortened(address: str, network: str) -> None:
    assert network_of(address) == network
