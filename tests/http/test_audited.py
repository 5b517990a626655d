"""The audit log of API keys: an entry for every change, in the same transaction, that names the key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest_twisted

from tests.http.rig import Response
from tests.http.world import World

# Requests that change nothing of what the audit log tells, and why.
ABOUT_EMAILS = "the request log has it, and the email its key"
SILENT = dict.fromkeys(
    (
        "/emails",
        "/emails/batch",
        "/emails/{id}",
        "/emails/{id}/cancel",
        "/emails/{id}/share",
        "/email",
        "/email/sending",
        "/emails/sending",
    ),
    ABOUT_EMAILS,
)


async def lines(world: World) -> list[tuple[str, str, str]]:
    found = await world.pool.rows("SELECT actor, action, subject FROM audit WHERE account_id = %s ORDER BY id", (world.account_id,))
    return [(actor, action, subject) for actor, action, subject in found]


async def changes(world: World, sent: Callable[..., Awaitable[Response]]) -> None:
    """One request of each kind; each finds what it needs."""
    key = (await sent("POST", "/api-keys", {"name": "new"}, "key created", "new (full_access)")).json["id"]
    limited = {"name": "one", "permission": "sending_access", "domain_id": str(world.domain_id)}
    await sent("POST", "/api-keys", limited, "key created", "one (sending_access, example.test)")
    hint = (await world.pool.rows("SELECT hint FROM api_keys WHERE id = %s", (key,)))[0][0]
    await sent("PATCH", f"/api-keys/{key}", {"name": "newer"}, "key renamed", f"new ({hint}…) to newer")
    await sent("DELETE", f"/api-keys/{key}", b"", "key revoked", f"newer ({hint}…)")

    domain = (await sent("POST", "/domains", {"name": "New.test"}, "domain added", "new.test")).json["id"]
    await sent("PATCH", f"/domains/{domain}", {"tls": "enforced"}, "domain changed", "new.test: tls enforced")
    await sent("POST", f"/domains/{domain}/verify", b"", "domain verification requested", "new.test")
    await sent("DELETE", f"/domains/{domain}", b"", "domain deleted", "new.test")
    claimed = (await sent("POST", "/domains/claim", {"name": "claimed.test"}, "domain claimed", "claimed.test")).json["domain_id"]
    await world.pool.run("UPDATE domain_claims SET status = 'pending'")
    await sent("POST", f"/domains/{claimed}/claim/verify", b"", "domain verification requested", "claimed.test")
    await sent("DELETE", f"/domains/{claimed}", b"", "domain deleted", "claimed.test")

    url = "http://127.0.0.1/in"
    webhook = (await sent("POST", "/webhooks", {"endpoint": url, "events": ["email.sent"]}, "webhook added", url)).json["id"]
    await sent("PATCH", f"/webhooks/{webhook}", {"status": "enabled"}, "webhook changed", f"{url}, enabled")
    await sent("POST", f"/webhooks/{webhook}/signing-secret/rotate", b"", "webhook secret rotated", url)
    message = (await sent("POST", f"/webhooks/{webhook}/test", b"", "webhook tested", url)).json["id"]
    await sent("POST", f"/webhooks/{webhook}/events/{message}/replay", b"", "webhook event resent", f"email.sent to {url}")
    since, until = "2020-01-01T00:00:00+00:00", "2100-01-01T00:00:00+00:00"
    told = {"since": since, "until": until, "status": "all"}
    await sent("POST", f"/webhooks/{webhook}/replay", told, "webhook events resent", f"{since} to {until}, {url}")
    await sent("DELETE", f"/webhooks/{webhook}", b"", "webhook deleted", url)

    one = (await sent("POST", "/suppressions", {"email": "a@example.net"}, "suppressions added", "a@example.net")).json["id"]
    await sent("DELETE", f"/suppressions/{one}", b"", "suppression removed", "a@example.net")
    many = {"emails": ["a@example.net", "b@example.net"]}
    await sent("POST", "/suppressions/batch/add", many, "suppressions added", "2 addresses")
    await sent("DELETE", "/suppressions/a@example.net", b"", "suppression removed", "a@example.net")
    await sent("POST", "/suppressions/batch/remove", {"emails": ["b@example.net"]}, "suppressions removed", "b@example.net")


@pytest_twisted.ensureDeferred
async def test_every_change_by_a_key_has_an_audit_entry(world: World) -> None:
    [(hint,)] = await world.pool.rows("SELECT hint FROM api_keys WHERE account_id = %s", (world.account_id,))
    walked: list[str] = []

    async def sent(method: str, path: str, body: Any, action: str, subject: str) -> Response:
        before = await lines(world)
        answer = await world.ask(method, path, body)
        assert answer.status in (200, 201), (method, path, answer.any)
        assert (await lines(world))[len(before) :] == [(f"API key a key ({hint}…)", action, subject)], (method, path)
        walked.append(f"{method} {path}")
        return answer

    await changes(world, sent)
    served = [(method.upper(), path) for path, methods in world.contract.document["paths"].items() for method in methods]
    unseen = {path for method, path in served if method != "GET" and not any(matches(f"{method} {path}", one) for one in walked)}
    assert unseen == set(SILENT)


def matches(rule: str, asked: str) -> bool:
    parts, given = rule.split("/"), asked.split("/")
    return len(parts) == len(given) and all(part == one or part.startswith("{") for part, one in zip(parts, given, strict=True))


@pytest_twisted.ensureDeferred
async def test_change_without_its_audit_entry_is_rolled_back(world: World) -> None:
    answers: list[tuple[str, str, Any]] = []

    async def noted(method: str, path: str, body: Any, action: str, subject: str) -> Response:
        answer = await world.ask(method, path, body)
        if method != "DELETE" and not path.endswith(("/remove", "/claim/verify")):
            answers.append((method, path, body))
        return answer

    tables = ("api_keys", "domains", "webhooks", "suppressions", "audit")

    async def everything() -> list[list[str]]:
        found = [await world.pool.rows(f"SELECT to_jsonb(t) - 'last_used_at' FROM {table} t") for table in tables]
        return [sorted(map(repr, rows)) for rows in found]

    await changes(world, noted)
    await world.pool.run("ALTER TABLE audit ADD CONSTRAINT full_disk CHECK (action = '') NOT VALID")
    before = await everything()
    for method, path, body in [("POST", "/domains", {"name": "more.test"}), *answers]:
        answer = await world.ask(method, path, body)
        assert answer.status in (404, 500, 503), (method, path, answer.any)
    assert await everything() == before


@pytest_twisted.ensureDeferred
async def test_key_created_with_a_key_has_the_same_creator(world: World) -> None:
    [(person,)] = await world.pool.rows(
        "INSERT INTO users (id, email, created_at) VALUES (gen_random_uuid(), 'ann@example.com', now()) RETURNING id"
    )
    _, token = await world.keys.create(world.account_id, "of Ann", "full_access", created_by=person)
    made = await world.ask("POST", "/api-keys", {"name": "made"}, token)
    again = await world.ask("POST", "/api-keys", {"name": "again"}, made.json["token"])
    assert again.status == 201
    await world.ask("POST", "/api-keys", {"name": "nobody's"})
    creators = {key.name: key.creator for key in (await world.keys.list(world.account_id))[0]}
    assert creators == {"of Ann": "ann@example.com", "made": "ann@example.com", "again": "ann@example.com", "nobody's": None, "a key": None}
