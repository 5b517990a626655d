"""Tracked links and pixels on the wire: where they lead, what is recorded, and which hosts serve them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
import pytest

from mailsvc.http.resources.tracking import assembly
from mailsvc.http.resources.tracking.links import PIXEL, Tracking
from mailsvc.mail.tracking.token import Key, Tracked, day_of, make
from mailsvc.store.tracking.hosts import Served
from mailsvc.tracking.hits import HitRecorder
from mailsvc.tracking.hosts import TrackingHosts
from tests.http.rig import ACCOUNT, EMAIL, NOW, Connection, Response, Rig

OTHER = UUID(int=0xB2)
KEY = Key(1, bytes(range(32)))
HOST, OWN = "links.example.com", "track.mailsvc.example"
URL = "https://example.com/a?b=1&c=%20"


class Store:
    """The hosts and the suspended accounts; the database is not asked by requests."""

    def __init__(self) -> None:
        self.served = Served({HOST: frozenset({ACCOUNT})})

    async def read(self) -> Served:
        return self.served


@attrs.define
class Links:
    rig: Rig
    store: Any
    tracking: Tracking

    @classmethod
    def make(cls, **settings: Any) -> Links:
        rig, store = Rig(), Store()
        recorder = HitRecorder(None, None, rig.clock, lambda: None, 100)  # type: ignore[arg-type]
        hosts = TrackingHosts(store, {OWN})  # type: ignore[arg-type]
        tracking = Tracking(lambda: {1: KEY.secret}, hosts, recorder, 365, rig.clock)
        rig.site = attrs.evolve(rig.api, pages=assembly.pages(tracking), **settings).site()
        links = cls(rig, store, tracking)
        links.refresh()
        return links

    def refresh(self) -> None:
        run(self.tracking.hosts.refresh)

    def request(self, path: str, *, method: str = "GET", host: str = HOST, peer: str = "192.0.2.1", **headers: str) -> Response:
        [response] = self.begin(path, method=method, host=host, peer=peer, **headers).responses(head=method == "HEAD")
        return response

    def begin(self, path: str, *, method: str = "GET", host: str = HOST, peer: str = "192.0.2.1", **headers: str) -> Connection:
        """A connection on which the request was sent."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
        connection = self.rig.connect(peer)
        connection.send("\r\n".join([*lines, "", ""]).encode("latin-1"))
        return connection

    @property
    def seen(self) -> list[tuple[str | None, str, str, str]]:
        return [(each.tracked.url, each.method, each.address, each.agent) for each in self.tracking.recorder._pending]


def run(work: Callable[[], Awaitable[None]]) -> None:
    with pytest.raises(StopIteration):
        work().send(None)  # type: ignore[attr-defined]


def token(url: str | None = URL, account_id: UUID = ACCOUNT, at: datetime = NOW, key: Key = KEY) -> str:
    return make(Tracked(account_id, EMAIL, day_of(at.timestamp()), 0 if url is None else 1, url), key)


def assert_private(headers: Mapping[str, str]) -> None:
    assert headers["cache-control"] == "no-store, private"
    assert "set-cookie" not in headers


@pytest.mark.parametrize("host", [HOST, OWN, "LINKS.example.COM:8443", "links.example.com."])
def test_a_link_leads_to_its_target_and_is_recorded(host: str) -> None:
    links = Links.make()
    response = links.request(f"/c/{token()}", host=host, user_agent="Browser")
    assert (response.status, response.headers["location"], response.body) == (302, URL, b"")
    assert_private(response.headers)
    assert links.seen == [(URL, "GET", "192.0.2.1", "Browser")]
    [seen] = links.tracking.recorder._pending
    assert (seen.tracked.account_id, seen.tracked.email_id, seen.at) == (ACCOUNT, EMAIL, NOW)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize(("target", "host", "status"), [(HOST, "other.example.com", 302), ("other.example.com", HOST, 404)])
def test_the_host_of_an_absolute_target_counts(target: str, host: str, status: int, version: str) -> None:
    connection = Links.make().rig.connect("192.0.2.1")
    connection.send(f"GET http://{target}/c/{token()} HTTP/{version}\r\nHost: {host}\r\n\r\n".encode())
    assert [response.status for response in connection.responses()] == [status]


def test_the_pixel() -> None:
    links = Links.make()
    response = links.request(f"/o/{token(None)}", sec_purpose="prefetch")
    assert (response.status, response.headers["content-type"], response.body) == (200, "image/gif", PIXEL)
    assert (PIXEL[:6], PIXEL[6:10]) == (b"GIF89a", b"\x01\x00\x01\x00")
    assert_private(response.headers)
    assert links.seen == [(None, "GET", "192.0.2.1", "")]
    assert links.tracking.recorder._pending[0].purpose == "prefetch"


@pytest.mark.parametrize(
    ("bad", "host"),
    [
        ("AAAA", HOST),
        ("", HOST),
        ("%ff", HOST),
        (token(key=Key(1, bytes(32))), HOST),
        (token()[:-1], HOST),
        (token(at=NOW - timedelta(days=366)), HOST),
        (token(account_id=OTHER), HOST),  # another customer's link on this customer's host
        (f"{token()}/more", HOST),
    ],
)
def test_a_bad_token_leads_nowhere(bad: str, host: str) -> None:
    links = Links.make()
    response = links.request(f"/c/{bad}", host=host)
    assert response.status == 404
    assert "location" not in response.headers
    pixel = links.request(f"/o/{bad}", host=host)
    assert pixel.status == 404 if bad == "%ff" else (pixel.status, pixel.body) == (200, PIXEL)
    assert not links.seen


def test_expiry_is_after_the_last_day() -> None:
    links = Links.make()
    assert links.request(f"/c/{token(at=NOW - timedelta(days=365))}").status == 302


@pytest.mark.parametrize("host", ["other.example.com", "localhost", "", "192.0.2.1"])
def test_other_hosts_serve_nothing(host: str) -> None:
    links = Links.make()
    assert links.request(f"/c/{token()}", host=host).status == links.request(f"/o/{token(None)}", host=host).status == 404
    assert not links.seen


def test_tokens_of_links_and_pixels_are_not_exchanged() -> None:
    links = Links.make()
    assert links.request(f"/c/{token(None)}").status == 404
    assert links.request(f"/o/{token()}").body == PIXEL
    assert not links.seen


def test_links_of_a_suspended_account_stop() -> None:
    links = Links.make()
    links.store.served = attrs.evolve(links.store.served, suspended=frozenset({ACCOUNT}))
    assert links.request(f"/c/{token()}").status == 302
    links.refresh()
    assert [links.request(f"/c/{token()}", host=host).status for host in (HOST, OWN)] == [404, 404]
    assert links.request(f"/o/{token(None)}").body == PIXEL
    assert len(links.seen) == 1


def test_head_is_answered_without_a_body_and_recorded() -> None:
    links = Links.make()
    click, pixel = links.request(f"/c/{token()}", method="HEAD"), links.request(f"/o/{token(None)}", method="HEAD")
    assert (click.status, click.headers["location"]) == (302, URL)
    assert (pixel.status, pixel.headers["content-length"]) == (200, str(len(PIXEL)))
    assert [method for _, method, _, _ in links.seen] == ["HEAD", "HEAD"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(method: str) -> None:
    links = Links.make()
    response = links.request(f"/c/{token()}", method=method, content_length="0")
    assert (response.status, response.headers["allow"]) == (405, "GET, HEAD")
    assert not links.seen


def test_what_a_client_sends_cannot_break_a_batch() -> None:
    links = Links.make()
    links.request(f"/c/{token()}", user_agent="ab\xff" + "c" * 5000)
    [(_, _, _, agent)] = links.seen
    assert (agent[:3], len(agent)) == ("ab\ufffd", 300)


def test_tokens_are_not_logged() -> None:
    from mailsvc.http.request import _public

    assert _public(f"/c/{token()}".encode()) == b"/c/*"
    assert _public(b"/contacts/7") == b"/contacts/7"


# Certificates

ASK = "/tracking/ask?domain="


@pytest.mark.parametrize(("name", "status"), [(HOST, 200), (HOST.upper(), 200), (OWN, 200), ("example.com", 404), ("", 404)])
def test_certificates_are_for_verified_hosts(name: str, status: int) -> None:
    assert Links.make().request(ASK + name, host="localhost:8025", peer="127.0.0.1").status == status


def test_only_a_proxy_can_ask() -> None:
    from ipaddress import ip_network

    links = Links.make(trusted=[ip_network("10.0.0.0/8")])
    assert links.request(ASK + HOST, peer="10.1.2.3").status == links.request(ASK + HOST, peer="::1").status == 200
    assert links.request(ASK + HOST, peer="::ffff:10.1.2.3").status == links.request(ASK + HOST, peer="::ffff:127.0.0.1").status == 200
    assert links.request(ASK + HOST, peer="192.0.2.1").status == 404
    # a client of the proxy
    assert links.request(ASK + HOST, peer="10.1.2.3", x_forwarded_for="192.0.2.1").status == 404
    assert links.request("/tracking/other", peer="127.0.0.1").status == links.request("/tracking", peer="127.0.0.1").status == 404


def test_questions_about_unknown_hosts_are_limited() -> None:
    links = Links.make()
    answers = [links.request(ASK + f"h{number}.example", peer="127.0.0.1").status for number in range(60)]
    assert (answers.count(404), answers.count(429)) == (50, 10)
    assert links.request(ASK + HOST, peer="127.0.0.1").status == 200  # strangers' names do not keep a known host from its certificate
    links.rig.clock.advance(1)
    assert links.request(ASK + "h.example", peer="127.0.0.1").status == 404


def test_the_clock_of_the_tests_has_the_time() -> None:
    assert datetime.fromtimestamp(Links.make().rig.clock.seconds(), UTC) == NOW
