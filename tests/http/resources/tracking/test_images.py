"""Images of broadcasts on the wire: who gets them, with which headers, and for how long they stay in memory."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import attrs
import pytest
from twisted.internet.defer import Deferred

from mailsvc.http.resources.tracking import assembly
from mailsvc.http.resources.tracking import images as served
from mailsvc.http.resources.tracking.images import READ, SECONDS, path_of
from mailsvc.store.postgres.errors import Unavailable
from mailsvc.store.tracking.hosts import Served
from tests.http.resources.tracking.test_links import HOST, OTHER, OWN, Links
from tests.http.rig import ACCOUNT

IMAGE = UUID(int=0x1234)
CONTENT = b"\x89PNG" + bytes(100_000)
ADDRESS = path_of(ACCOUNT, IMAGE, "png")


class Stored:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.content_of: dict[tuple[UUID, UUID], tuple[str, bytes]] = {(ACCOUNT, IMAGE): ("png", CONTENT)}
        self.asked, self.broken = 0, False
        self.until: Deferred[None] | None = None  # when the database answers

    async def content(self, account_id: UUID, image_id: UUID) -> tuple[str, bytes] | None:
        self.asked += 1
        if self.until is not None:
            await self.until
        if self.broken:
            raise Unavailable("down")
        return self.content_of.get((account_id, image_id))


@pytest.fixture
def links() -> Links:
    links = Links.make()
    links.tracking = attrs.evolve(links.tracking, images=Stored())  # type: ignore[arg-type]
    serve(links)
    return links


def serve(links: Links) -> None:
    links.rig.site = attrs.evolve(links.rig.api, pages=assembly.pages(links.tracking)).site()


def stored(links: Links) -> Any:
    return links.tracking.images


def test_an_image_is_served_for_a_year_and_as_nothing_else(links: Links) -> None:
    for host in (OWN, HOST):
        answer = links.request(ADDRESS, host=host, Cookie="mailsvc=secret")
        assert (answer.status, answer.body) == (200, CONTENT)
        headers = answer.headers
        assert headers["content-type"] == "image/png" and headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "public, max-age=31536000, immutable" and "set-cookie" not in headers
        assert headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    head = links.request(ADDRESS, method="HEAD", host=OWN)
    assert head.status == 200 and head.headers["content-length"] == str(len(CONTENT))


@pytest.mark.parametrize(
    "path",
    [
        path_of(OTHER, IMAGE, "png"), path_of(ACCOUNT, UUID(int=1), "png"), path_of(ACCOUNT, IMAGE, "gif"), "/images/", "/images",
        "/images/x", ADDRESS + "/x",
        ADDRESS.replace(".png", ".svg"), ADDRESS.replace(".png", ""), "/images/" + "%c3%a9" * 43, "/images/..%2fdashboard",
    ],
)  # fmt: skip
def test_other_paths_lead_nowhere(links: Links, path: str) -> None:
    answer = links.request(path, host=OWN)
    assert answer.status == 404 and "immutable" not in answer.headers.get("cache-control", "")


def test_hosts_serve_the_images_of_their_account_only(links: Links) -> None:
    links.store.served = Served({HOST: frozenset({OTHER})})
    links.refresh()
    assert links.request(ADDRESS, host=HOST).status == 404 and links.request(ADDRESS, host="evil.example").status == 404
    assert links.request(ADDRESS, host=OWN).status == 200
    links.store.served = Served(suspended=frozenset({ACCOUNT}))
    links.refresh()
    assert links.request(ADDRESS, host=OWN).status == 404


def test_an_image_in_memory_is_still_that_of_its_account(links: Links) -> None:
    """Otherwise, one account could show its images at the host of another."""
    links.store.served = Served({HOST: frozenset({OTHER})})
    links.refresh()
    assert links.request(ADDRESS, host=OWN).status == 200
    assert links.request(path_of(OTHER, IMAGE, "png"), host=HOST).status == 404


def test_only_reading_is_possible(links: Links) -> None:
    answer = links.request(ADDRESS, method="DELETE", host=OWN)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


def test_images_stay_in_memory_for_a_while(links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        assert links.request(ADDRESS, host=OWN).status == 200
    assert stored(links).asked == 1
    stored(links).content_of.clear()
    links.rig.clock.advance(SECONDS - 1)
    assert links.request(ADDRESS, host=OWN).status == 200
    links.rig.clock.advance(2)
    assert links.request(ADDRESS, host=OWN).status == 404

    monkeypatch.setattr(served, "CACHED", 250_000)
    cache = served._Cache(links.rig.clock)
    for number in range(4):
        cache.put((ACCOUNT, UUID(int=number)), "png", bytes(100_000))
    assert cache.size == 200_000 and cache.get((ACCOUNT, UUID(int=1))) is None and cache.get((ACCOUNT, UUID(int=3))) is not None


def test_requests_for_the_same_image_share_a_read(links: Links) -> None:
    stored(links).until = answered = Deferred[None]()
    connections = [links.begin(ADDRESS, host=OWN) for _ in range(240)]
    answered.callback(None)
    assert [each.status for connection in connections for each in connection.responses()] == [200] * 240
    assert stored(links).asked == 1


def test_few_images_are_read_at_a_time(links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "WAITING", 1)
    stored(links).until = answered = Deferred[None]()
    connections = [links.begin(path_of(ACCOUNT, UUID(int=number), "png"), host=OWN) for number in range(READ + 2)]
    [refused] = connections[-1].responses()
    assert refused.status == 503 and stored(links).asked == READ
    answered.callback(None)
    assert [each.status for connection in connections[:-1] for each in connection.responses()] == [404] * (READ + 1)


def test_without_the_database_clients_are_told_to_try_again(links: Links) -> None:
    stored(links).broken = True
    answer = links.request(ADDRESS, host=OWN)
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")
