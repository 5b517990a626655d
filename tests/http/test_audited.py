"""The audit log of API keys: an entry for every change, in the same transaction, that names the key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest_twisted

from tests.http.api_rig import ApiRig
from tests.http.rig import Response

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
) | dict.fromkeys(("/privacy/find", "/privacy/export"), "they only read")


async def lines(rig: ApiRig) -> list[tuple[str, str, str]]:
    found = await rig.pool.rows("SELECT actor, action, subject FROM audit_entries WHERE account_id = %s ORDER BY id", (rig.account_id,))
    return [(actor, action, subject) for actor, action, subject in found]


async def changes(rig: ApiRig, sent: Callable[..., Awaitable[Response]]) -> None:
    """One request of each kind; each finds what it needs."""
    key = (await sent("POST", "/api-keys", {"name": "new"}, "key created", "new (full_access)")).json["id"]
    limited = {"name": "one", "permission": "sending_access", "domain_id": str(rig.domain_id)}
    await sent("POST", "/api-keys", limited, "key created", "one (sending_access, example.test)")
    hint = (await rig.pool.rows("SELECT hint FROM api_keys WHERE id = %s", (key,)))[0][0]
    await sent("PATCH", f"/api-keys/{key}", {"name": "newer"}, "key renamed", f"new ({hint}…) to newer")
    await sent("DELETE", f"/api-keys/{key}", b"", "key revoked", f"newer ({hint}…)")

    domain = (await sent("POST", "/domains", {"name": "New.test"}, "domain added", "new.test")).json["id"]
    await sent("PATCH", f"/domains/{domain}", {"tls": "enforced"}, "domain changed", "new.test: tls enforced")
    await sent("POST", f"/domains/{domain}/verify", b"", "domain verification requested", "new.test")
    await sent("DELETE", f"/domains/{domain}", b"", "domain deleted", "new.test")
    claimed = (await sent("POST", "/domains/claim", {"name": "claimed.test"}, "domain claimed", "claimed.test")).json["domain_id"]
    await rig.pool.run("UPDATE domain_claims SET status = 'pending'")
    await sent("POST", f"/domains/{claimed}/claim/verify", b"", "domain verification requested", "claimed.test")
    await sent("DELETE", f"/domains/{claimed}", b"", "domain deleted", "claimed.test")

    url = "http://127.0.0.1/in"
    webhook = (await sent("POST", "/webhooks", {"endpoint": url, "events": ["email.sent"]}, "webhook added", url)).json["id"]
    await sent("PATCH", f"/webhooks/{webhook}", {"status": "enabled"}, "webhook changed", f"{url}, enabled")
    await sent("POST", f"/webhooks/{webhook}/signing-secret/rotate", b"", "webhook secret rotated", url)
    message = (await sent("POST", f"/webhooks/{webhook}/test", b"", "webhook tested", url)).json["id"]
    await sent("POST", f"/webhooks/{webhook}/events/{message}/replay", b"", "webhook event resent", f"email.sent to {url}")
    since, until = "2020-01-01T00:00:00+00:00", "2100-01-01T00:00:00+00:00"
    period = {"since": since, "until": until, "status": "all"}
    await sent("POST", f"/webhooks/{webhook}/replay", period, "webhook events resent", f"{since} to {until}, {url}")
    await sent("DELETE", f"/webhooks/{webhook}", b"", "webhook deleted", url)

    one = (await sent("POST", "/suppressions", {"email": "a@example.net"}, "suppressions added", "a@example.net")).json["id"]
    await sent("DELETE", f"/suppressions/{one}", b"", "suppression removed", "a@example.net")
    many = {"emails": ["a@example.net", "b@example.net"]}
    await sent("POST", "/suppressions/batch/add", many, "suppressions added", "2 addresses")
    await sent("DELETE", "/suppressions/a@example.net", b"", "suppression removed", "a@example.net")
    await sent("POST", "/suppressions/batch/remove", {"emails": ["b@example.net"]}, "suppressions removed", "b@example.net")
    await sent("POST", "/privacy/erasures", {"email": "a@example.net"}, "address erased", "")
    await audience(sent)
    await broadcasts(rig, sent)


async def broadcasts(rig: ApiRig, sent: Callable[..., Awaitable[Response]]) -> None:
    segment = (await sent("POST", "/segments", {"name": "readers"}, "segment created", "readers")).json["id"]
    content = {"name": "Autumn", "segment_id": segment, "from": "news@example.test", "subject": "News", "html": "<p>News</p>"}
    one = (await sent("POST", "/broadcasts", content, "broadcast created", "<id> (Autumn)")).json["id"]
    await sent("PATCH", f"/broadcasts/{one}", {"name": "November"}, "broadcast changed", f"{one} (November)")
    await sent("POST", f"/broadcasts/{one}/send", b"", "broadcast sent", f"{one} (November)")
    await rig.pool.run("UPDATE broadcasts SET paused_at = now()")
    await sent("POST", f"/broadcasts/{one}/continue", b"", "broadcast continued", f"{one} (November)")
    await sent("POST", f"/broadcasts/{one}/cancel", b"", "broadcast canceled", f"{one} (November)")
    copy = (await sent("POST", f"/broadcasts/{one}/duplicate", b"", "broadcast created", "<id> (November (copy))")).json["id"]
    await sent("DELETE", f"/broadcasts/{copy}", b"", "broadcast deleted", f"{copy} (November (copy))")
    await sent("PATCH", "/preference-page", {"title": "Yours"}, "preference page changed", "title")


async def audience(sent: Callable[..., Awaitable[Response]]) -> None:
    segment = (await sent("POST", "/segments", {"name": "all"}, "segment created", "all")).json["id"]
    await sent("PATCH", f"/segments/{segment}", {"name": "everybody"}, "segment changed", "everybody")
    topic = (await sent("POST", "/topics", {"name": "News", "default_subscription": "opt_in"}, "topic created", "News")).json["id"]
    await sent("PATCH", f"/topics/{topic}", {"description": "About us"}, "topic changed", "News")
    contact = (await sent("POST", "/contacts", {"email": "ada@example.net"}, "contact saved", None)).json["id"]
    await sent("PATCH", f"/contacts/{contact}", {"first_name": "Ada"}, "contact changed", contact)
    await sent("POST", f"/contacts/{contact}/segments/{segment}", {}, "contact added to a segment", contact)
    await sent("DELETE", f"/contacts/{contact}/segments/{segment}", {}, "contact removed from a segment", contact)
    chosen = [{"id": topic, "subscription": "opt_out"}]
    await sent("PATCH", f"/contacts/{contact}/topics", chosen, "topics of a contact changed", contact)
    legacy = (await sent("POST", "/audiences", {"name": "old"}, "segment created", "old")).json["id"]
    await sent("POST", f"/audiences/{legacy}/contacts", {"email": "ada@example.net"}, "contact saved", contact)
    await sent("PATCH", f"/audiences/{legacy}/contacts/{contact}", {"first_name": "A"}, "contact changed", contact)
    await sent("DELETE", f"/audiences/{legacy}/contacts/{contact}", {}, "contact removed from a segment", contact)
    await sent("DELETE", f"/contacts/{contact}", b"", "contact deleted", contact)
    await sent("DELETE", f"/segments/{segment}", b"", "segment deleted", "everybody")
    await sent("DELETE", f"/audiences/{legacy}", b"", "segment deleted", "old")
    await sent("DELETE", f"/topics/{topic}", b"", "topic deleted", "News")
    body = b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nemail\n\r\n--x--\r\n'
    await sent("POST", "/contacts/imports", body, "contacts imported", "6 bytes")
    plan = {"key": "plan", "type": "string"}
    id_ = (await sent("POST", "/contact-properties", plan, "contact property created", "plan")).json["id"]
    await sent("PATCH", f"/contact-properties/{id_}", {"fallback_value": "free"}, "contact property changed", "plan")
    await sent("DELETE", f"/contact-properties/{id_}", b"", "contact property deleted", "plan")


@pytest_twisted.ensureDeferred
async def test_every_change_by_a_key_has_an_audit_entry(rig: ApiRig) -> None:
    [(hint,)] = await rig.pool.rows("SELECT hint FROM api_keys WHERE account_id = %s", (rig.account_id,))
    walked: list[str] = []

    async def sent(method: str, path: str, body: Any, action: str, subject: str | None) -> Response:
        before = await lines(rig)
        answer = await rig.request(method, path, body, **headers(path))
        assert answer.status in (200, 201), (method, path, answer.any)
        subject = answer.json["id"] if subject is None else subject.replace("<id>", answer.json.get("id", ""))
        assert (await lines(rig))[len(before) :] == [(f"API key a key ({hint}…)", action, subject)], (method, path)
        walked.append(f"{method} {path}")
        return answer

    await changes(rig, sent)
    served = [(method.upper(), path) for path, methods in rig.contract.document["paths"].items() for method in methods]
    unseen = {path for method, path in served if method != "GET" and not any(matches(f"{method} {path}", one) for one in walked)}
    assert unseen == set(SILENT)


def headers(path: str) -> dict[str, str]:
    return {"content_type": "multipart/form-data; boundary=x"} if path.endswith("/imports") else {}


def matches(rule: str, path: str) -> bool:
    parts, given = rule.split("/"), path.split("/")
    return len(parts) == len(given) and all(part == one or part.startswith("{") for part, one in zip(parts, given, strict=True))


@pytest_twisted.ensureDeferred
async def test_change_without_its_audit_entry_is_rolled_back(rig: ApiRig) -> None:
    answers: list[tuple[str, str, Any]] = []

    async def noted(method: str, path: str, body: Any, action: str, subject: str | None) -> Response:
        answer = await rig.request(method, path, body, **headers(path))
        if method != "DELETE" and not path.endswith(("/remove", "/claim/verify", "/erasures")):  # repeated, these change nothing
            answers.append((method, path, body))
        return answer

    tables = (
        "api_keys",
        "domains",
        "webhooks",
        "suppressions",
        "contacts",
        "segments",
        "topics",
        "contact_properties",
        "broadcasts",
        "erasures",
        "audit",
    )

    async def everything() -> list[list[str]]:
        found = [await rig.pool.rows(f"SELECT to_jsonb(t) - 'last_used_at' FROM {table} t") for table in tables]
        return [sorted(map(repr, rows)) for rows in found]

    await changes(rig, noted)
    await rig.pool.run("ALTER TABLE audit ADD CONSTRAINT full_disk CHECK (action = '') NOT VALID")
    before = await everything()
    new = [("POST", "/domains", {"name": "more.test"}), ("POST", "/privacy/erasures", {"email": "b@example.net"})]
    for method, path, body in [*new, *answers]:
        answer = await rig.request(method, path, body, **headers(path))
        assert answer.status in (403, 404, 500, 503), (method, path, answer.any)
    assert await everything() == before


@pytest_twisted.ensureDeferred
async def test_key_created_with_a_key_has_the_same_creator(rig: ApiRig) -> None:
    [(person,)] = await rig.pool.rows(
        "INSERT INTO users (id, email, created_at) VALUES (gen_random_uuid(), 'ann@example.com', now()) RETURNING id"
    )
    _, token = await rig.keys.create(rig.account_id, "of Ann", "full_access", created_by=person)
    created = await rig.request("POST", "/api-keys", {"name": "made"}, token)
    again = await rig.request("POST", "/api-keys", {"name": "again"}, created.json["token"])
    assert again.status == 201
    await rig.request("POST", "/api-keys", {"name": "nobody's"})
    creators = {key.name: key.creator for key in (await rig.keys.list(rig.account_id))[0]}
    assert creators == {"of Ann": "ann@example.com", "made": "ann@example.com", "again": "ann@example.com", "nobody's": None, "a key": None}
