"""The API over real ports' octets, the real intake and the real store: what goes in comes back out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import attrs
import pytest_twisted
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.interfaces import IReactorTime

from mailsvc.budget import Budget
from mailsvc.guard import networks
from mailsvc.http.api import Api, Told
from mailsvc.http.links import Links
from mailsvc.http.site import ApiSite
from mailsvc.http.suppressions import Suppressions
from mailsvc.http.webhooks import Webhooks
from mailsvc.intake import Intake
from mailsvc.policy import Limits
from mailsvc.ratelimit import RateLimit
from mailsvc.store.accept import Acceptance
from mailsvc.store.accounts import Accounts
from mailsvc.store.domains import Domains
from mailsvc.store.emails import Emails
from mailsvc.store.eventlog import EventLog
from mailsvc.store.keys import Keys, is_well_formed
from mailsvc.store.messages import Messages
from mailsvc.store.pool import Pool
from mailsvc.store.suppressions import Suppressions as StoredSuppressions
from mailsvc.store.webhooklog import WebhookLog
from mailsvc.store.webhooks import Webhooks as StoredWebhooks
from mailsvc.weburl import Rules, read
from tests.http.rig import Connection, Response, Web, request
from tests.store.test_seal import SEAL

GOOD: dict[str, Any] = {"from": "Acme <hello@example.test>", "to": ["zoe@example.net"], "subject": "Grüße", "html": "<p>Hello</p>"}


class Elsewhere:
    """Nobody here delivers."""

    destination = "example.net"
    leased = False
    lease = 0

    def offer(self, domain: str, size: int, bulk: bool) -> Elsewhere:
        return self

    def take(self, email: Any, seats: Any) -> None: ...
    def free(self, seats: Any) -> None: ...
    def ring(self, channel: str) -> None: ...


async def at_once(work: Callable[[], Any]) -> Any:
    return work()


@attrs.frozen
class World:
    site: ApiSite
    key: str
    foreign_key: str
    pool: Any = None

    def ask(self, method: str, path: str, body: object = b"", key: str | None = None, **headers: str) -> Deferred[Response]:
        """One request on a connection of its own; the Deferred fires when the answer is there."""
        connection: Any = Connection(self, "192.0.2.1")
        answered: Deferred[Response] = Deferred()
        write = connection.transport.write

        def written(octets: bytes) -> None:
            write(octets)
            for response in connection.responses():
                if len(response.body) == int(response.headers["content-length"]) and not answered.called:
                    answered.callback(response)

        connection.transport.write = written
        connection.send(request(method, path, body, key or self.key, **headers))
        return answered.addTimeout(10, self.site.reactor)


def told_of(pool: Pool, clock: Any) -> Told:
    rules = Rules(clear=True, allowed=networks(["127.0.0.1"]))
    return Told(
        EventLog(pool),
        lambda reader: Webhooks(StoredWebhooks(pool, clock, SEAL), WebhookLog(pool), reader, partial(read, rules=rules), 3),
        lambda reader: Suppressions(StoredSuppressions(pool, clock), reader),
    )


@pytest_twisted.async_fixture
async def world(pool: Pool) -> World:
    from twisted.internet import reactor

    clock: IReactorTime = reactor  # type: ignore[assignment]
    accounts, domains, keys = Accounts(pool, clock), Domains(pool, clock, SEAL), Keys(pool, clock)
    account, foreign = await accounts.create("one"), await accounts.create("another")
    await domains.add(account.id, "example.test", "us-east-1", [])
    await domains.trust(account.id, "example.test")
    _, token = await keys.create(account.id, "a key", "full_access")
    _, foreign_token = await keys.create(foreign.id, "a key", "full_access")
    way: Any = Elsewhere()
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]] = at_once
    intake = Intake(Acceptance(pool, clock), domains, way, way, Limits(), timedelta(days=5), in_thread, clock.seconds)
    api = Api(
        reactor=clock, keys=keys, well_formed=is_well_formed, intake=intake, emails=Emails(pool, clock), messages=Messages(pool, clock),
        links=Links(Web(), 1000), told=told_of(pool, clock),
        rate=RateLimit(clock, 10_000), budget=Budget(1 << 28), in_thread=in_thread, checks={},
    )  # fmt: skip
    return World(api.site(), token, foreign_token, pool)


@pytest_twisted.ensureDeferred
async def test_what_is_sent_can_be_read(world: World) -> None:
    sent = await world.ask("POST", "/emails", {**GOOD, "cc": "c@example.net", "tags": [{"name": "k", "value": "v"}]})
    assert sent.status == 200
    read = (await world.ask("GET", f"/emails/{sent.json['id']}")).json
    assert (read["object"], read["id"], read["last_event"], read["scheduled_at"]) == ("email", sent.json["id"], "sent", None)
    assert (read["from"], read["to"], read["cc"], read["bcc"]) == ("Acme <hello@example.test>", ["zoe@example.net"], ["c@example.net"], [])
    assert (read["subject"], read["html"], read["tags"]) == ("Grüße", "<p>Hello</p>", [{"name": "k", "value": "v"}])
    assert read["text"].strip() == "Hello"
    assert read["message_id"] == f"<{sent.json['id']}@example.test>"
    assert [(r["address"], r["status"], r["attempts"]) for r in read["recipients"]] == [
        ("zoe@example.net", "queued", 0),
        ("c@example.net", "queued", 0),
    ]
    assert all(r["reason"] and r["next_attempt_at"] for r in read["recipients"])
    assert (await world.ask("GET", f"/emails/{sent.json['id']}", key=world.foreign_key)).status == 404
    assert (await world.ask("GET", "/emails", key=world.foreign_key)).json["data"] == []


@pytest_twisted.ensureDeferred
async def test_pages_are_newest_first(world: World) -> None:
    ids = [(await world.ask("POST", "/emails", GOOD)).json["id"] for _ in range(3)][::-1]
    first = (await world.ask("GET", "/emails?limit=2")).json
    assert ([item["id"] for item in first["data"]], first["has_more"]) == (ids[:2], True)
    second = (await world.ask("GET", f"/emails?limit=2&after={ids[1]}")).json
    assert ([item["id"] for item in second["data"]], second["has_more"]) == (ids[2:], False)


@pytest_twisted.ensureDeferred
async def test_a_scheduled_email_can_be_moved_and_canceled(world: World) -> None:
    sent = await world.ask("POST", "/emails", {**GOOD, "scheduled_at": "in 1 hour"})
    path = f"/emails/{sent.json['id']}"
    read = (await world.ask("GET", path)).json
    assert read["last_event"] == "scheduled"
    assert read["recipients"][0]["status"] == "scheduled"
    later = (datetime.now(UTC) + timedelta(days=2)).replace(microsecond=0)
    assert (await world.ask("PATCH", path, {"scheduled_at": later.isoformat()})).json == {"object": "email", "id": sent.json["id"]}
    assert (await world.ask("GET", path)).json["scheduled_at"] == f"{later:%Y-%m-%d %H:%M:%S}+00"
    assert (await world.ask("POST", f"{path}/cancel")).status == 200
    assert (await world.ask("GET", path)).json["last_event"] == "canceled"
    assert (await world.ask("PATCH", path, {"scheduled_at": later.isoformat()})).status == 422
    assert (await world.ask("POST", f"/emails/{UUID(int=5)}/cancel")).status == 404


@pytest_twisted.ensureDeferred
async def test_a_hundred_clients_with_one_key_make_one_email(world: World) -> None:
    told = await gatherResults([world.ask("POST", "/emails", GOOD, Idempotency_Key="once/1") for _ in range(100)])
    again = await world.ask("POST", "/emails", dict(reversed(GOOD.items())), Idempotency_Key="once/1")
    assert {response.json.get("id", again.json["id"]) for response in told} == {again.json["id"]}
    assert {response.json.get("name", "") for response in told} <= {"", "concurrent_idempotent_requests"}
    assert len((await world.ask("GET", "/emails")).json["data"]) == 1
    other = await world.ask("POST", "/emails", {**GOOD, "subject": "Other"}, Idempotency_Key="once/1")
    assert other.problem == (409, "invalid_idempotent_request")
    batch = await world.ask("POST", "/emails/batch", [GOOD], Idempotency_Key="once/1")
    assert batch.status == 200


@pytest_twisted.ensureDeferred
async def test_a_refused_request_does_not_hold_its_key(world: World) -> None:
    refused = await world.ask("POST", "/emails", {**GOOD, "from": "a@elsewhere.test"}, Idempotency_Key="k")
    assert refused.problem == (403, "validation_error")
    assert (await world.ask("POST", "/emails", GOOD, Idempotency_Key="k")).status == 200


@pytest_twisted.ensureDeferred
async def test_a_permissive_batch_is_replayed_with_its_errors(world: World) -> None:
    items = [{**GOOD, "to": "nobody"}, GOOD, {**GOOD, "from": "a@elsewhere.test"}, GOOD]
    headers = {"x_batch_validation": "permissive", "Idempotency_Key": "k"}
    first = await world.ask("POST", "/emails/batch", items, **headers)
    assert [error["index"] for error in first.json["errors"]] == [0, 2]
    assert len(first.json["data"]) == 2
    assert (await world.ask("POST", "/emails/batch", items, **headers)).json == first.json
    assert len((await world.ask("GET", "/emails")).json["data"]) == 2


@pytest_twisted.ensureDeferred
async def test_a_revoked_or_foreign_key_sends_nothing(world: World) -> None:
    assert (await world.ask("POST", "/emails", GOOD, key=world.foreign_key)).problem == (403, "validation_error")
    assert (await world.ask("POST", "/emails", GOOD, key=world.key[:-1] + "!")).problem == (403, "invalid_api_key")
