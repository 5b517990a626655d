"""The checks of every response can fail."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.rig import GOOD, Rig
from tests.http.strictclients import CLIENTS, complaints

EMAIL: dict[str, Any] = Rig().request("GET", "/emails").json["data"][0]


def listed(**changes: Any) -> dict[str, Any]:
    return {"object": "list", "has_more": False, "data": [{**EMAIL, **changes}]}


@pytest.mark.parametrize(
    ("body", "clients"),
    [
        (listed(id="1"), {".NET"}),
        (listed(to="a@example.net"), {"Rust", ".NET", "Go"}),
        (listed(subject=None), {"Rust", ".NET"}),
        (listed(last_event="lost"), {"Rust", ".NET"}),
        (listed(created_at="yesterday"), {".NET"}),
        ({"data": []}, {"Rust", ".NET"}),
        (listed(), set()),
        (listed(last_event="suppressed"), set()),
    ],
)
def test_contract_names_the_clients_that_cannot_read_a_response(body: Any, clients: set[str]) -> None:
    assert {text.split(":")[0] for text in complaints("GET", "/emails", 200, body)} == clients


def test_contract_finds_errors_in_successes_and_unknown_names() -> None:
    assert list(complaints("POST", "/emails", 200, {"id": EMAIL["id"], "statusCode": 200}))
    assert list(complaints("GET", "/emails", 418, {"statusCode": 418, "message": "x", "name": "teapot"}))


def test_contract_covers_existing_endpoints_only() -> None:
    rig = Rig()
    later = ("/webhooks", "/suppressions")
    for schemas in CLIENTS.values():
        for name in schemas:
            method, _, path = name.partition(" ")
            assert name == "error" or path.startswith(later) or method.lower() in rig.contract.document["paths"][path], name


def test_contract_finds_undescribed_responses() -> None:
    contract = Rig().contract
    kind = "application/json; charset=utf-8"
    good = Rig().request("POST", "/emails", GOOD).json
    contract.check("POST", "/emails", 200, kind, good)
    for status, media, body in ((201, kind, good), (200, "text/html", good), (200, kind, {**good, "more": 1}), (200, kind, {})):
        with pytest.raises(AssertionError):
            contract.check("POST", "/emails", status, media, body)
