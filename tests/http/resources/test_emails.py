"""The emails API: requests, responses, and what reaches the intake."""

from __future__ import annotations

import gc
import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs

from mailsvc.bounces import diagnosis
from mailsvc.http import views
from mailsvc.http.resources.emails import Emails
from mailsvc.intake import Admitted, Busy, OtherRequest, Rejected
from mailsvc.policy import Refusal
from mailsvc.store.people.api_keys import Moved
from mailsvc.store.postgres.errors import OutOfResources, Unavailable
from tests.http.rig import EMAIL, GOOD, NOW, Rig, request, view

ID = "00000000-0000-0000-0000-000000000064"
ONE = {"id": ID}
OTHER = "00000000-0000-0000-0000-000000000065"
BAD = {**GOOD, "to": "nobody"}


# Send


@pytest.mark.parametrize("path", ["/emails", "/emails/", "/email", "/emails/sending", "/email/sending", "/emails?x=1"])
def test_send_submits_the_email_and_returns_its_id(path: str) -> None:
    rig = Rig()
    response = rig.request("POST", path, GOOD)
    assert (response.status, response.json) == (200, ONE)
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    [(caller, [email], key, permissive)] = rig.intake.submitted
    assert (caller.account_id, email.subject, key, permissive) == (UUID(int=1), "Hi", None, False)


def test_sending_key_can_only_send() -> None:
    rig = Rig()
    assert rig.request("POST", "/emails", GOOD, key="ms_send").status == 200
    assert rig.request("POST", "/emails/batch", [GOOD], key="ms_send").status == 200
    for method, path in [
        ("GET", "/emails"),
        ("GET", f"/emails/{EMAIL}"),
        ("PATCH", f"/emails/{EMAIL}"),
        ("POST", f"/emails/{EMAIL}/cancel"),
    ]:
        assert rig.request(method, path, key="ms_send").problem == (401, "restricted_api_key")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, (401, "missing_api_key")),
        ({"Authorization": "Basic bXM6eA=="}, (401, "missing_api_key")),
        ({"Authorization": "Bearer"}, (401, "missing_api_key")),
        ({"Authorization": "Bearer "}, (401, "missing_api_key")),
        ({"Authorization": "Bearer ms_full x"}, (403, "invalid_api_key")),
        ({"Authorization": "Bearer ms_füll"}, (403, "invalid_api_key")),
        ({"Authorization": "Bearer ms_wrong"}, (403, "invalid_api_key")),
        ({"Authorization": "Bearer ms_suspended"}, (403, "suspended_api_key")),
        ({"Authorization": "Bearer " + "m" * 300}, (403, "invalid_api_key")),
    ],
)
def test_key_problems_have_their_status_and_name(headers: dict[str, str], expected: tuple[int, str]) -> None:
    response = Rig().request("POST", "/emails", GOOD, key=None, **headers)
    assert response.problem == expected
    assert ("www-authenticate" in response.headers) is (expected[0] == 401)


def test_a_key_of_an_account_that_has_moved_names_its_cell() -> None:
    rig = Rig()
    rig.keys.elsewhere[hashlib.sha256(b"ms_moved").digest()] = Moved("eu_1")
    rig.keys.elsewhere[hashlib.sha256(b"ms_arriving").digest()] = Moved(None)
    for _ in range(30):  # the limit of requests without a valid key does not count it
        response = rig.request("POST", "/emails", GOOD, key="ms_moved")
        assert response.problem == (421, "invalid_api_key")
        assert response.headers["mailsvc-cell"] == "eu_1"
    assert "moved to the cell eu_1" in response.json["message"]
    assert rig.request("POST", "/emails", GOOD, key="ms_arriving").problem == (503, "service_unavailable")
    assert rig.request("POST", "/emails", GOOD, key="ms_wrong").problem == (403, "invalid_api_key")


def test_malformed_key_is_not_looked_up() -> None:
    rig = Rig()
    assert rig.request("GET", "/emails", key="guess").problem == (403, "invalid_api_key")
    assert rig.keys.lookups == 0


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  "])
def test_authorization_scheme_is_case_insensitive(scheme: str) -> None:
    assert Rig().request("POST", "/emails", GOOD, key=None, Authorization=f"{scheme} ms_full").status == 200


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (Refusal("domain", "from", "The `x` domain is not verified."), (403, "validation_error")),
        (Refusal("key", "from", "Not with this key."), (403, "restricted_api_key")),
        (Refusal("size", None, "Too large."), (413, "validation_error")),
        (Refusal("content", "headers", "The header Date cannot be set."), (422, "validation_error")),
        (Refusal("recipients", "to", "Too many in `to`."), (422, "validation_error")),
    ],
)
def test_refusals_have_their_status_and_field(refusal: Refusal, expected: tuple[int, str]) -> None:
    rig = Rig()
    rig.intake.answer = lambda emails: Rejected({0: refusal})
    response = rig.request("POST", "/emails", GOOD)
    assert response.problem == expected
    if refusal.field:
        assert f"`{refusal.field}`" in response.json["message"]


def test_invalid_body_is_refused() -> None:
    rig = Rig()
    for body in ([GOOD], "x", 5, None):
        assert rig.request("POST", "/emails", body).status == 422
    assert rig.request("POST", "/emails").problem == (400, "validation_error")
    assert rig.intake.submitted == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/emails", {**GOOD, "template": {"id": "1"}}),
        ("/emails", {**BAD, "tags": []}),
        ("/emails/batch", [GOOD, {**BAD, "tags": []}]),
    ],
)
def test_an_invalid_body_is_freed_without_the_garbage_collector(path: str, body: object) -> None:
    rig = Rig()
    gc.collect()
    gc.disable()
    try:
        before = _emails_in_memory()
        assert rig.request("POST", path, body).status == 422
        assert _emails_in_memory() == before
    finally:
        gc.enable()


def _emails_in_memory() -> int:
    return sum(1 for each in gc.get_objects() if type(each) is dict and each.get("subject") == GOOD["subject"])


def test_english_time_is_parsed_in_a_thread() -> None:
    rig = Rig()
    assert rig.request("POST", "/emails", {**GOOD, "scheduled_at": "in 1 hour"}).status == 200
    assert rig.threads
    assert rig.intake.submitted[0][1][0].scheduled_at == NOW + timedelta(hours=1)


# A client that hangs up, a store that is away


def test_sending_continues_after_the_client_hangs_up() -> None:
    rig, waiting = Rig(), Deferred[Any]()
    canceled: list[Any] = []
    waiting.addErrback(canceled.append)
    rig.intake.answer = lambda emails: waiting
    connection = rig.connect()
    connection.send(request("POST", "/emails", GOOD))
    with capturedLogs() as logs:
        connection.hang_up()
        assert rig.budget.used > 0
        waiting.callback(Admitted((UUID(int=100),)))
    assert canceled == []
    assert not [event for event in logs if "log_failure" in event]
    assert rig.budget.used == 0


@pytest.mark.parametrize(
    "error", [Unavailable("connection lost"), OutOfResources("53100", "could not extend file"), OutOfResources("58030", "I/O error")]
)
def test_unavailable_database_is_503(error: Exception) -> None:
    rig = Rig()
    rig.stored.error = error
    response = rig.request("GET", f"/emails/{EMAIL}")
    assert response.problem == (503, "service_unavailable")
    assert response.headers["retry-after"] == "1"


def test_unexpected_error_is_500_with_an_id_from_the_log() -> None:
    rig = Rig()
    rig.stored.error = ZeroDivisionError("ms_full and more")
    with capturedLogs() as logs:
        response = rig.request("GET", f"/emails/{EMAIL}")
    assert response.problem == (500, "application_error")
    assert b"Zero" not in response.body
    assert b"Traceback" not in response.body
    error_id = response.json["message"].rpartition(" ")[2]
    assert [event for event in logs if event.get("error_id") == error_id and "log_failure" in event]


# Idempotency


@pytest.mark.parametrize("path", ["/emails", "/email/sending"])
@pytest.mark.parametrize("key", ["k", '"quoted"', "welcome/1", "k" * 256])
def test_idempotency_key_is_opaque(path: str, key: str) -> None:
    rig = Rig()
    assert rig.request("POST", path, GOOD, Idempotency_Key=key).status == 200
    assert rig.request("POST", path, dict(reversed(GOOD.items())), Idempotency_Key=key).status == 200
    first, second = (submitted[2] for submitted in rig.intake.submitted)
    assert first == second
    assert (first.endpoint, first.key) == ("POST /emails", key)


def test_idempotency_keys_of_batches_are_separate() -> None:
    rig = Rig()
    rig.request("POST", "/emails/batch", [GOOD], Idempotency_Key="k")
    assert rig.intake.submitted[0][2].endpoint == "POST /emails/batch"


@pytest.mark.parametrize("key", ["", "k" * 257])
def test_idempotency_key_of_wrong_length_is_refused(key: str) -> None:
    assert Rig().request("POST", "/emails", GOOD, Idempotency_Key=key).problem == (400, "invalid_idempotency_key")


def test_idempotency_key_is_ignored_by_other_endpoints() -> None:
    assert Rig().request("GET", "/emails", Idempotency_Key="k" * 257).status == 200


@pytest.mark.parametrize(("answer", "name"), [(Busy(), "concurrent_idempotent_requests"), (OtherRequest(), "invalid_idempotent_request")])
def test_idempotency_conflicts_are_409(answer: object, name: str) -> None:
    rig = Rig()
    rig.intake.answer = lambda emails: answer
    assert rig.request("POST", "/emails", GOOD, Idempotency_Key="k").problem == (409, name)


# Batches


def test_batch_returns_ids_in_order() -> None:
    rig = Rig()
    response = rig.request("POST", "/emails/batch", [GOOD, {**GOOD, "attachments": [{"content": "eA==", "filename": "a"}]}])
    assert response.json == {"data": [ONE, {"id": OTHER}]}
    [(_, emails, key, permissive)] = rig.intake.submitted
    assert (len(emails), key, permissive) == (2, None, False)


def test_strict_batch_is_all_or_nothing() -> None:
    rig = Rig()
    response = rig.request("POST", "/emails/batch", [GOOD, BAD])
    assert response.problem == (422, "validation_error")
    assert response.json["message"].startswith("Item 1: Invalid `to`")
    assert rig.intake.submitted == []
    rig.intake.answer = lambda emails: Rejected({1: Refusal("domain", "from", "The `x` domain is not verified.")})
    response = rig.request("POST", "/emails/batch", [GOOD, GOOD], x_batch_validation="strict")
    assert (response.problem, response.json["message"][:7]) == ((403, "validation_error"), "Item 1:")


def test_permissive_batch_sends_valid_emails() -> None:
    rig = Rig()
    refusal = Refusal("domain", "from", "The `x` domain is not verified.")
    rig.intake.answer = lambda emails: Admitted((UUID(int=100), refusal))
    response = rig.request("POST", "/emails/batch", [BAD, GOOD, 5, GOOD], x_batch_validation="permissive")
    assert response.status == 200
    assert response.json["data"] == [ONE]
    assert [error["index"] for error in response.json["errors"]] == [0, 2, 3]
    assert "`to`" in response.json["errors"][0]["message"]
    assert "statusCode" not in response.json
    assert rig.intake.submitted[0][3] is True


def test_permissive_batch_without_valid_emails_returns_errors() -> None:
    rig = Rig()
    response = rig.request("POST", "/emails/batch", [BAD], x_batch_validation="permissive", Idempotency_Key="k")
    assert (response.status, response.json["data"], len(response.json["errors"])) == (200, [], 1)
    assert rig.intake.submitted == []
    rig.intake.answer = lambda emails: Rejected({0: Refusal("size", None, "Too large.")})
    response = rig.request("POST", "/emails/batch", [GOOD], x_batch_validation="permissive")
    assert response.json == {"data": [], "errors": [{"index": 0, "message": "Too large."}]}


def test_permissive_batch_without_errors_returns_no_errors() -> None:
    assert Rig().request("POST", "/emails/batch", [GOOD], x_batch_validation="permissive").json == {"data": [ONE], "errors": []}


@pytest.mark.parametrize("body", [[], [GOOD] * 101, GOOD, "x"])
def test_batch_has_1_to_100_emails(body: object) -> None:
    assert Rig().request("POST", "/emails/batch", body).problem == (422, "validation_error")


def test_unknown_batch_validation_is_refused() -> None:
    response = Rig().request("POST", "/emails/batch", [GOOD], x_batch_validation="lenient")
    assert "`x-batch-validation`" in response.json["message"]


# Read


def test_get_returns_content_and_recipients() -> None:
    rig = Rig()
    assert rig.request("GET", f"/emails/{EMAIL}", b"{}").json == {
        "object": "email", "id": str(EMAIL), "message_id": "<x@example.com>", "to": ["b@example.net"], "from": "A <a@example.com>",
        "created_at": "2023-04-03 22:13:42.67498+00", "subject": "Hi", "html": "<p>x</p>", "text": None, "bcc": [], "cc": [],
        "reply_to": [], "last_event": "delivery_delayed", "scheduled_at": None, "tags": [{"name": "k", "value": "v"}],
        "recipients": [
            {
                "address": "b@example.net", "status": "delayed", "reason": "451 later", "next_attempt_at": "2026-11-21 00:15:00+00",
                "attempts": 2, "last_reply": "451 later", "class": "system", "rule": "4xx", "must_act": "provider",
                "advice": diagnosis.rules().classes["system"].meaning.retrying,
            }
        ],
            "note": None,
    }  # fmt: skip


def test_email_of_another_account_is_not_found() -> None:
    rig = Rig()
    assert rig.request("GET", f"/emails/{EMAIL}", key="ms_three").problem == (404, "not_found")
    assert rig.request("GET", f"/emails/{UUID(int=9)}").json["message"] == "Email not found"


@pytest.mark.parametrize("text", ["x", "0190a8e6000070008000000000000001", "{0190a8e6-0000-7000-8000-000000000001}", "%00"])
def test_id_must_be_a_uuid(text: str) -> None:
    response = Rig().request("GET", f"/emails/{text}")
    assert response.problem == (422, "invalid_parameter")
    assert "`id`" in response.json["message"]


def test_list_returns_rows_with_all_keys() -> None:
    rig = Rig()
    response = rig.request("GET", "/emails")
    assert (response.json["object"], response.json["has_more"]) == ("list", False)
    assert list(response.json["data"][0]) == [
        "id", "message_id", "to", "from", "created_at", "subject", "bcc", "cc", "reply_to", "last_event", "scheduled_at",
    ]  # fmt: skip
    rig.request("GET", f"/emails?limit=100&after={EMAIL}")
    rig.request("GET", f"/emails?limit=1&before={EMAIL}&after=")
    assert rig.stored.calls == [("list", 20, None, None), ("list", 100, EMAIL, None), ("list", 1, None, EMAIL)]


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("limit=0", "validation_error"), ("limit=101", "validation_error"), ("limit=x", "validation_error"),
        ("limit=1&limit=2", "validation_error"), ("limit=%C2%B2", "validation_error"), ("after=x", "invalid_parameter"),
        (f"after={EMAIL}&before={EMAIL}", "validation_error"),
    ],
)  # fmt: skip
def test_pagination_parameters_are_checked(query: str, name: str) -> None:
    assert Rig().request("GET", f"/emails?{query}").problem == (422, name)


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (datetime(2023, 4, 3, 22, 13, 42, 674981, UTC), "2023-04-03 22:13:42.674981+00"),
        (datetime(2023, 4, 3, 22, 13, 40, tzinfo=UTC), "2023-04-03 22:13:40+00"),
        (datetime(2023, 4, 3, 22, 13, 42, 100, UTC), "2023-04-03 22:13:42.0001+00"),
    ],
)
def test_times_are_written_like_postgres(at: datetime, text: str) -> None:
    assert views.postgres_time(at) == text


# Change


def test_reschedule_changes_the_time() -> None:
    rig = Rig()
    rig.stored.changed = "rescheduled"
    response = rig.request("PATCH", f"/emails/{EMAIL}", {"id": str(EMAIL), "scheduled_at": "2026-11-22T10:00:00Z"})
    assert response.json == {"object": "email", "id": str(EMAIL)}
    rig.request("PATCH", f"/emails/{EMAIL}", {"scheduled_at": "now"})
    assert rig.stored.calls == [("reschedule", datetime(2026, 11, 22, 10, tzinfo=UTC)), ("reschedule", NOW)]


@pytest.mark.parametrize(
    ("body", "name"), [({}, "missing_required_field"), ({"scheduled_at": 5}, "validation_error"), ([], "validation_error")]
)
def test_reschedule_needs_a_time(body: object, name: str) -> None:
    assert Rig().request("PATCH", f"/emails/{EMAIL}", body).problem == (422, name)


def test_cancel_reports_the_result() -> None:
    rig = Rig()
    assert rig.request("POST", f"/emails/{EMAIL}/cancel", b"{}").json == {"object": "email", "id": str(EMAIL)}
    rig.stored.changed = "too_late"
    refused = rig.request("POST", f"/emails/{EMAIL}/cancel")
    assert refused.problem == (422, "validation_error")
    assert refused.json["message"] == "The email can no longer be canceled: it has ended, is being sent now, or may have arrived already."
    rig.stored.changed = "not_found"
    assert rig.request("POST", f"/emails/{EMAIL}/cancel").problem == (404, "not_found")


# Methods and paths


def test_unknown_methods_are_refused() -> None:
    rig = Rig()
    assert rig.request("PUT", "/emails").problem == (405, "method_not_allowed")
    assert rig.request("PUT", "/emails").headers["allow"] == "GET, HEAD, OPTIONS, POST"
    assert rig.request("DELETE", f"/emails/{EMAIL}").headers["allow"] == "GET, HEAD, OPTIONS, PATCH"
    assert rig.request("get", "/emails").problem == (501, "method_not_allowed")
    assert rig.request("BREW", "/emails").status == 501
    assert rig.request("TRACE", "/emails").headers["allow"] == "GET, HEAD, OPTIONS, POST"
    options = rig.request("OPTIONS", "/emails/batch", key=None)
    assert (options.status, options.body) == (204, b"")
    assert rig.request("OPTIONS", "/nope", key=None).status == 404
    head, get = rig.request("HEAD", f"/emails/{EMAIL}"), rig.request("GET", f"/emails/{EMAIL}")
    assert (head.status, head.headers["content-length"], head.body) == (200, str(len(get.body)), b"")


@pytest.mark.parametrize("path", ["/emails/batch", "/emails/sending", "/email/sending", "/email"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PATCH", "DELETE", "PUT", "OPTIONS"])
def test_allow_header_lists_only_methods_of_the_path(method: str, path: str) -> None:
    response = Rig().request(method, path)
    assert (response.status, response.headers["allow"]) == (204 if method == "OPTIONS" else 405, "OPTIONS, POST")


def test_unserved_path_is_not_found_for_every_method() -> None:
    for method in ("GET", "POST", "DELETE", "OPTIONS"):
        assert Rig().request(method, "/emails/receiving").status == Rig().request(method, f"/emails/receiving/{EMAIL}").status == 404


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH"])
def test_id_is_checked_before_the_body(method: str) -> None:
    assert Rig().request("PATCH" if method == "PATCH" else "GET", "/emails/batches").problem == (422, "invalid_parameter")


@pytest.mark.parametrize("path", ["/", "//emails", "/nope", "/emailsx", "/emails/x/y", "/%65mails%2f", "/emails/%ff", "/email", "/.."])
def test_unknown_endpoint_is_not_found(path: str) -> None:
    response = Rig().request("DELETE" if path == "/email" else "GET", path)
    assert response.status in (404, 405)
    assert response.problem[1] in ("not_found", "method_not_allowed")


def test_api_needs_all_its_parts() -> None:
    """So that a part that is left out is a failure at the start, not at the first request."""
    assert {a.name for a in attrs.fields(Emails) if a.default is attrs.NOTHING} == {"intake", "stored", "contents", "reader", "links"}
    assert view().email_id == EMAIL
