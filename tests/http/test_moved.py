"""Requests that were being answered while their account moved to another cell: none is told that what it asks for does not exist."""

from __future__ import annotations

from uuid import UUID

import pytest
import pytest_twisted

from tests.http.api_rig import GOOD, ApiRig


@pytest.fixture
def left(rig: ApiRig) -> set[UUID]:
    """The accounts that leave during each request."""
    accounts: set[UUID] = set()
    rig.site.gate.moved_to = lambda account_id, since: "eu_1" if account_id in accounts else None
    return accounts


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/emails", b"", 200),
        ("GET", f"/emails/{UUID(int=1)}", b"", 404),
        ("POST", "/emails", {**GOOD, "from": "shop@elsewhere.example"}, 403),
        ("PATCH", f"/contacts/{UUID(int=1)}", {"first_name": "Ann"}, 404),
    ],
)
async def test_what_was_not_found_is_in_the_other_cell(
    rig: ApiRig, left: set[UUID], method: str, path: str, body: object, status: int
) -> None:
    left.add(UUID(int=1))
    assert (await rig.request(method, path, body)).status == status
    left.add(rig.account_id)
    response = await rig.request(method, path, body)
    assert response.status == 421 and response.headers["mailsvc-cell"] == "eu_1"


@pytest_twisted.ensureDeferred
async def test_what_was_done_is_answered(rig: ApiRig, left: set[UUID]) -> None:
    left.add(rig.account_id)
    assert (await rig.request("POST", "/emails", GOOD)).status == 200


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("phase", ["left", "arriving"])
async def test_an_email_is_not_refused_because_its_domain_is_in_another_cell(rig: ApiRig, left: set[UUID], phase: str) -> None:
    elsewhere = {**GOOD, "from": "shop@elsewhere.example"}
    assert (await rig.request("POST", "/emails", elsewhere)).status == 403
    insert = "INSERT INTO account_moves (account_id, phase, cell, begun_at) VALUES (%s, %s, 'eu_1', now())"
    await rig.pool.run(insert, (rig.account_id, phase))
    elsewhere["from"] = "shop@other.example"
    assert (await rig.request("POST", "/emails", elsewhere)).status == 503
    left.add(rig.account_id)
    assert (await rig.request("POST", "/emails", elsewhere)).status == 421
