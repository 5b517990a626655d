"""Health without a key; the sandbox inbox of one account."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from twisted.logger import capturedLogs

from mailsvc.store.sandbox import Verdict
from tests.http.rig import RECEIVED, Rig


def test_alive() -> None:
    assert Rig().ask("GET", "/healthz", key=None).json == {"status": "ok"}


def test_ready_when_all_checks_pass() -> None:
    rig = Rig()
    told: list[str | None] = [None]

    async def check() -> str | None:
        return told[0]

    async def broken() -> str | None:
        raise OSError

    rig.checks["database"] = check
    assert rig.ask("GET", "/readyz", key=None).json == {"status": "ready"}
    told[0] = "no connection"
    response = rig.ask("GET", "/readyz", key=None)
    assert response.problem == (503, "service_unavailable")
    assert "database: no connection" in response.json["message"]
    rig.checks["database"] = broken
    with capturedLogs():
        assert rig.ask("GET", "/readyz", key=None).status == 503


def test_sandbox() -> None:
    rig = Rig()
    listed = {
        "id": "00000000-0000-0000-0000-00000000004d", "email_id": "00000000-0000-0000-0000-000000000005",
        "created_at": "2026-11-21 00:15:00+00", "from": "a@example.com", "to": ["b@example.net"], "dkim": "pass",
        "signatures": [{"domain": "example.com", "selector": "s1", "algorithm": "rsa-sha256", "result": "pass", "reason": None}],
        "tls": None, "size": 18,
    }  # fmt: skip
    assert rig.ask("GET", "/sandbox/emails", key="ms_send").json == {"object": "list", "has_more": False, "data": [listed]}
    one = rig.ask("GET", f"/sandbox/emails/{listed['id']}").json
    assert one == {"object": "sandbox_email", **listed, "raw": "Subject: Hi\r\n\r\nx\r\n", "raw_charset": "utf-8"}


def test_anothers_sandbox() -> None:
    rig = Rig()
    assert rig.ask("GET", "/sandbox/emails", key="ms_three").json["data"] == []
    assert rig.ask("GET", "/sandbox/emails/00000000-0000-0000-0000-00000000004d", key="ms_three").status == 404
    assert rig.ask("GET", "/sandbox/emails", key=None).status == 401


def test_octets_that_are_not_utf8() -> None:
    from mailsvc.http.sandbox import _raw

    assert _raw(b"\xff") == {"raw": "ÿ", "raw_charset": "latin-1"}


@pytest.mark.parametrize(("results", "dkim"), [((), "none"), (("pass", "pass"), "pass"), (("pass", "fail"), "fail"), (("nokey",), "fail")])
def test_one_word_for_all_signatures(results: tuple[Any, ...], dkim: str) -> None:
    from mailsvc.http.sandbox import _listed

    verdicts = tuple(Verdict("example.com", "s", "rsa-sha256", result) for result in results)
    assert _listed(attrs.evolve(RECEIVED, dkim=verdicts))["dkim"] == dkim
