"""What must never reach a header or the store, through the API and the real intake."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from mailsvc.policy import Limits
from tests.http.rig import Rig
from tests.test_intake import Rig as IntakeRig

GOOD: dict[str, Any] = {"from": "Acme <hello@example.test>", "to": "zoe@example.net", "subject": "Hi", "html": "<p>x</p>"}

FIELDS = {
    "from": lambda bad: f"A{bad} <hello@example.test>",
    "to": lambda bad: f"zoe{bad}@example.net",
    "cc": lambda bad: [f"Z{bad} <zoe@example.net>"],
    "bcc": lambda bad: f"zoe@example.net{bad}x",
    "reply_to": lambda bad: f"{bad}x <zoe@example.net>",
    "subject": lambda bad: f"Hi{bad}Bcc: x@example.net",
    "headers": lambda bad: {f"X-A{bad}": "1"},
    "headers ": lambda bad: {"X-A": f"1{bad}Bcc: x@example.net"},
    "tags": lambda bad: [{"name": f"a{bad}", "value": "v"}],
    "tags ": lambda bad: [{"name": "a", "value": f"v{bad}"}],
    "attachments": lambda bad: [{"content": "eA==", "filename": f"a{bad}b"}],
    "attachments ": lambda bad: [{"content": "eA==", "content_type": f"text/plain{bad}X: y"}],
    "attachments  ": lambda bad: [{"content": "eA==", "content_id": f"a{bad}b"}],
}


@pytest.mark.parametrize("bad", ["\r\n", "\n", "\r", "\x00"])
@pytest.mark.parametrize("field", FIELDS)
def test_line_breaks_and_nul_are_refused(field: str, bad: str) -> None:
    intake_rig = IntakeRig()
    name = field.strip()
    response = Rig(intake=intake_rig.intake()).request("POST", "/emails", {**GOOD, name: FIELDS[field](bad)})
    assert response.status == 422, response.body
    assert name in response.json["message"]
    assert intake_rig.submissions == []


@pytest.mark.parametrize("name", ["From", "to", "DKIM-Signature", "Received", "Content-Type", "Bcc"])
def test_reserved_headers_are_refused(name: str) -> None:
    intake_rig = IntakeRig()
    response = Rig(intake=intake_rig.intake()).request("POST", "/emails", {**GOOD, "headers": {name: "x"}})
    assert response.problem == (422, "validation_error")
    assert "headers" in response.json["message"]
    assert intake_rig.submissions == []


def test_nul_in_a_body_is_handled() -> None:
    response = Rig(intake=IntakeRig().intake()).request("POST", "/emails", {**GOOD, "html": "a\x00"})
    assert response.problem == (422, "validation_error")


def test_foreign_domain_is_refused() -> None:
    response = Rig(intake=IntakeRig().intake()).request("POST", "/emails", {**GOOD, "from": "a@elsewhere.test"})
    assert response.problem == (403, "validation_error")


def test_message_that_is_too_large_is_refused() -> None:
    intake_rig = IntakeRig()
    rig = Rig(intake=intake_rig.intake(message=1000))
    assert rig.request("POST", "/emails", {**GOOD, "html": "x" * 1000}).problem == (413, "validation_error")
    assert intake_rig.submissions == []


def test_permissive_batch_refuses_only_the_bad_item() -> None:
    intake_rig = IntakeRig()
    items = [{**GOOD, "subject": f"n {i}"} for i in range(100)]
    items[42]["subject"] = "a\r\nBcc: x@example.net"
    response = Rig(intake=intake_rig.intake()).request("POST", "/emails/batch", items, x_batch_validation="permissive")
    assert [error["index"] for error in response.json["errors"]] == [42]
    assert len(response.json["data"]) == len(intake_rig.submissions[0].emails) == 99
    assert {UUID(one["id"]) for one in response.json["data"]} == {email.email_id for email in intake_rig.submissions[0].emails}


def test_default_limits() -> None:
    assert (Limits().recipients_per_field, Limits().message) == (50, 41_943_040)
