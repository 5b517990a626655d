"""Finding, exporting and erasing over the API."""

from __future__ import annotations

import base64

import orjson
import pytest_twisted
from twisted.internet.defer import Deferred

from tests.http.api_rig import ApiRig

ANN = "Ann@example.net"
MAIL = {"from": "a@example.test", "to": [ANN, "bob@example.net"], "subject": f"For {ANN}", "text": f"Hello {ANN}"}


async def finished(rig: ApiRig, id_: str) -> None:
    eraser = rig.erasing.eraser
    [(erasure, email)] = await eraser.erasures.unfinished()
    assert (str(erasure.id), email) == (id_, ANN)
    await eraser.run(erasure, email, alone=True)


@pytest_twisted.ensureDeferred
async def test_find_and_erase(rig: ApiRig) -> None:
    await rig.request("POST", "/emails", MAIL)
    await rig.pool.run("DELETE FROM queue")
    found = (await rig.request("POST", "/privacy/find", {"email": ANN})).json
    assert found["counts"]["emails.recipients"] == found["counts"]["messages.bytes"] == 1 and "Ann" not in str(found)
    begun = await rig.request("POST", "/privacy/erasures", {"email": ANN})
    assert (begun.status, begun.json["state"], begun.json["finished_at"]) == (201, "waiting", None)
    await rig.flush()  # of the request log
    await finished(rig, begun.json["id"])
    done = (await rig.request("GET", f"/privacy/erasures/{begun.json['id']}")).json
    assert done["state"] == "finished" and done["erased"]["emails.recipients"] == 1 and done["waiting"] == {}
    assert (await rig.request("GET", "/privacy/erasures")).json["data"] == [done]
    assert (await rig.request("POST", "/privacy/find", {"email": ANN})).json["counts"] == {}
    assert await rig.pool.rows("SELECT count(*) FROM request_log WHERE path LIKE '/privacy%%' AND request_body IS NOT NULL") == [(0,)]


@pytest_twisted.ensureDeferred
async def test_another_account_is_not_touched_and_sees_nothing(rig: ApiRig) -> None:
    await rig.request("POST", "/emails", MAIL)
    assert (await rig.request("POST", "/privacy/find", {"email": ANN}, rig.foreign_key)).json["counts"] == {}
    begun = (await rig.request("POST", "/privacy/erasures", {"email": ANN}, rig.foreign_key)).json["id"]
    assert (await rig.request("GET", f"/privacy/erasures/{begun}")).status == 404
    await finished(rig, begun)
    assert (await rig.request("POST", "/privacy/find", {"email": ANN})).json["counts"]["emails.recipients"] == 1


@pytest_twisted.ensureDeferred
async def test_an_invalid_address_is_refused(rig: ApiRig) -> None:
    for path in ("find", "export", "erasures"):
        assert (await rig.request("POST", f"/privacy/{path}", {"email": "ann"})).status == 422


@pytest_twisted.ensureDeferred
async def test_only_one_request_reads_everything_at_a_time(rig: ApiRig) -> None:
    first: Deferred[object] = rig.request("POST", "/privacy/find", {"email": ANN})
    second = await rig.request("POST", "/privacy/find", {"email": ANN})
    assert (second.status, second.headers["retry-after"]) == (503, "30")
    await first
    assert (await rig.request("POST", "/privacy/find", {"email": ANN})).status == 200


@pytest_twisted.ensureDeferred
async def test_the_export_has_rows_and_messages(rig: ApiRig) -> None:
    await rig.request("POST", "/emails", MAIL)
    answer = await rig.request("POST", "/privacy/export", {"email": ANN})
    lines = [orjson.loads(line) for line in answer.body.splitlines()]
    [email] = [line["row"] for line in lines if line.get("table") == "emails"]
    assert email["recipients"] == MAIL["to"]
    [message] = [base64.b64decode(line["content"]) for line in lines if "message" in line]
    assert f"Hello {ANN}".encode() in message
