"""The pages of segments, topics, properties, and of the preference page's look."""

from __future__ import annotations

import pytest
import pytest_twisted

from mailsvc.dashboard.audience import properties
from mailsvc.store.audience.values import NewContact
from mailsvc.store.broadcasts.settings import StoredSettings
from mailsvc.store.paging import ALL
from mailsvc.store.postgres.pool import Pool
from tests.dashboard.audience.test_contacts import API, AUDIENCE, added, started

SEGMENTS, TOPICS, PROPERTIES, LOOK = (f"{AUDIENCE}/{name}" for name in ("segments", "topics", "properties", "page"))
OPT_IN = {"double_opt_in": "on", "from": "Acme <news@acme.example>", "subject": "Please confirm", "text": "Here: {{{CONFIRM_URL}}}"}


@pytest_twisted.ensureDeferred
async def test_a_segment_is_created_shown_renamed_and_deleted(pool: Pool) -> None:
    rig, account_id, ann = await started(pool)
    assert "This field must have 1 to 100 characters." in (await ann.post(SEGMENTS, {"name": "x" * 101})).text
    assert "Enter a value." in (await ann.post(SEGMENTS, {"name": " "})).text
    at = (await ann.post(SEGMENTS, {"name": "Friends & more"})).location.partition("?")[0]
    [segment], _ = await rig.assembly.audience.segments.list(account_id, ALL)
    for number in range(51):
        await added(rig, account_id, f"n{number:02}@example.net", segments=[segment.id])
    await added(rig, account_id, "other@example.net")
    page = await ann.get(at)
    assert "Friends &amp; more" in page.text and "51 contacts" in page.text and ">n50@" in page.text and "other@" not in page.text
    older = await ann.get(page.found(r'href="([^"]+)" rel="next"'))
    assert ">n00@" in older.text and ">n01@" not in older.text
    assert ">51</td>" in (await ann.get(SEGMENTS)).text
    assert (await ann.post(f"{at}/change", {"name": "Family"})).query["done"] == "changed"
    assert "Family" in (await ann.get(SEGMENTS)).text
    rig.assembly.audience.segments.most = 1
    assert "There are 1 segments, which is the maximum." in (await ann.post(SEGMENTS, {"name": "One more"})).text
    assert (await ann.post(f"{at}/delete")).location == f"{SEGMENTS}?done=deleted&undo={segment.id}"
    assert (await ann.get(at)).status == (await ann.post(f"{at}/delete")).status == 404
    assert [action for action, _ in await rig.audit(account_id)][-3:] == ["segment created", "segment changed", "segment deleted"]


@pytest_twisted.ensureDeferred
async def test_double_opt_in_is_turned_on_and_off(pool: Pool) -> None:
    rig, account_id, ann = await started(pool)
    audience = rig.assembly.audience
    segment = await audience.segments.add(account_id, "Friends")
    at = f"{SEGMENTS}/{segment.id}"
    for change, sentence in (
        ({"from": "nobody"}, 'aria-describedby="d-from"'),
        ({"from": ""}, "Enter a value."),
        ({"text": "no link", "html": ""}, "must contain {{{CONFIRM_URL}}}"),
        ({"title": "x" * 1001}, "This field can have at most 1000 characters."),
    ):
        wrong = await ann.post(f"{at}/change", {"name": "Friends", **OPT_IN, **change})
        assert wrong.status == 422 and sentence in wrong.text and "Please confirm" in wrong.text, sentence
    assert (await ann.post(f"{at}/change", {"name": "Friends", **OPT_IN})).status == 303
    changed = await audience.segments.get(account_id, segment.id)
    assert changed is not None and changed.confirmation is not None and changed.confirmation.text == OPT_IN["text"]
    assert 'value="Acme &lt;news@acme.example&gt;"' in (await ann.get(at)).text
    contact = await added(rig, account_id, "ada@example.net")
    joined = await ann.post(f"{AUDIENCE}/contacts/{contact}/join", {"segment": str(segment.id)})
    assert joined.query["done"] == "asked" and "Asked to confirm segment “Friends”" in (await ann.get(joined.location)).text
    await ann.post(f"{at}/change", {"name": "Friends", **OPT_IN, "double_opt_in": ""})
    changed = await audience.segments.get(account_id, segment.id)
    assert changed is not None and changed.confirmation is None


@pytest_twisted.ensureDeferred
async def test_a_topic_has_all_settings_of_the_api(pool: Pool) -> None:
    rig, account_id, ann = await started(pool)
    audience, form = rig.assembly.audience, {"name": "News", "description": "Monthly", "visibility": "public"}
    assert "This field must have 1 to 50 characters." in (await ann.post(TOPICS, form | {"name": "x" * 51})).text
    wrong = await ann.post(TOPICS, form | {"default_subscription": "sometimes"})
    assert wrong.status == 422 and 'value="Monthly"' in wrong.text
    at = (await ann.post(TOPICS, form | {"default_subscription": "opt_in"})).location.partition("?")[0]
    other = (await ann.post(TOPICS, form | {"default_subscription": "opt_out"})).location.partition("?")[0]
    page = await ann.get(at)
    assert "Contacts who made no choice are subscribed." in page.text and 'value="public" selected' in page.text
    refused = await ann.post(f"{at}/change", form | OPT_IN)
    assert refused.status == 422 and "without having confirmed" in refused.text
    assert (await ann.post(f"{other}/change", {"name": "Hints", "visibility": "private", **OPT_IN})).status == 303
    found = {each.name: each for each in (await audience.topics.list(account_id, ALL))[0]}
    assert found["News"].subscribed and found["News"].public and found["News"].confirmation is None
    hints = found["Hints"]
    assert (hints.subscribed, hints.public, hints.description) == (False, False, None) and hints.confirmation is not None
    assert (await ann.post(f"{at}/delete")).location.startswith(f"{TOPICS}?done=deleted&undo=")
    assert "News" not in (await ann.get(TOPICS)).text and (await ann.get(at)).status == 404
    kinds = [kind for (kind,) in await pool.rows("SELECT type FROM events WHERE type LIKE 'topic.%%' ORDER BY event_id", ())]
    assert kinds == ["topic.created", "topic.created", "topic.updated", "topic.deleted"]


@pytest_twisted.ensureDeferred
async def test_a_property_has_a_key_a_type_and_a_fallback(pool: Pool) -> None:
    rig, account_id, ann = await started(pool)
    audience, form = rig.assembly.audience, {"key": "seats", "type": "number", "fallback": "3"}
    for change, sentence in (
        ({"key": "a-b"}, "This field must have 1 to 50 letters, digits or underscores."),
        ({"key": "Email"}, "which every contact has already."),
        ({"fallback": "many"}, "This value must be a number."),
        ({"type": "date"}, 'aria-describedby="d-type"'),
    ):
        wrong = await ann.post(PROPERTIES, form | change)
        assert wrong.status == 422 and sentence in wrong.text, sentence
    assert (await ann.post(PROPERTIES, form)).status == 303
    assert "There is a property with this key." in (await ann.post(PROPERTIES, form)).text
    [seats], _ = await audience.properties.list(account_id, ALL)
    assert (seats.key, seats.type, seats.fallback) == ("seats", "number", 3)
    await audience.contacts.create(account_id, NewContact("ada@example.net", properties={"seats": 7}), API)
    wrong = (await ann.post(f"{PROPERTIES}/{seats.id}/change", {"fallback": "x<y"})).text
    assert "This value must be a number." in wrong and 'value="x&lt;y"' in wrong  # nobody has to type it again
    assert (await ann.post(f"{PROPERTIES}/{seats.id}/change", {"fallback": ""})).status == 303
    [seats], _ = await audience.properties.list(account_id, ALL)
    assert seats.fallback is None
    assert (await ann.post(f"{PROPERTIES}/{seats.id}/delete")).status == 303
    assert (await audience.properties.list(account_id, ALL))[0] == []
    assert (await ann.post(f"{PROPERTIES}/{seats.id}/delete")).status == 404


@pytest_twisted.ensureDeferred
async def test_a_fallback_is_changed_on_the_second_page_of_properties(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, account_id, ann = await started(pool)
    monkeypatch.setattr(properties, "PAGE", 1)
    for key in ("seats", "age"):
        await rig.assembly.audience.properties.add(account_id, key, "number", 3)
    second = (await ann.get(PROPERTIES)).found(r'href="([^"]+)" rel="next"')
    save = (await ann.get(second)).found(r'action="([^"]+/change[^"]*)"')
    wrong = (await ann.post(save, {"fallback": "many"})).text
    assert "Fallback of seats" in wrong and "This value must be a number." in wrong and 'value="many"' in wrong
    saved = await ann.get((await ann.post(save, {"fallback": "5"})).location)
    assert "The fallback was saved." in saved.text and "Fallback of seats" in saved.text and 'value="5"' in saved.text


DEFAULTS = {"background_color": "#f4f4f4", "text_color": "#222222", "accent_color": "#0b57d0"}


@pytest_twisted.ensureDeferred
async def test_the_look_of_the_preference_page_is_saved_and_tried_out(pool: Pool) -> None:
    rig, account_id, ann = await started(pool)
    settings = StoredSettings(pool, rig.clock)
    await rig.assembly.audience.topics.add(account_id, "Public <news>", True, public=True)
    await rig.assembly.audience.topics.add(account_id, "Secret", True)
    form = DEFAULTS | {"title": "Your <mail>", "message": "One\r\ntwo", "logo": "https://acme.example/logo.png", "accent_color": "#AA0000"}
    tried = await ann.post(f"{LOOK}/preview", form)
    assert "Your &lt;mail&gt;" in tried.text and "--accent:#aa0000" in tried.text and "https://acme.example/logo.png" in tried.text
    assert "Public &lt;news&gt;" in tried.text and "Secret" not in tried.text
    policy = tried.headers["content-security-policy"]
    assert policy.startswith("sandbox;") and "script" not in policy and "frame-ancestors 'self'" in policy
    assert (await settings.get(account_id)).title is None
    assert (await ann.post(LOOK, form)).query["done"] == "changed"
    found = await settings.get(account_id)
    assert (found.title, found.message, found.logo) == ("Your <mail>", "One\ntwo", "https://acme.example/logo.png")
    assert found.colors == {"accent": "#aa0000"}  # the others have the default
    assert "--accent:#aa0000" in (await ann.get(f"{LOOK}/preview")).text and 'value="#aa0000"' in (await ann.get(LOOK)).text
    assert (await ann.post(LOOK, DEFAULTS)).status == 303
    assert (await settings.get(account_id)).colors == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accent_color", "red"), ("accent_color", "#fff"), ("background_color", "#000000;}"), ("logo", "http://acme.example/x.png"),
        ("logo", "javascript:alert(1)"), ("title", "x" * 101), ("message", "x" * 1001),
    ],
)  # fmt: skip
@pytest_twisted.ensureDeferred
async def test_a_wrong_look_is_refused_and_not_tried_out(pool: Pool, name: str, value: str) -> None:
    _, _, ann = await started(pool)
    wrong = await ann.post(LOOK, DEFAULTS | {name: value})
    assert wrong.status == 422 and f'id="d-{name}"' in wrong.text
    assert await pool.rows("SELECT FROM broadcast_settings") == []
    tried = await ann.post(f"{LOOK}/preview", DEFAULTS | {name: value})
    assert tried.status == 200 and value not in tried.text
