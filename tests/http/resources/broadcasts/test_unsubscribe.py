"""Unsubscribe links: one click, the page, and links that are not valid."""

from __future__ import annotations

import base64
import re
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred

from mailsvc.broadcasts.links import Source, UnsubscribeLinks
from mailsvc.http import parameters
from mailsvc.http.resources.broadcasts.unsubscribe import TOO_OFTEN
from mailsvc.store.audience import preferences
from mailsvc.store.audience.keys import AudienceKeys
from mailsvc.store.broadcasts import recipients
from mailsvc.store.postgres.errors import Unavailable
from tests.http.api_rig import ENCRYPTION, ApiRig
from tests.http.rig import Connection, Response, request

CLICK = b"List-Unsubscribe=One-Click"
FORM = "application/x-www-form-urlencoded"


async def link(rig: ApiRig, address: str = "ada@example.net", **source: Any) -> str:
    """The path of a link."""
    url = await UnsubscribeLinks(AudienceKeys(rig.pool, ENCRYPTION)).make("", Source(rig.account_id, **source), address)
    assert url == await UnsubscribeLinks(AudienceKeys(rig.pool, ENCRYPTION)).make("", Source(rig.account_id, **source), address)
    return url


async def add(rig: ApiRig, address: str = "ada@example.net") -> str:
    return str((await rig.request("POST", "/contacts", {"email": address})).json["id"])


async def call(rig: ApiRig, method: str, path: str, body: bytes = b"", kind: str = FORM, **headers: str) -> Response:
    """A request without a key, by a browser or a mail program."""
    connection: Any = Connection(rig, "192.0.2.1")  # type: ignore[arg-type]
    answered: Deferred[Response] = Deferred()
    write = connection.transport.write

    def written(data: bytes) -> None:
        write(data)
        for response in connection.responses():
            if len(response.body) == int(response.headers.get("content-length", 0)) and not answered.called:
                rig.site.reactor.callLater(0, answered.callback, response)

    connection.transport.write = written
    connection.send(request(method, path, body, None, **({"content-type": kind} if body else {}), **headers))
    return await answered.addTimeout(20, rig.site.reactor)


async def post(rig: ApiRig, path: str, body: bytes, kind: str = FORM) -> Response:
    return await call(rig, "POST", path, body, kind)


async def unsubscribed(rig: ApiRig, id_: str) -> bool:
    return bool((await rig.request("GET", f"/contacts/{id_}")).json["unsubscribed"])


MULTIPART = b'--b\r\nContent-Disposition: form-data; name="List-Unsubscribe"\r\n\r\nOne-Click\r\n--b--\r\n'


@pytest_twisted.ensureDeferred
async def test_one_click(rig: ApiRig) -> None:
    contact, path = await add(rig), await link(rig, broadcast_id=UUID(int=5))
    for body, kind in ((CLICK, FORM), (MULTIPART, "multipart/form-data; boundary=b")):
        answer = await post(rig, path, body, kind)
        assert (answer.status, answer.body) == (204, b"")
        assert "set-cookie" not in answer.headers and "location" not in answer.headers
    assert await unsubscribed(rig, contact)
    assert await rig.pool.rows("SELECT source FROM consents") == [("one_click",)]


@pytest_twisted.ensureDeferred
async def test_whoever_has_a_link_cannot_fill_the_evidence(rig: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preferences, "SUBSCRIBED_MOST", 3)
    contact, path = await add(rig), await link(rig)
    await add(rig, "bob@example.net")
    for _ in range(5):
        await post(rig, path, CLICK)
        page = await post(rig, path, b"save=again")
    assert TOO_OFTEN.encode() in page.body and await unsubscribed(rig, contact)
    assert await rig.pool.rows("SELECT action, count(*) FROM consents GROUP BY 1 ORDER BY 1") == [("subscribed", 3), ("unsubscribed", 4)]
    topic = (await rig.request("POST", "/topics", {"name": "News", "default_subscription": "opt_out", "visibility": "public"})).json["id"]
    await rig.request("PATCH", f"/contacts/{contact}", {"unsubscribed": False})
    body = f"save=topics&offered={topic}".encode()
    assert TOO_OFTEN.encode() in (await post(rig, path, body + f"&topic={topic}".encode())).body
    await rig.request("PATCH", f"/contacts/{contact}/topics", [{"id": topic, "subscription": "opt_in"}])
    assert b"Your choice has been saved." in (await post(rig, path, body)).body, "unsubscribing works"
    other = await link(rig, "bob@example.net")
    await post(rig, other, CLICK)
    assert b"You are subscribed again" in (await post(rig, other, b"save=again")).body
    rig.clock.advance(86_401)
    await post(rig, path, CLICK)
    assert b"You are subscribed again" in (await post(rig, path, b"save=again")).body


@pytest_twisted.ensureDeferred
async def test_other_values_of_the_parameter_do_no_harm(rig: ApiRig) -> None:
    """Programs that check links on their way to a person may add parameters of their own."""
    contact, path = await add(rig), await link(rig)
    token = path.partition("=")[2]
    for query in (f"token={token}&token={token}", f"token=theirs&token={token}", f"token={token}&token="):
        assert (await call(rig, "GET", f"/unsubscribe?{query}")).status == 200
        assert (await post(rig, f"/unsubscribe?{query}", CLICK)).status == 204
        assert await unsubscribed(rig, contact)
        await post(rig, f"/unsubscribe?{query}", b"save=again")
        assert not await unsubscribed(rig, contact)
    for method in ("GET", "POST"):
        page = await call(rig, method, "/unsubscribe?token=a&token=b")
        assert page.status == 404 and b"This link is not valid" in page.body
    assert (await call(rig, "GET", "/confirm?token=a&token=b")).headers["content-type"].startswith("text/html")


@pytest_twisted.ensureDeferred
async def test_the_address_is_shortened_if_the_account_wants_it(rig: ApiRig) -> None:
    for name, kinds in (("ada@example.net", []), ("bob@example.net", ["addresses"])):
        await rig.pool.run("UPDATE accounts SET minimize = %s WHERE id = %s", (kinds, rig.account_id))
        await add(rig, name)
        await post(rig, await link(rig, name), CLICK)
    assert await rig.pool.rows("SELECT details ->> 'ip' FROM consents ORDER BY email") == [("192.0.2.1",), ("192.0.2.0",)]


@pytest_twisted.ensureDeferred
async def test_opening_the_page_changes_nothing(rig: ApiRig) -> None:
    contact, path = await add(rig), await link(rig)
    for method in ("GET", "GET"):
        page = await call(rig, method, path)
        assert page.status == 200 and b"Unsubscribe from everything" in page.body
        assert b"<script" not in page.body and "script-src" not in page.headers["content-security-policy"]
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["referrer-policy"] == "no-referrer" and "noindex" in page.headers["x-robots-tag"]
    assert not await unsubscribed(rig, contact)


@pytest_twisted.ensureDeferred
async def test_one_click_with_a_topic_leaves_the_others(rig: ApiRig) -> None:
    topics = [(await rig.request("POST", "/topics", {"name": n, "default_subscription": "opt_in"})).json["id"] for n in ("A", "B")]
    contact, path = await add(rig), await link(rig, topic_id=UUID(topics[0]))
    assert (await post(rig, path, CLICK)).status == 204
    assert not await unsubscribed(rig, contact)
    choices = {row["id"]: row["subscription"] for row in (await rig.request("GET", f"/contacts/{contact}/topics")).json["data"]}
    assert choices == {topics[0]: "opt_out", topics[1]: "opt_in"}


@pytest_twisted.ensureDeferred
async def test_one_click_with_a_deleted_topic_unsubscribes_from_everything(rig: ApiRig) -> None:
    topic = (await rig.request("POST", "/topics", {"name": "A", "default_subscription": "opt_in"})).json["id"]
    contact, path, other = await add(rig), await link(rig, topic_id=UUID(topic)), await link(rig, "bob@example.net", topic_id=UUID(topic))
    await rig.request("DELETE", f"/topics/{topic}")
    for each in (path, other):  # one of a contact, and one of somebody who is none
        assert (await post(rig, each, CLICK)).status == 204
    assert await unsubscribed(rig, contact) and await unsubscribed(rig, await add(rig, "bob@example.net"))


@pytest_twisted.ensureDeferred
async def test_the_page_saves_topics_and_everything(rig: ApiRig) -> None:
    names = {"Open": "public", "Closed": "private"}
    topics = {}
    for name, visibility in names.items():
        body = {"name": name, "default_subscription": "opt_out", "visibility": visibility}
        topics[name] = (await rig.request("POST", "/topics", body)).json["id"]
    contact, path = await add(rig), await link(rig)
    page = (await call(rig, "GET", path)).body.decode()
    assert "Open" in page and "Closed" not in page and "checked" not in page
    saved = await post(rig, path, f"topic={topics['Open']}&topic={topics['Closed']}&save=topics".encode())
    assert b"Your choice has been saved." in saved.body and b"checked" in saved.body
    for other in (b"save=unknown", b"save=", b"save=topics2&topic=x"):  # no button of the form
        unchanged = await post(rig, path, other)
        assert b"saved" not in unchanged.body and b"checked" in unchanged.body
    choices = {row["name"]: row["subscription"] for row in (await rig.request("GET", f"/contacts/{contact}/topics")).json["data"]}
    assert choices == {"Open": "opt_in", "Closed": "opt_out"}
    assert b"Subscribe again" in (await post(rig, path, b"save=nothing")).body
    assert await unsubscribed(rig, contact)
    assert b"You are subscribed again" in (await post(rig, path, b"save=again")).body
    assert not await unsubscribed(rig, contact)
    await post(rig, path, b"save=topics")
    await post(rig, path, b"save=nothing")
    assert b"You are subscribed again, except to what is not checked below." in (await post(rig, path, b"save=again")).body


@pytest_twisted.ensureDeferred
async def test_a_topic_that_the_page_did_not_show_yet_stays_as_it_is(rig: ApiRig) -> None:
    new = {"default_subscription": "opt_in", "visibility": "public"}
    first = (await rig.request("POST", "/topics", {"name": "First", **new})).json["id"]
    contact, path = await add(rig), await link(rig)
    page = (await call(rig, "GET", path)).body.decode()
    second = (await rig.request("POST", "/topics", {"name": "Second", **new})).json["id"]
    fields = re.findall(r'name="(offered)" value="([^"]*)"', page)
    await post(rig, path, urlencode([*fields, ("save", "topics")]).encode())  # the box is no longer ticked
    choices = {row["id"]: row["subscription"] for row in (await rig.request("GET", f"/contacts/{contact}/topics")).json["data"]}
    assert choices == {first: "opt_out", second: "opt_in"}


@pytest_twisted.ensureDeferred
async def test_a_link_works_after_the_contact_was_deleted_and_added_again(rig: ApiRig) -> None:
    contact, path = await add(rig), await link(rig)
    await rig.request("DELETE", f"/contacts/{contact}")
    assert (await post(rig, path, CLICK)).status == 204
    assert b"Subscribe again" in (await call(rig, "GET", path)).body
    assert await unsubscribed(rig, await add(rig, "ADA@example.net"))


@pytest_twisted.ensureDeferred
async def test_whoever_is_no_contact_is_offered_only_topics_to_leave(rig: ApiRig) -> None:
    """Subscribing to another one would not be stored."""
    path, topics = await link(rig), {}
    for default in ("opt_in", "opt_out"):
        body = {"name": f"Topic {default}", "default_subscription": default, "visibility": "public"}
        topics[default] = (await rig.request("POST", "/topics", body)).json["id"]
    for ticked in (True, False, True):
        form = f"save=topics&offered={topics['opt_in']}" + (f"&topic={topics['opt_in']}" if ticked else "")
        page = (await post(rig, path, form.encode())).body.decode()
        assert "Your choice has been saved." in page and "Topic opt_out" not in page
        assert ("checked" in page) is ticked and "Topic opt_in" in page
    await add(rig)
    assert "Topic opt_out" in (await call(rig, "GET", path)).body.decode()


@pytest_twisted.ensureDeferred
async def test_links_that_are_not_valid(rig: ApiRig) -> None:
    contact, path = await add(rig), await link(rig)
    token = path.partition("=")[2]
    data = bytearray(base64.urlsafe_b64decode(token + "=="))
    for at in (0, 1, 20, 40, 50, len(data) - 1):
        forged = bytes(data[:at]) + bytes([data[at] ^ 1]) + bytes(data[at + 1 :])
        wrong = "/unsubscribe?token=" + base64.urlsafe_b64encode(forged).decode().rstrip("=")
        assert (await post(rig, wrong, CLICK)).status == 404
        assert (await call(rig, "GET", wrong)).status == 404
    for wrong in ("/unsubscribe", "/unsubscribe?token=", "/unsubscribe?token=a%00b", "/unsubscribe?token=" + "A" * 400):
        assert (await post(rig, wrong, CLICK)).status == 404
    assert not await unsubscribed(rig, contact)


@pytest_twisted.ensureDeferred
async def test_the_page_looks_as_the_account_wants(rig: ApiRig) -> None:
    body = {"title": "Ours <b>", "message": "Choose", "logo": "https://example.com/l.png", "background_color": "#123456"}
    await rig.request("PATCH", "/preference-page", body)
    page = (await call(rig, "GET", await link(rig))).body.decode()
    assert '<h1 dir="auto">Ours &lt;b&gt;</h1><p dir="auto">Choose</p>' in page and 'src="https://example.com/l.png"' in page
    assert re.search(r"--background:#123456;--text:#ffffff", page)  # white on a dark background
    assert "prefers-color-scheme:dark" in page and "width=device-width" in page


@pytest_twisted.ensureDeferred
async def test_a_recipient_who_unsubscribes_is_counted_once(rig: ApiRig) -> None:
    contact, broadcast = await add(rig), UUID(int=7)
    row = (rig.account_id, broadcast, UUID(contact), UUID(int=9))
    await rig.pool.run("INSERT INTO broadcast_recipients VALUES (%s, %s, %s, %s, 0)", row)
    path = await link(rig, broadcast_id=broadcast)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recipients, "UNSUBSCRIBED", "SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(20)")
        assert (await post(rig, path, CLICK)).status == 503
    for _ in range(2):
        assert (await post(rig, path, CLICK)).status == 204
    assert await rig.pool.rows("SELECT marks FROM broadcast_recipients") == [(8,)]
    assert await rig.pool.rows("SELECT type, count FROM broadcast_counts") == [("email.unsubscribed", 1)]


@pytest.mark.parametrize("path", ["/unsubscribe", "/confirm", "/shared"])
@pytest_twisted.ensureDeferred
async def test_browsers_get_a_page_if_the_database_is_away(rig: ApiRig, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    async def away(*_: Any) -> Any:
        raise Unavailable("No database connection became free within 5 s.")

    monkeypatch.setattr(parameters, "first", away)
    for method in ("GET",) if path == "/shared" else ("GET", "POST"):
        page = await call(rig, method, path + "?token=a", accept="text/html,*/*;q=0.8")
        assert (page.status, page.headers["content-type"], page.headers["retry-after"]) == (503, "text/html; charset=utf-8", "1")
        assert b"<h1" in page.body and (b"Your choice may not have been saved." in page.body) is (method == "POST")
    program = await call(rig, "GET" if path == "/shared" else "POST", path + "?token=a")
    assert program.status == 503 and program.headers["content-type"].startswith("application/json")
