"""The official Node and Python libraries call every available method of a running daemon, errors included."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen
from uuid import UUID, uuid4

import psycopg2
import pytest
import resend

from tests.end_to_end.clients.node import WHY_NOT, Node, installed
from tests.end_to_end.rig import Daemon, free_port

DOCS = (Path(__file__).parents[3] / "docs/clients.md").read_text()
NOBODY = str(uuid4())


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, module_database: str) -> Iterator[Daemon]:
    routes = {"*": f"smtp://127.0.0.1:{free_port()}"}  # where nobody answers
    daemon = Daemon(tmp_path_factory.mktemp("daemon"), module_database, {"delivery": {"routes": routes}})
    daemon.start()
    yield daemon
    status = daemon.stop()
    assert "Traceback" not in daemon.log
    assert status == 0


@pytest.fixture(scope="module")
def base(daemon: Daemon) -> str:
    return f"http://127.0.0.1:{daemon.port}"


@pytest.fixture(scope="module")
def node(daemon: Daemon, base: str) -> Iterator[Node]:
    if not installed():
        pytest.skip(WHY_NOT)
    node = Node(base, daemon.facts["api_key"])
    yield node
    node.end()


@pytest.fixture
def client(daemon: Daemon, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resend, "api_url", base)
    monkeypatch.setattr(resend, "api_key", daemon.facts["api_key"])


@pytest.fixture
def sender(daemon: Daemon) -> str:
    return f"Acme <hello@{daemon.facts['domain']}>"


def fetched(url: str, base: str) -> bytes:
    parts = urlsplit(url)
    with urlopen(f"{base}{parts.path}?{parts.query}", timeout=10) as response:
        return bytes(response.read())


@pytest.fixture
def slow_key(daemon: Daemon) -> Iterator[str]:
    """A key of an account that may make one request a second."""
    account = daemon.command("account", "create", f"slow {uuid4()}").strip()
    key = daemon.command("key", "create", "--account", account).strip()
    with psycopg2.connect(daemon.database) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE accounts SET rate_limit = 1 WHERE id = %s", (account,))
    connection.close()
    yield key


def uuids(*texts: str) -> None:
    for text in texts:
        UUID(text)


def held_elsewhere(daemon: Daemon) -> str:
    """A name that another account has verified."""
    name, account = f"x{uuid4().hex}.example", daemon.command("account", "create", f"holder {uuid4()}").strip()
    daemon.command("domain", "add", name, "--account", account)
    with psycopg2.connect(daemon.database) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE domains SET status = 'verified' WHERE name = %s", (name,))
    connection.close()
    return name


# Node


def test_node_emails(node: Node, base: str, sender: str) -> None:
    later = {"scheduledAt": "in 1 day"}
    email = {"from": sender, "to": "zoe@example.net", "subject": "Grüße", "html": "<p>Hi</p>", **later}
    full = {
        **email, "cc": ["c@example.net"], "bcc": "b@example.net", "replyTo": ["r@example.net"], "text": "Hi",
        "headers": {"X-Entity-Ref-ID": "1"}, "tags": [{"name": "a", "value": "b"}],
        "attachments": [{"filename": "a.txt", "content": {"$buffer": "Zwölf"}, "contentId": "a"}],
    }  # fmt: skip
    sent = node.call("emails.send", full)
    assert list(sent) == ["id"]
    uuids(sent["id"])
    read = node.call("emails.get", sent["id"])
    assert (read["to"], read["bcc"], read["reply_to"]) == (["zoe@example.net"], ["b@example.net"], ["r@example.net"])
    assert read["last_event"] == "scheduled" and read["tags"] == [{"name": "a", "value": "b"}]
    react = node.call("emails.create", {**email, "html": None, "react": {"$react": ["p", {"style": {"color": "red"}}, "From React"]}})
    assert "From React" in node.call("emails.get", react["id"])["html"]
    listed = node.call("emails.list", {"limit": 2})
    assert [item["id"] for item in listed["data"]] == [react["id"], sent["id"]] and listed["object"] == "list"
    assert node.call("emails.list", {"after": react["id"]})["data"][0]["id"] == sent["id"]
    assert node.call("emails.update", {"id": sent["id"], "scheduledAt": "in 2 days"}) == {"object": "email", "id": sent["id"]}
    [file] = node.call("emails.attachments.list", {"emailId": sent["id"]})["data"]
    one = node.call("emails.attachments.get", {"emailId": sent["id"], "id": file["id"]})
    assert one["filename"] == "a.txt" and fetched(one["download_url"], base) == "Zwölf".encode()
    shared = node.call("emails.share", sent["id"], {"expiresIn": "10m"})
    assert b"<iframe" in fetched(shared["url"], base)
    assert node.call("emails.share", sent["id"])["object"] == "email"
    assert node.call("emails.cancel", sent["id"]) == {"object": "email", "id": sent["id"]}
    metrics = node.call(
        "emails.metrics", {"metrics": ["sent", "delivery_rate"], "dimensions": ["period", "domain"], "timezone": "Europe/Vienna"}
    )
    assert set(metrics["totals"]) == {"sent", "delivery_rate"}


def test_node_batch(node: Node, sender: str) -> None:
    email = {"from": sender, "to": "zoe@example.net", "subject": "s", "text": "t", "scheduledAt": "in 1 day"}
    sent = node.call("batch.send", [email, {**email, "subject": "2"}])
    assert [list(item) for item in sent["data"]] == [["id"], ["id"]]
    key = {"idempotencyKey": str(uuid4())}
    assert node.call("batch.create", [email], key) == node.call("batch.create", [email], key)
    some = node.call("batch.send", [email, {**email, "to": "nobody"}], {"batchValidation": "permissive"})
    assert len(some["data"]) == 1 and [error["index"] for error in some["errors"]] == [1]
    assert node.fails("batch.send", [email, {**email, "to": "nobody"}]) == (422, "validation_error")
    assert node.fails("batch.send", [{**email, "subject": "3"}], key) == (409, "invalid_idempotent_request")


def test_node_keys_domains_logs_usage(node: Node) -> None:
    created = node.call("apiKeys.create", {"name": "from node"})
    uuids(created["id"])
    assert created["token"].startswith("ms_")
    assert created["id"] in [key["id"] for key in node.call("apiKeys.list")["data"]]
    assert len(node.call("apiKeys.list", {"limit": 1})["data"]) == 1
    assert node.call("apiKeys.update", created["id"], {"name": "renamed"}) == {"object": "api_key", "id": created["id"]}
    assert node.call("apiKeys.remove", created["id"])["deleted"] is True
    domain = node.call("domains.create", {"name": "node.example.org", "customReturnPath": "bounces"})
    assert domain["status"] == "not_started" and domain["records"] and "object" not in domain
    assert node.call("domains.get", domain["id"])["object"] == "domain"
    assert domain["id"] in [item["id"] for item in node.call("domains.list")["data"]]
    assert node.call("domains.update", {"id": domain["id"], "tls": "enforced", "openTracking": False})["id"] == domain["id"]
    assert node.call("domains.verify", domain["id"]) == {"object": "domain", "id": domain["id"]}
    restricted = node.call("apiKeys.create", {"name": "s", "permission": "sending_access", "domain_id": domain["id"]})
    assert node.fails("emails.list", key=restricted["token"]) == (401, "restricted_api_key")
    assert node.call("domains.remove", domain["id"])["deleted"] is True
    assert node.call("usage.get")["object"] == "usage"


def test_node_logs(node: Node, daemon: Daemon) -> None:
    node.fails("emails.get", NOBODY)
    path, agent = f"/emails/{NOBODY}", "resend-node:"
    logs = daemon.until("/logs?status=404", daemon.facts["api_key"], lambda body: path in str(body))["data"]
    [ours] = [entry["id"] for entry in logs if entry["endpoint"] == path and entry["user_agent"].startswith(agent)][:1]
    assert ours in [entry["id"] for entry in node.call("logs.list", {"limit": 100})["data"]]
    one = node.call("logs.get", ours)
    assert one["object"] == "log" and one["response_body"]["name"] == "not_found"


def test_node_webhooks_and_suppressions(node: Node, daemon: Daemon) -> None:
    created = node.call("webhooks.create", {"endpoint": "https://hook.example.com/x", "events": ["email.sent", "suppression.added"]})
    assert created["signing_secret"].startswith("whsec_")
    assert node.call("webhooks.get", created["id"])["signing_secret"] == created["signing_secret"]
    assert created["id"] in [hook["id"] for hook in node.call("webhooks.list")["data"]]
    assert node.call("webhooks.rotateSigningSecret", created["id"])["signing_secret"] != created["signing_secret"]
    added = node.call("suppressions.add", {"email": "node@example.net"})
    assert node.call("suppressions.get", "node@example.net")["id"] == added["id"]
    assert added["id"] in [one["id"] for one in node.call("suppressions.list", {"origin": "manual"})["data"]]
    daemon.until(f"/webhooks/{created['id']}/events", daemon.facts["api_key"], lambda body: bool(body["data"]))
    [event, *_] = node.call("webhooks.events.list", {"webhookId": created["id"]})["data"]
    which = {"webhookId": created["id"], "eventId": event["id"]}
    assert node.call("webhooks.events.get", which)["payload"]["type"] == "suppression.added"
    assert node.call("webhooks.events.replay", which) == {"object": "webhook_event", "id": event["id"]}
    assert node.call("webhooks.events.attempts.list", which)["object"] == "list"
    assert node.call("suppressions.remove", added["id"])["deleted"] is True
    assert len(node.call("suppressions.batch.add", {"emails": ["a@example.net", "b@example.net"]})["data"]) == 2
    assert len(node.call("suppressions.batch.remove", {"emails": ["a@example.net", "b@example.net"]})["data"]) == 2
    assert node.call("webhooks.update", created["id"], {"status": "disabled"}) == {"object": "webhook", "id": created["id"]}
    assert node.call("webhooks.remove", created["id"])["deleted"] is True
    assert node.fails("webhooks.create", {"endpoint": "http://127.0.0.1/x", "events": ["email.sent"]})[0] == 422
    for method in ("webhooks.get", "webhooks.remove", "suppressions.get"):
        assert node.fails(method, NOBODY) == (404, "not_found")


def test_node_gets_errors(node: Node, sender: str, slow_key: str) -> None:
    email = {"from": sender, "to": "zoe@example.net", "subject": "s", "text": "t"}
    for change, errors in (
        ({"to": None}, (422, "missing_required_field")),
        ({"from": "nonsense"}, (422, "invalid_from_address")),
        ({"from": "a@elsewhere.example"}, (403, "validation_error")),
        ({"attachments": [{"filename": "a"}]}, (422, "invalid_attachment")),
        ({"scheduledAt": "when it suits"}, (422, "validation_error")),
    ):
        assert node.fails("emails.send", {**email, **change}) == errors
    assert node.fails("emails.send", email, key="ms_" + "x" * 38) == (403, "invalid_api_key")
    assert node.fails("emails.send", email, {"idempotencyKey": "x" * 257}) == (400, "invalid_idempotency_key")
    assert node.fails("apiKeys.create", {"name": "x", "permission": "all"}) == (422, "invalid_access")
    assert node.fails("domains.create", {"name": "x.example", "region": "nowhere"}) == (422, "invalid_region")
    assert node.fails("emails.get", "nonsense") == (422, "invalid_parameter")
    for method in ("emails.get", "emails.cancel", "domains.get", "domains.verify", "domains.remove", "apiKeys.remove", "logs.get"):
        assert node.fails(method, NOBODY) == (404, "not_found"), method
    errors = [node.tell({"path": "emails.list", "args": [], "key": slow_key})["error"] for _ in range(5)]
    assert [error for error in errors if error and (error["statusCode"], error["name"]) == (429, "rate_limit_exceeded")]


def test_node_domain_claims(node: Node, daemon: Daemon) -> None:
    name = held_elsewhere(daemon)
    claim = node.call("domains.claims.create", {"name": name, "customReturnPath": "bounce"})
    assert (claim["object"], claim["status"], claim["name"]) == ("domain_claim", "pending", name)
    assert claim["record"]["type"] == "TXT" and claim["record"]["name"] == name
    assert node.call("domains.claims.create", {"name": name})["id"] == claim["id"]
    assert node.call("domains.claims.get", claim["domain_id"]) == claim
    assert node.call("domains.claims.verify", claim["domain_id"])["status"] == "pending"
    assert node.call("domains.remove", claim["domain_id"])["deleted"] is True
    assert node.call("domains.claims.get", claim["domain_id"])["status"] == "canceled"
    assert node.call("domains.claims.create", {"name": f"{uuid4().hex}.example"})["status"] == "completed"
    for method in ("domains.claims.get", "domains.claims.verify"):
        assert node.fails(method, NOBODY) == (404, "not_found")


NODE_UNBUILT = {
    "templates.list": [], "templates.get": [NOBODY], "automations.list": [], "events.list": [],
    "events.send": [{"event": "x", "email": "a@b.c"}],
    "inboxes.list": [], "oauthGrants.list": [], "emails.receiving.list": [], "emails.receiving.get": [NOBODY],
    "emails.receiving.attachments.list": [{"emailId": NOBODY}],
}  # fmt: skip


@pytest.mark.parametrize("method", NODE_UNBUILT)
def test_node_gets_404_for_unavailable_collections(node: Node, method: str) -> None:
    assert node.fails(method, *NODE_UNBUILT[method]) == (404, "not_found")


def test_table_has_every_method_of_the_node_library(node: Node) -> None:
    methods = [
        name for name in node.tell({"methods": True})["data"] if not re.search(r"perform|build|append|forwardP|forwardW|downloadRaw", name)
    ]
    assert [name for name in methods if f"`{name}`" not in DOCS] == []


# Python


def fails(call: Callable[..., Any], *args: Any, **named: Any) -> tuple[int, str]:
    with pytest.raises(resend.exceptions.ResendError) as refused:
        call(*args, **named)
    return int(refused.value.code), refused.value.error_type


@pytest.mark.usefixtures("client")
def test_python_domain_claims(daemon: Daemon) -> None:
    name = held_elsewhere(daemon)
    claims: Any = resend.Domains.Claims
    claim = claims.create({"name": name, "custom_return_path": "bounce"})
    assert (claim["status"], claim["name"], claim["record"]["name"]) == ("pending", name, name)
    assert claim["record"]["value"].startswith("mailsvc-domain-verification=") and claim["created_at"] < claim["expires_at"]
    assert claims.create({"name": name})["id"] == claim["id"]
    assert claims.get(claim["domain_id"])["id"] == claim["id"]
    assert claims.verify(claim["domain_id"])["blocked_reason"] is None
    for call in (claims.get, claims.verify):
        assert fails(call, NOBODY) == (404, "not_found")


@pytest.mark.usefixtures("client")
def test_python_emails(base: str, sender: str) -> None:
    email: Any = {"from": sender, "to": ["zoe@example.net"], "subject": "Grüße", "html": "<p>Hi</p>", "scheduled_at": "in 1 day"}
    file = {"filename": "a.txt", "content": list("Zwölf".encode()), "content_type": "text/plain"}
    sent = resend.Emails.send({**email, "attachments": [file], "tags": [{"name": "a", "value": "b"}]})
    uuids(sent["id"])
    assert resend.Emails.get(sent["id"])["subject"] == "Grüße"
    assert resend.Emails.list({"limit": 1})["data"][0]["id"] == sent["id"]
    assert resend.Emails.update({"id": sent["id"], "scheduled_at": "in 2 days"})["id"] == sent["id"]
    [listed] = resend.EmailAttachments.list(sent["id"])["data"]
    one = resend.EmailAttachments.get(sent["id"], listed["id"])
    assert fetched(one["download_url"], base) == "Zwölf".encode()
    assert b"<iframe" in fetched(resend.Emails.share(sent["id"], {"expires_in": "1 day"})["url"], base)
    assert resend.Emails.cancel(sent["id"])["object"] == "email"
    assert resend.Emails.metrics({"metrics": ["sent", "bounced"], "dimensions": ["period"]})["granularity"] == "daily"
    assert [list(item) for item in resend.Batch.send([email, email])["data"]] == [["id"], ["id"]]


@pytest.mark.usefixtures("client")
def test_python_keys_domains_logs_usage(daemon: Daemon) -> None:
    created = resend.ApiKeys.create({"name": "from python"})
    assert resend.ApiKeys.list()["data"][0]["id"] == created["id"]
    assert resend.ApiKeys.update({"id": created["id"], "name": "renamed"})["id"] == created["id"]
    assert resend.ApiKeys.remove(created["id"])["deleted"] is True
    domain = resend.Domains.create({"name": "python.example.org"})
    assert resend.Domains.get(domain["id"])["name"] == "python.example.org"
    assert domain["id"] in [item["id"] for item in resend.Domains.list()["data"]]
    assert resend.Domains.update({"id": domain["id"], "tls": "enforced"})["id"] == domain["id"]
    assert resend.Domains.verify(domain["id"])["object"] == "domain"
    assert resend.Domains.remove(domain["id"])["deleted"] is True
    assert resend.Usage.get()["rate_limit"]["duration"] == "1000ms"
    daemon.until("/logs?status=201", daemon.facts["api_key"], lambda body: bool(body["data"]))
    [entry] = resend.Logs.list({"limit": 1})["data"]
    assert resend.Logs.get(entry["id"])["object"] == "log"


@pytest.mark.usefixtures("client")
def test_python_webhooks_and_suppressions(daemon: Daemon) -> None:
    created = resend.Webhooks.create({"endpoint": "https://hook.example.com/y", "events": ["email.sent", "suppression.added"]})
    hook = created["id"]
    assert resend.Webhooks.get(hook)["signing_secret"] == created["signing_secret"]
    assert hook in [one["id"] for one in resend.Webhooks.list()["data"]]
    assert resend.Webhooks.rotate_signing_secret(hook)["signing_secret"] != created["signing_secret"]
    added = resend.Suppressions.add({"email": "python@example.net"})
    assert resend.Suppressions.get("python@example.net")["id"] == added["id"]
    assert resend.Suppressions.list()["data"][0]["id"] == added["id"]
    daemon.until(f"/webhooks/{hook}/events", daemon.facts["api_key"], lambda body: bool(body["data"]))
    [event, *_] = resend.Webhooks.list_events(hook)["data"]
    assert resend.Webhooks.get_event(hook, event["id"])["payload"]["type"] == "suppression.added"
    assert resend.Webhooks.replay_event(hook, event["id"])["id"] == event["id"]
    assert resend.Webhooks.list_event_attempts(hook, event["id"])["object"] == "list"
    assert resend.Suppressions.remove(added["id"])["deleted"] is True
    assert len(resend.SuppressionsBatch.add({"emails": ["c@example.net"]})["data"]) == 1
    assert len(resend.SuppressionsBatch.remove({"emails": ["c@example.net"]})["data"]) == 1
    assert resend.Webhooks.update({"webhook_id": hook, "status": "disabled"})["id"] == hook
    assert resend.Webhooks.remove(hook)["deleted"] is True


@pytest.mark.usefixtures("client")
def test_python_gets_errors(sender: str, slow_key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    email: Any = {"from": sender, "to": "zoe@example.net", "subject": "s", "text": "t"}
    assert fails(resend.Emails.send, {**email, "to": None}) == (422, "missing_required_field")
    assert fails(resend.Emails.send, {**email, "from": "a@elsewhere.example"}) == (403, "validation_error")
    assert fails(resend.Emails.get, NOBODY) == (404, "not_found")
    assert fails(resend.ApiKeys.remove, NOBODY) == (404, "not_found")
    assert fails(resend.Domains.get, NOBODY) == (404, "not_found")
    assert fails(resend.Logs.get, NOBODY) == (404, "not_found")
    for missing in (resend.Templates.list, resend.Automations.list):
        assert fails(missing) == (404, "not_found")
    monkeypatch.setattr(resend, "api_key", "ms_" + "x" * 38)
    with pytest.raises(resend.exceptions.InvalidApiKeyError):
        resend.Emails.send(email)
    monkeypatch.setattr(resend, "api_key", slow_key)
    with pytest.raises(resend.exceptions.RateLimitError):
        for _ in range(5):
            resend.Emails.list()


def test_table_has_every_method_of_the_python_library() -> None:
    found = []
    for name, one in vars(resend).items():
        if isinstance(one, type) and one.__module__.startswith("resend."):
            methods = [m for m, v in vars(one).items() if isinstance(v, classmethod) and not m.endswith("_async") and not m.startswith("_")]
            found += [f"{name}.{method}" for method in methods]
    assert len(found) > 100
    assert [name for name in found if f"`{name}`" not in DOCS] == []
