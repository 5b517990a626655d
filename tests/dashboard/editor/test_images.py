"""Images of broadcasts: uploading and deleting them, and their place in an account's data. The decoder: tests/broadcasts/test_images."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
import pytest_twisted
from twisted.web.http_headers import Headers

from mailsvc.accounts.ratelimit import RateLimit
from mailsvc.broadcasts.images import LARGEST
from mailsvc.http.gate import FORM, Gate, Head, Limits
from mailsvc.http.resources.tracking.images import path_of
from mailsvc.runtime.budget import Budgets
from mailsvc.store.account_data.tables import ARCHIVED
from mailsvc.store.broadcasts.images import Images, Picture
from mailsvc.store.postgres.connection import Connection
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.postgres.prepared import Prepared
from tests.broadcasts.pictures import picture
from tests.dashboard.fixtures import Browser, DashboardRig, session

IMAGES = "/dashboard/images"
SCRIPT = {"Accept": "application/json"}


async def started(pool: Pool) -> tuple[DashboardRig, UUID, Browser]:
    rig = DashboardRig(pool)
    account_id = await rig.account()
    await rig.person("ann@example.com", account_id)
    ann = await rig.inside("ann@example.com")
    await ann.get(IMAGES)
    return rig, account_id, ann


@pytest_twisted.ensureDeferred
async def test_an_image_gets_one_address_in_each_account(pool: Pool) -> None:
    rig, account_id, ann = await started(pool)
    urls = [json.loads((await ann.upload(IMAGES, picture(), headers=SCRIPT)).text)["url"] for _ in range(2)]
    assert urls[0] == urls[1] and urls[0].startswith(f"{rig.base_url}/images/") and urls[0].endswith(".png")
    assert (await ann.upload(IMAGES, picture())).location == IMAGES
    shown = await ann.get(IMAGES)
    assert shown.text.count(f'src="{urls[0]}"') == 1 and f"data: {rig.base_url};" in shown.headers["content-security-policy"]
    await rig.person("eve@example.com")
    eve = await rig.inside("eve@example.com")
    await eve.get(IMAGES)
    assert json.loads((await eve.upload(IMAGES, picture(), headers=SCRIPT)).text)["url"] != urls[0]
    [(image_id,)] = await pool.rows("SELECT id FROM images WHERE account_id = %s", (account_id,))
    assert urlsplit(urls[0]).path == path_of(account_id, image_id, "png")

    assert (await eve.post(f"{IMAGES}/{image_id}/delete")).status == 404
    assert (await ann.post(f"{IMAGES}/{image_id}/delete")).location == IMAGES
    assert urls[0] not in (await ann.get(IMAGES)).text and len(await pool.rows("SELECT FROM images")) == 1
    actions = [action for action, _ in await rig.audit(account_id) if "image" in action]
    assert actions == ["image uploaded", "image deleted"]  # uploading it again changed nothing


@pytest_twisted.ensureDeferred
async def test_wrong_files_are_refused(pool: Pool) -> None:
    _, _, ann = await started(pool)
    for data, sentence in ((b"<svg/>", "isn’t a PNG"), (b"", "Choose a file."), (bytes(LARGEST + 1), "larger than 10 MB")):
        refused = await ann.upload(IMAGES, data, headers=SCRIPT)
        assert refused.status == 422 and sentence in json.loads(refused.text)["errors"]["file"]
    shown = await ann.upload(IMAGES, b"<svg/>")
    assert shown.status == 422 and 'role="alert">This isn’t a PNG' in shown.text
    assert await pool.rows("SELECT FROM images") == []


@pytest_twisted.ensureDeferred
async def test_the_images_of_an_account_have_a_limit(pool: Pool) -> None:
    rig, account_id, _ = await started(pool)
    images = Images(pool, rig.clock)
    one, other = (Picture(kind="png", width=1, height=1, content=each * 100) for each in (b"1", b"2"))
    first = await images.add(account_id, one, 150)
    assert first is not None and await images.add(account_id, other, 150) is None
    assert await images.add(account_id, one, 150) == first and await images.used(account_id) == 100
    assert await images.add(account_id, other, 200) is not None
    assert await images.content(account_id, first) == ("png", one.content)
    assert "images" in ARCHIVED  # copied and deleted with the account: tests/store/account_data


@pytest_twisted.ensureDeferred
async def test_the_driver_never_converts_the_content_of_an_image(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a quarter of a second for 10 MB, in one turn of the reactor."""
    rig, account_id, _ = await started(pool)
    images, by_driver, execute = Images(pool, rig.clock), list[object](), Connection.execute

    async def executed(self: Connection, sql: Any, params: Any = (), rest: Any = None) -> Any:
        by_driver.extend(() if isinstance(sql, Prepared) else params)
        return await execute(self, sql, params, rest)

    monkeypatch.setattr(Connection, "execute", executed)
    picture = Picture(kind="png", width=1, height=1, content=bytes(100))
    added = await images.add(account_id, picture, 100)
    assert added is not None and picture.content not in by_driver and account_id in by_driver
    by_driver.clear()
    assert await images.content(account_id, added) == ("png", picture.content) and by_driver == []


@pytest_twisted.ensureDeferred
async def test_only_members_can_send_large_files(pool: Pool) -> None:
    rig, _, ann = await started(pool)
    budgets, uploader = Budgets.of(1 << 40, 1 << 40, rig.clock), rig.assembly.uploader.account
    gate = Gate(None, RateLimit(rig.clock, 10), Limits(), budgets, lambda text: False, uploader)  # type: ignore[arg-type]
    for cookie, most in ((session(ann), LARGEST + FORM), ("0" * 43, Limits().form)):
        headers = Headers({"host": ["x"], "cookie": [f"mailsvc={cookie}"]})
        head = Head(b"POST", IMAGES.encode(), b"HTTP/1.1", headers, lambda: "192.0.2.1", None, True, True)
        assert (await gate.admit(head)).body_max == most
