"""Every described endpoint, with every key that must not be able to call it. A new endpoint is included as soon as it has a route."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import attrs
import pytest_twisted

from mailsvc.store.mail.sandbox import ReceivedMail, Sandbox
from tests.http.rig import Response
from tests.http.world import GOOD, World

# A body that its endpoint accepts, for each that has one: no refusal below is for the sake of a bad body.
BODIES: dict[str, Any] = {
    "POST /emails": GOOD,
    "POST /email": GOOD,
    "POST /emails/sending": GOOD,
    "POST /email/sending": GOOD,
    "POST /emails/batch": [GOOD],
    "PATCH /emails/{id}": {"scheduled_at": "in 3 days"},
    "POST /emails/{id}/share": {},
    "POST /api-keys": {"name": "made in the matrix"},
    "PATCH /api-keys/{id}": {"name": "renamed in the matrix"},
    "POST /domains": {"name": "matrix.example.org"},
    "POST /domains/claim": {"name": "claimed.example.org"},
    "PATCH /domains/{id}": {"tls": "enforced"},
    "POST /webhooks": {"endpoint": "https://shop.example/hook", "events": ["email.sent"]},
    "PATCH /webhooks/{id}": {"status": "disabled"},
    "POST /webhooks/{id}/replay": {"since": "2026-01-01T00:00:00Z"},
    "POST /webhooks/{id}/test": {},
    "POST /suppressions": {"email": "matrix@example.net"},
    "POST /suppressions/batch/add": {"emails": ["matrix@example.net"]},
    "POST /suppressions/batch/remove": {"emails": ["matrix@example.net"]},
}
FILE = {"filename": "a.txt", "content": "YQ=="}


@attrs.frozen
class Endpoint:
    """An operation of the description, with the ids of things that are there."""

    method: str
    path: str  # as described
    target: str
    key: str

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"


@attrs.frozen
class Owned:
    """A world in which the account has one of everything, and the endpoints that lead there."""

    world: World
    ids: dict[str, str]

    @classmethod
    async def make(cls, world: World) -> Owned:
        sent = await world.ask("POST", "/emails", {**GOOD, "scheduled_at": "in 2 days", "attachments": [FILE]})
        email = sent.json["id"]
        made = await world.ask("POST", "/api-keys", {"name": "a key of ours"})
        await world.flush()
        [log, *_] = (await world.ask("GET", "/logs")).json["data"]
        [file] = (await world.ask("GET", f"/emails/{email}/attachments")).json["data"]
        number = (await world.pool.rows("SELECT number FROM accounts WHERE id = %s", (world.account_id,)))[0][0]
        mail = ReceivedMail(datetime.now(UTC), "s@example.com", ("r@example.net",), b"Subject: ours\r\n\r\n", (), None, number, UUID(email))
        hook = (await world.ask("POST", "/webhooks", BODIES["POST /webhooks"])).json["id"]
        await world.pool.run(
            "INSERT INTO domain_claims (id, domain_id, account_id, name, region, token, status, created_at, expires_at)"
            " SELECT id, id, account_id, name, region, 'a-token', 'completed', now(), now() FROM domains WHERE id = %s",
            (world.domain_id,),
        )
        ids = {
            "webhooks": hook,
            "event": (await world.ask("POST", f"/webhooks/{hook}/test", {})).json["id"],
            "suppressions": (await world.ask("POST", "/suppressions", {"email": "ours@example.net"})).json["id"],
            "emails": email,
            "attachments": file["id"],
            "api-keys": made.json["id"],
            "logs": log["id"],
            "domains": str(world.domain_id),
            "sandbox": str(await Sandbox(world.pool).add(mail)),
        }
        return cls(world, ids)

    def endpoints(self) -> Iterator[Endpoint]:
        """All that want a key."""
        for path, methods in self.world.contract.document["paths"].items():
            for method, operation in methods.items():
                if operation["x-key"] != "none":
                    parts = {"attachment_id": self.ids["attachments"], "event": self.ids["event"]}
                    ids = {"id": self.ids[path.split("/")[1]], **parts} if "{" in path else {}
                    yield Endpoint(method.upper(), path, re.sub(r"{(\w+)}", lambda found: ids[found[1]], path), operation["x-key"])  # noqa: B023

    async def ask(self, endpoint: Endpoint, key: str) -> Response:
        operation = self.world.contract.operation(endpoint.method, endpoint.target) or {}
        body = BODIES[endpoint.name] if "requestBody" in operation else b""
        return await self.world.ask(endpoint.method, endpoint.target, body, key=key)

    async def state(self) -> list[Any]:
        """Everything that the account can read of itself, but its request log."""
        read = []
        for endpoint in self.endpoints():
            if endpoint.method == "GET" and not endpoint.path.startswith("/logs"):
                body = (await self.ask(endpoint, self.world.key)).json
                read.append((endpoint.name, re.sub(r"token=[\w-]+|T\d\d:\d\d:\d\d\.\d+Z|'last_used_at': (None|'[^']*')", "", str(body))))
        return read


@pytest_twisted.ensureDeferred
async def test_full_key_can_call_everything(world: World) -> None:
    """Else what follows would prove nothing."""
    owned = await Owned.make(world)
    order = sorted(owned.endpoints(), key=lambda endpoint: (endpoint.method == "DELETE", endpoint.path.endswith("/cancel")))
    answers = {endpoint.name: (await owned.ask(endpoint, world.key)).status for endpoint in order}
    assert {name: status for name, status in answers.items() if status not in (200, 201)} == {}
    assert len(answers) >= 25


@pytest_twisted.ensureDeferred
async def test_request_without_a_key_is_refused(world: World) -> None:
    owned = await Owned.make(world)
    before = await owned.state()
    answers = {endpoint.name: (await owned.ask(endpoint, "")).problem for endpoint in owned.endpoints()}
    assert set(answers.values()) == {(401, "missing_api_key")}
    assert await owned.state() == before


@pytest_twisted.ensureDeferred
async def test_revoked_key_is_refused(world: World) -> None:
    owned = await Owned.make(world)
    revoked = (await world.ask("POST", "/api-keys", {"name": "to be revoked"})).json
    await world.ask("DELETE", f"/api-keys/{revoked['id']}")
    before = await owned.state()
    answers = {endpoint.name: (await owned.ask(endpoint, revoked["token"])).problem for endpoint in owned.endpoints()}
    assert set(answers.values()) == {(403, "invalid_api_key")}
    assert await owned.state() == before


@pytest_twisted.ensureDeferred
async def test_sending_key_is_refused_elsewhere(world: World) -> None:
    owned = await Owned.make(world)
    key = (await world.ask("POST", "/api-keys", {"name": "sender", "permission": "sending_access"})).json["token"]
    for endpoint in owned.endpoints():
        answer = await owned.ask(endpoint, key)
        if endpoint.key == "full":
            assert answer.problem == (401, "restricted_api_key"), endpoint.name
        else:
            assert answer.status == 200, endpoint.name


@pytest_twisted.ensureDeferred
async def test_key_of_another_domain_cannot_send(world: World) -> None:
    owned = await Owned.make(world)
    other = (await world.ask("POST", "/domains", {"name": "other.example.org"})).json["id"]
    restricted = {"name": "sender", "permission": "sending_access", "domain_id": other}
    key = (await world.ask("POST", "/api-keys", restricted)).json["token"]
    before = await owned.state()
    for endpoint in owned.endpoints():
        answer = await owned.ask(endpoint, key)
        wanted = {"full": (401, "restricted_api_key"), "sending": (403, "restricted_api_key")}.get(endpoint.key)
        assert wanted is None or answer.problem == wanted, endpoint.name
    assert await owned.state() == before


@pytest_twisted.ensureDeferred
async def test_other_account_sees_and_changes_nothing(world: World) -> None:
    owned = await Owned.make(world)
    before = await owned.state()
    secrets = [*owned.ids.values(), str(world.account_id), "a key of ours", "example.test", "ours@", "shop.example", GOOD["subject"]]
    # The log first: later on it may have what this very loop asked for, with our ids.
    for endpoint in sorted(owned.endpoints(), key=lambda endpoint: endpoint.path != "/logs"):
        answer = await owned.ask(endpoint, world.foreign_key)
        if "{" in endpoint.path:
            assert answer.problem == (404, "not_found"), endpoint.name
        elif endpoint.key == "sending":
            assert answer.problem == (403, "validation_error"), endpoint.name
        # What it makes with a body of ours is its own.
        told = answer.body.decode() if endpoint.name not in ("POST /webhooks", "GET /webhooks") else ""
        assert endpoint.key == "sending" or not [secret for secret in secrets if secret in told], endpoint.name
    assert await owned.state() == before


@pytest_twisted.ensureDeferred
async def test_ids_in_parameters_and_bodies_expose_nothing(world: World) -> None:
    """An id of another account as a cursor, a filter or a reference."""
    owned = await Owned.make(world)
    for body in ({"ids": [owned.ids["suppressions"]]}, {"emails": ["ours@example.net"]}):
        removed = await world.ask("POST", "/suppressions/batch/remove", body, key=world.foreign_key)
        assert removed.json == {"data": []}
    ours = [row["id"] for row in (await world.ask("GET", "/api-keys")).json["data"]]
    theirs = {*owned.ids.values(), *ours}
    for path in ("emails", "api-keys", "logs", "domains", "sandbox/emails"):
        for which in ("after", "before"):
            answer = await world.ask("GET", f"/{path}?{which}={owned.ids[path.split('/')[0]]}", key=world.foreign_key)
            assert not {row["id"] for row in answer.json["data"]} & theirs, path
    query = f"email_id={owned.ids['emails']}&domain_id={owned.ids['domains']}&dimensions=email,domain"
    assert (await world.ask("GET", f"/emails/metrics?{query}", key=world.foreign_key)).json["data"] == []
    body = {"name": "x", "permission": "sending_access", "domain_id": owned.ids["domains"]}
    assert (await world.ask("POST", "/api-keys", body, key=world.foreign_key)).problem == (404, "not_found")
    assert (await world.ask("GET", f"/emails/{uuid4()}")).problem == (404, "not_found")
