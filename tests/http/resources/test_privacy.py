"""Finding, exporting and erasing over the API."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from datetime import date
from pathlib import Path
from uuid import UUID

import orjson
import pytest
import pytest_twisted
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mailsvc.http.answer import translated
from mailsvc.http.request import Request
from mailsvc.store.console.operators import Operators
from mailsvc.store.privacy.finding import Busy, Turn
from mailsvc.store.privacy.journal import Entry, Journal, JournalError
from tests.http.api_rig import ApiRig
from tests.store.encryption.test_secrets import ENCRYPTION

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


@pytest.mark.parametrize("path", ["find", "export", "erasures"])
@pytest_twisted.ensureDeferred
async def test_the_address_of_a_refused_request_is_not_logged(rig: ApiRig, path: str) -> None:
    for body in ({"email": [ANN], "suppress": "yes"}, {"email": f"<{ANN}"}, [ANN], {ANN: ANN}):
        assert (await rig.request("POST", f"/privacy/{path}", body)).status == 422
    await rig.flush()
    logged = await rig.pool.rows("SELECT status, request_body, response_body FROM request_log")
    assert logged == [(422, None, None)] * 4


@pytest_twisted.ensureDeferred
async def test_operators_are_not_found(rig: ApiRig) -> None:
    await Operators(rig.pool, rig.site.reactor, ENCRYPTION).add("boss@operator.example", b"secret", [])
    assert (await rig.request("POST", "/privacy/find", {"email": "boss@operator.example"})).json["counts"] == {}
    assert (await rig.request("POST", "/privacy/export", {"email": "boss@operator.example"})).body == b""


@pytest_twisted.ensureDeferred
async def test_only_one_request_of_an_account_reads_everything_at_a_time(rig: ApiRig) -> None:
    first: Deferred[object] = rig.request("POST", "/privacy/find", {"email": ANN})
    second = await rig.request("POST", "/privacy/find", {"email": ANN})
    assert (second.status, second.headers["retry-after"]) == (503, "30")
    await first
    assert (await rig.request("POST", "/privacy/find", {"email": ANN})).status == 200


@pytest_twisted.ensureDeferred
async def test_another_account_does_not_wait_for_a_client_that_reads_slowly(rig: ApiRig) -> None:
    await rig.request("POST", "/emails", MAIL)
    stream = Request.stream

    async def slowly(request: Request, chunks: AsyncGenerator[bytes, None]) -> bool:
        found.append((await rig.request("POST", "/privacy/find", {"email": ANN}, rig.foreign_key)).status)
        found.append((await rig.request("POST", "/privacy/find", {"email": ANN})).status)
        return await stream(request, chunks)

    found: list[int] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Request, "stream", slowly)
        assert (await rig.request("POST", "/privacy/export", {"email": ANN})).status == 200
    assert found == [200, 503]


def test_an_erasure_that_the_journal_cannot_take_is_refused_for_the_time_being(tmp_path: Path) -> None:
    with pytest.raises(JournalError) as refused:
        Journal(tmp_path / "none" / "erasures", ENCRYPTION, 35).add(Entry(UUID(int=1), date(2026, 1, 1), None, ANN))
    assert translated(Failure(refused.value)).status == 503


def test_few_accounts_read_everything_at_a_time() -> None:
    turn, accounts = Turn(most=2), [UUID(int=number) for number in range(3)]
    with turn.take(accounts[0]), turn.take(accounts[1]), pytest.raises(Busy), turn.take(accounts[2]):
        pass
    with turn.take(accounts[2]):
        pass


@pytest_twisted.ensureDeferred
async def test_the_export_has_rows_and_messages(rig: ApiRig) -> None:
    await rig.request("POST", "/emails", MAIL)
    answer = await rig.request("POST", "/privacy/export", {"email": ANN})
    lines = [orjson.loads(line) for line in answer.body.splitlines()]
    [email] = [line["row"] for line in lines if line.get("table") == "emails"]
    assert email["recipients"] == MAIL["to"]
    [message] = [base64.b64decode(line["content"]) for line in lines if "message" in line]
    assert f"Hello {ANN}".encode() in message
