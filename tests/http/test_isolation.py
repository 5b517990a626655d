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
from tests.http.api_rig import GOOD, ApiRig
from tests.http.rig import Response

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
    "POST /privacy/find": {"email": "matrix@example.net"},
    "POST /privacy/export": {"email": "matrix@example.net"},
    "POST /privacy/erasures": {"email": "matrix@example.net"},
    "POST /suppressions": {"email": "matrix@example.net"},
    "POST /suppressions/batch/add": {"emails": ["matrix@example.net"]},
    "POST /suppressions/batch/remove": {"emails": ["matrix@example.net"]},
    "POST /contacts": {"email": "matrix@example.net"},
    "PATCH /contacts/{contact}": {"first_name": "Ada"},
    "PATCH /contacts/{contact}/topics": [],
    "POST /segments": {"name": "made in the matrix"},
    "PATCH /segments/{id}": {"name": "renamed in the matrix"},
    "POST /audiences": {"name": "made in the matrix"},
    "POST /audiences/{id}/contacts": {"email": "ours@example.net"},
    "PATCH /audiences/{id}/contacts/{contact}": {"last_name": "Lovelace"},
    "POST /topics": {"name": "made in the matrix", "default_subscription": "opt_in"},
    "PATCH /topics/{id}": {"description": "changed in the matrix"},
    "POST /broadcasts": {"segment_id": str(UUID(int=1)), "from": "a@example.test", "subject": "Hi", "html": "<p>Hi</p>"},
    "PATCH /broadcasts/{id}": {"name": "renamed in the matrix"},
    "POST /broadcasts/{id}/send": {},
    "PATCH /preference-page": {"title": "changed in the matrix"},
    "POST /contact-properties": {"key": "matrix", "type": "number"},
    "PATCH /contact-properties/{id}": {"fallback_value": "changed in the matrix"},
}
LENIENT = ("DELETE /segments/{id}", "DELETE /audiences/{id}")  # succeed if there is nothing to delete
# Answered 403 in a state that it reaches here: a broadcast that was sent is not deleted, and one that is not paused is not continued.
STATEFUL = ("DELETE /broadcasts/{id}", "POST /broadcasts/{id}/continue")
QUERIES = {"GET /broadcasts/{id}/recipients": "?type=sent", "GET /broadcasts/{id}/preview": "?contact=ours@example.net"}
QUERIES["GET /consents"] = "?email=ours@example.net"
FORM = "multipart/form-data; boundary=x"
IMPORT = b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nemail\nmatrix@example.net\r\n--x--\r\n'
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
    """A rig in which the account has one of everything, and the endpoints that lead there."""

    rig: ApiRig
    ids: dict[str, str]

    @classmethod
    async def make(cls, rig: ApiRig) -> Owned:
        sent = await rig.request("POST", "/emails", {**GOOD, "scheduled_at": "in 2 days", "attachments": [FILE]})
        email = sent.json["id"]
        created = await rig.request("POST", "/api-keys", {"name": "our key"})
        await rig.flush()
        [log, *_] = (await rig.request("GET", "/logs")).json["data"]
        [file] = (await rig.request("GET", f"/emails/{email}/attachments")).json["data"]
        number = (await rig.pool.rows("SELECT number FROM accounts WHERE id = %s", (rig.account_id,)))[0][0]
        mail = ReceivedMail(datetime.now(UTC), "s@example.com", ("r@example.net",), b"Subject: ours\r\n\r\n", (), None, number, UUID(email))
        hook = (await rig.request("POST", "/webhooks", BODIES["POST /webhooks"])).json["id"]
        await rig.pool.run(
            "INSERT INTO domain_claims (id, domain_id, account_id, name, region, token, status, created_at, expires_at)"
            " SELECT id, id, account_id, name, region, 'a-token', 'completed', now(), now() FROM domains WHERE id = %s",
            (rig.domain_id,),
        )
        ids = {
            "webhooks": hook,
            "event": (await rig.request("POST", f"/webhooks/{hook}/test", {})).json["id"],
            "suppressions": (await rig.request("POST", "/suppressions", {"email": "ours@example.net"})).json["id"],
            "emails": email,
            "attachments": file["id"],
            "api-keys": created.json["id"],
            "logs": log["id"],
            "domains": str(rig.domain_id),
            "sandbox": str(await Sandbox(rig.pool).add(mail)),
        }
        segment = (await rig.request("POST", "/segments", {"name": "our segment"})).json["id"]
        imported = await rig.request("POST", "/contacts/imports", IMPORT, content_type=FORM)
        ids |= {
            "segments": segment,
            "audiences": segment,
            "contact": (await rig.request("POST", f"/audiences/{segment}/contacts", {"email": "ours@example.net"})).json["id"],
            "contacts": imported.json["id"],
            "topics": (await rig.request("POST", "/topics", {"name": "ours", "default_subscription": "opt_in"})).json["id"],
            "contact-properties": (await rig.request("POST", "/contact-properties", {"key": "ours", "type": "string"})).json["id"],
        }
        content = {**BODIES["POST /broadcasts"], "segment_id": segment}
        ids["broadcasts"] = (await rig.request("POST", "/broadcasts", content)).json["id"]
        ids["privacy"] = (await rig.request("POST", "/privacy/erasures", {"email": "erased@example.net"})).json["id"]
        return cls(rig, ids)

    def endpoints(self) -> Iterator[Endpoint]:
        """All that want a key."""
        for path, methods in self.rig.contract.document["paths"].items():
            for method, operation in methods.items():
                if operation["x-key"] != "none":
                    parts = {"attachment_id": self.ids["attachments"], "event": self.ids["event"]}
                    parts |= {"contact": self.ids["contact"], "segment_id": self.ids["segments"]}
                    ids = {"id": self.ids.get(path.split("/")[1], ""), **parts} if "{" in path else {}
                    yield Endpoint(method.upper(), path, re.sub(r"{(\w+)}", lambda found: ids[found[1]], path), operation["x-key"])  # noqa: B023

    async def request(self, endpoint: Endpoint, key: str) -> Response:
        operation = self.rig.contract.operation(endpoint.method, endpoint.target) or {}
        if endpoint.name == "POST /contacts/imports":
            return await self.rig.request(endpoint.method, endpoint.target, IMPORT, key=key, content_type=FORM)
        body = BODIES[endpoint.name] if "requestBody" in operation else b""
        if isinstance(body, dict) and "segment_id" in body:
            body = {**body, "segment_id": self.ids["segments"]}
        return await self.rig.request(endpoint.method, endpoint.target + QUERIES.get(endpoint.name, ""), body, key=key)

    async def state(self) -> list[Any]:
        """Everything that the account can read of itself, but its request log."""
        read = []
        for endpoint in self.endpoints():
            if endpoint.method == "GET" and not endpoint.path.startswith("/logs") and not endpoint.path.endswith(("/errors", "/consents")):
                body = (await self.request(endpoint, self.rig.key)).json
                read.append((endpoint.name, re.sub(r"token=[\w-]+|T\d\d:\d\d:\d\d\.\d+Z|'last_used_at': (None|'[^']*')", "", str(body))))
        return read


@pytest_twisted.ensureDeferred
async def test_full_key_can_call_everything(rig: ApiRig) -> None:
    """Else what follows would prove nothing."""
    owned = await Owned.make(rig)
    order = sorted(owned.endpoints(), key=lambda e: (e.method == "DELETE", e.path.endswith("/cancel"), -e.path.count("/")))
    answers = {endpoint.name: (await owned.request(endpoint, rig.key)).status for endpoint in order}
    assert {name: status for name, status in answers.items() if status not in (200, 201)} == dict.fromkeys(STATEFUL, 403)
    assert len(answers) >= 25


@pytest_twisted.ensureDeferred
async def test_request_without_a_key_is_refused(rig: ApiRig) -> None:
    owned = await Owned.make(rig)
    before = await owned.state()
    answers = {endpoint.name: (await owned.request(endpoint, "")).problem for endpoint in owned.endpoints()}
    assert set(answers.values()) == {(401, "missing_api_key")}
    assert await owned.state() == before


@pytest_twisted.ensureDeferred
async def test_revoked_key_is_refused(rig: ApiRig) -> None:
    owned = await Owned.make(rig)
    revoked = (await rig.request("POST", "/api-keys", {"name": "to be revoked"})).json
    await rig.request("DELETE", f"/api-keys/{revoked['id']}")
    before = await owned.state()
    answers = {endpoint.name: (await owned.request(endpoint, revoked["token"])).problem for endpoint in owned.endpoints()}
    assert set(answers.values()) == {(403, "invalid_api_key")}
    assert await owned.state() == before


@pytest_twisted.ensureDeferred
async def test_sending_key_is_refused_elsewhere(rig: ApiRig) -> None:
    owned = await Owned.make(rig)
    key = (await rig.request("POST", "/api-keys", {"name": "sender", "permission": "sending_access"})).json["token"]
    for endpoint in owned.endpoints():
        answer = await owned.request(endpoint, key)
        if endpoint.key == "full":
            assert answer.problem == (401, "restricted_api_key"), endpoint.name
        else:
            assert answer.status == 200, endpoint.name


@pytest_twisted.ensureDeferred
async def test_key_of_another_domain_cannot_send(rig: ApiRig) -> None:
    owned = await Owned.make(rig)
    other = (await rig.request("POST", "/domains", {"name": "other.example.org"})).json["id"]
    restricted = {"name": "sender", "permission": "sending_access", "domain_id": other}
    key = (await rig.request("POST", "/api-keys", restricted)).json["token"]
    before = await owned.state()
    for endpoint in owned.endpoints():
        answer = await owned.request(endpoint, key)
        wanted = {"full": (401, "restricted_api_key"), "sending": (403, "restricted_api_key")}.get(endpoint.key)
        assert wanted is None or answer.problem == wanted, endpoint.name
    assert await owned.state() == before


@pytest_twisted.ensureDeferred
async def test_other_account_sees_and_changes_nothing(rig: ApiRig) -> None:
    owned = await Owned.make(rig)
    before = await owned.state()
    secrets = [*owned.ids.values(), str(rig.account_id), "our key", "example.test", "ours@", "shop.example", GOOD["subject"]]
    # The log first: later on it may have what this very loop requested, with our IDs.
    for endpoint in sorted(owned.endpoints(), key=lambda endpoint: endpoint.path != "/logs"):
        answer = await owned.request(endpoint, rig.foreign_key)
        if endpoint.name in LENIENT:
            continue
        if "{" in endpoint.path:
            assert answer.problem == (404, "not_found"), endpoint.name
        elif endpoint.key == "sending":
            assert answer.problem == (403, "validation_error"), endpoint.name
        # What it creates from our body belongs to it.
        text = answer.body.decode() if endpoint.name not in ("POST /webhooks", "GET /webhooks") else ""
        assert endpoint.key == "sending" or not [secret for secret in secrets if secret in text], endpoint.name
    assert await owned.state() == before


@pytest_twisted.ensureDeferred
async def test_ids_in_parameters_and_bodies_expose_nothing(rig: ApiRig) -> None:
    """An id of another account as a cursor, a filter or a reference."""
    owned = await Owned.make(rig)
    for body in ({"ids": [owned.ids["suppressions"]]}, {"emails": ["ours@example.net"]}):
        removed = await rig.request("POST", "/suppressions/batch/remove", body, key=rig.foreign_key)
        assert removed.json == {"data": []}
    ours = [row["id"] for row in (await rig.request("GET", "/api-keys")).json["data"]]
    theirs = {*owned.ids.values(), *ours}
    for path in ("emails", "api-keys", "logs", "domains", "sandbox/emails"):
        for which in ("after", "before"):
            answer = await rig.request("GET", f"/{path}?{which}={owned.ids[path.split('/')[0]]}", key=rig.foreign_key)
            assert not {row["id"] for row in answer.json["data"]} & theirs, path
    query = f"email_id={owned.ids['emails']}&domain_id={owned.ids['domains']}&dimensions=email,domain"
    assert (await rig.request("GET", f"/emails/metrics?{query}", key=rig.foreign_key)).json["data"] == []
    body = {"name": "x", "permission": "sending_access", "domain_id": owned.ids["domains"]}
    assert (await rig.request("POST", "/api-keys", body, key=rig.foreign_key)).problem == (404, "not_found")
    assert (await rig.request("GET", f"/emails/{uuid4()}")).problem == (404, "not_found")
