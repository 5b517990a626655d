"""Health without an API key, and the development inbox of an account."""

from __future__ import annotations

from twisted.logger import capturedLogs

from mailsvc.http.resources.sandbox import _raw
from tests.http.rig import EMAIL, Rig


def test_healthz_responds() -> None:
    assert Rig().request("GET", "/healthz", key=None).json == {"status": "ok"}


def test_readyz_needs_all_checks() -> None:
    rig = Rig()
    problems: list[str | None] = [None]

    async def check() -> str | None:
        return problems[0]

    async def broken() -> str | None:
        raise OSError

    rig.checks["database"] = check
    assert rig.request("GET", "/readyz", key=None).json == {"status": "ready", "checks": {"database": "ok"}}
    problems[0] = "no connection"
    response = rig.request("GET", "/readyz", key=None)
    assert response.problem == (503, "service_unavailable")
    assert "database: no connection" in response.json["message"]
    rig.checks["database"] = broken
    with capturedLogs():
        assert rig.request("GET", "/readyz", key=None).status == 503


def test_sandbox_lists_and_shows_emails() -> None:
    rig = Rig()
    listed = {
        "id": "00000000-0000-0000-0000-00000000004d", "email_id": str(EMAIL), "created_at": "2026-11-21 00:15:00+00",
        "from": "a@example.com", "to": ["b@example.net"], "tls": None, "dkim": [{"domain": "example.com", "result": "pass"}], "size": 18,
    }  # fmt: skip
    assert rig.request("GET", "/sandbox/emails", key="ms_send").json == {"object": "list", "has_more": False, "data": [listed]}
    one = rig.request("GET", f"/sandbox/emails/{listed['id']}").json
    assert one == {"object": "sandbox_email", **listed, "raw": "Subject: Hi\r\n\r\nx\r\n", "raw_charset": "utf-8"}


def test_sandbox_hides_other_accounts() -> None:
    rig = Rig()
    assert rig.request("GET", "/sandbox/emails", key="ms_three").json["data"] == []
    assert rig.request("GET", "/sandbox/emails/00000000-0000-0000-0000-00000000004d", key="ms_three").status == 404
    assert rig.request("GET", "/sandbox/emails", key=None).status == 401


def test_sandbox_shows_bytes_that_are_not_utf8_as_latin1() -> None:
    assert _raw(b"\xff") == {"raw": "ÿ", "raw_charset": "latin-1"}
