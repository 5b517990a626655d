"""From a domain to its hosts, as a table and with a cache."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.delivery.connection.route import Host, NoMail, Route, Routes, Unknown, mx_route, operator_route
from mailsvc.net.dns import Mx
from tests.delivery.fakes import Names


def resolve(names: Names, domain: str, routes: dict[str, str] | None = None, **settings: Any) -> Any:
    got: list[Any] = []
    Deferred.fromCoroutine(Routes(Clock(), names, routes or {}, **settings).resolve(domain)).addBoth(got.append)
    return got[0]


def names() -> Names:
    found = Names()
    found.mxs = {
        "two.example": [(20, "b.mx.example"), (10, "c.mx.example"), (10, "a.mx.example")],
        "null.example": [(0, "")],
        "mixed.example": [(0, ""), (10, "a.mx.example")],
        "literal.example": [(10, "192.0.2.1"), (20, "localhost"), (30, "a.mx.example")],
        "unusable.example": [(10, "192.0.2.1"), (20, "mx")],
        "strange.example": [(10, "google/mx.evil.example"), (20, "pool@a.mx.example"), (30, "*.example"), (40, "mx..x")],
        "partly.example": [(10, "google/mx.evil.example"), (20, "\\@.mx.example"), (30, "a_1.MX-2.example")],
        "doubled.example": [(20, "a.mx.example"), (10, "a.mx.example")],
        "servfail.example": "nameserver 192.0.2.53 answered SERVFAIL",
        "loop.example": [(10, "a.mx.example"), (20, "us.example"), (30, "b.mx.example")],
        "ours.example": [(10, "us.example"), (20, "b.mx.example")],
    }
    strange = ("google/implicit.example", "pool@implicit.example", "*.example")
    found.hosts = {name: ["192.0.2.9"] for name in ("implicit.example", *strange)}
    found.hosts |= {"empty.example": [], "lost.example": "timeout"}
    return found


def test_mx_hosts_by_preference_and_one_name_for_the_set() -> None:
    route = resolve(names(), "Two.Example", port=2525)
    assert route == Route(
        "a.mx.example b.mx.example c.mx.example",
        (Host("a.mx.example", 2525, 10), Host("c.mx.example", 2525, 10), Host("b.mx.example", 2525, 20)),
    )


def test_routes_with_many_hosts_take_more_room() -> None:
    found = Names()
    found.mxs = {f"d{n}.example": [(host, f"h{host}.example") for host in range(50 if n < 20 else 2)] for n in range(100)}
    routes = Routes(Clock(), found, {}, size=50)
    kept = []
    for domain in found.mxs:
        Deferred.fromCoroutine(routes.resolve(domain))
        kept.append(sum(routes.cached(each) is not None for each in found.mxs))
    assert (kept[7], kept[19], kept[-1]) == (8, 8, 50), "400 hosts, or 50 domains"


@pytest.mark.parametrize(
    ("domain", "reply"),
    [
        ("null.example", "556 5.1.10"),
        ("unusable.example", "550 5.4.4"),
        ("strange.example", "550 5.4.4"),
        ("nowhere.example", "550 5.1.2"),
        ("empty.example", "550 5.1.2"),
        ("ours.example", "554 5.4.6"),
        ("google/implicit.example", "550 5.1.2"),
        ("pool@implicit.example", "550 5.1.2"),
        ("*.example", "550 5.1.2"),
        ("[192.0.2.1]", "550 5.1.2"),
        ("[IPv6:2001:db8::1]", "550 5.1.2"),
        ("192.0.2.1", "550 5.1.2"),
        ("localhost", "550 5.1.2"),
        ("", "550 5.1.2"),
    ],
)
def test_domains_that_accept_no_mail(domain: str, reply: str) -> None:
    found = resolve(names(), domain, own=("us.example",))
    assert isinstance(found, NoMail)
    assert found.reply.startswith(reply)


@pytest.mark.parametrize(
    ("domain", "hosts"),
    [
        ("mixed.example", ["a.mx.example"]),
        ("literal.example", ["a.mx.example"]),
        ("partly.example", ["a_1.MX-2.example"]),
        ("doubled.example", ["a.mx.example"]),
        ("loop.example", ["a.mx.example"]),
        ("implicit.example", ["implicit.example"]),
    ],
)
def test_which_hosts(domain: str, hosts: list[str]) -> None:
    found = resolve(names(), domain, own=("us.example",))
    assert [host.name for host in found.hosts] == hosts
    assert not found.operator


@pytest.mark.parametrize("domain", ["servfail.example", "lost.example"])
def test_dns_failures_are_temporary(domain: str) -> None:
    found = resolve(names(), domain)
    assert isinstance(found, Unknown)
    assert found.reason.endswith(".")


def test_operator_routes_come_before_dns() -> None:
    routes = {"two.example": "smtp://127.0.0.1:2526", "*": "smtp://smarthost.example"}
    nothing = Names()
    assert resolve(nothing, "TWO.example", routes) == Route("127.0.0.1:2526", (Host("127.0.0.1", 2526),), operator=True)
    assert resolve(nothing, "other.example", routes) == Route("smarthost.example:25", (Host("smarthost.example", 25),), operator=True)
    assert resolve(nothing, "localhost", routes).operator
    assert not nothing.lookups
    assert operator_route("smtp://[::1]:2526").destination == "[::1]:2526"


@pytest.mark.parametrize(
    "target",
    ["127.0.0.1:25", "http://x", "smtp://", "smtp://user:secret@host", "smtp://host/path", "smtp://host:port", "smtp://*", "smtp://a b"],
)
def test_bad_route_settings_are_refused(target: str) -> None:
    with pytest.raises(ValueError):
        operator_route(target)


def test_routes_are_cached_and_read_without_waiting() -> None:
    clock, dns = Clock(), names()
    routes = Routes(clock, dns, {})
    assert routes.cached("two.example") is None
    Deferred.fromCoroutine(routes.resolve("two.example"))
    assert isinstance(routes.cached("Two.example"), Route)
    clock.advance(299)
    Deferred.fromCoroutine(routes.resolve("two.example"))
    assert dns.lookups["two.example"] == 1
    clock.advance(2)
    assert routes.cached("two.example") is None
    Deferred.fromCoroutine(routes.resolve("servfail.example"))
    clock.advance(16)
    assert routes.cached("servfail.example") is None


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcdef")), min_size=1, max_size=12), st.randoms())
def test_hosts_are_ordered_by_preference_and_come_once(records: list[tuple[int, str]], chance: random.Random) -> None:
    route = mx_route("x.example", [Mx(preference, f"{host}.mx.example") for preference, host in records], 25)
    assert isinstance(route, Route)
    ordered = route.in_order(chance.shuffle)
    assert [host.preference for host in ordered] == sorted(host.preference for host in route.hosts)
    assert sorted(host.name for host in ordered) == sorted({f"{host}.mx.example" for _, host in records})
    best = {f"{host}.mx.example": min(p for p, h in records if h == host) for _, host in records}
    assert {host.name: host.preference for host in ordered} == best
    assert route.destination == " ".join(sorted(best))


@given(st.lists(st.text(st.characters() | st.sampled_from("a./@* ")).map(lambda name: f"{name}.example"), min_size=1, max_size=5))
def test_no_host_name_looks_like_a_provider_or_a_pool(names: list[str]) -> None:
    """Otherwise its owner would share the limits and pauses of a provider."""
    route = mx_route("x.example", [Mx(10, name) for name in names], 25)
    if isinstance(route, Route):
        assert not set(route.destination) & set("/@*")
        assert route.destination.split(" ") == sorted(host.name for host in route.hosts)


def test_many_long_host_names_make_a_destination_that_fits_into_an_index() -> None:
    names = [f"{number:02}{'x' * 58}.{'y' * 63}.{'z' * 63}.mx.example" for number in range(20)]
    route = mx_route("x.example", [Mx(10, name) for name in names], 25)
    again = mx_route("x.example", [Mx(20, name) for name in reversed(names)], 25)
    other = mx_route("x.example", [Mx(10, name) for name in [*names[:-1], "zz.mx.example"]], 25)
    assert isinstance(route, Route) and isinstance(again, Route) and isinstance(other, Route)
    assert len(route.destination) <= 1000 and len(route.hosts) == 20
    assert route.destination.startswith(" ".join(names[:4]) + " +")
    assert route.destination == again.destination != other.destination


def test_equal_preferences_are_shuffled() -> None:
    route = mx_route("x.example", [Mx(10, f"{host}.mx.example") for host in "abcdef"], 25)
    assert isinstance(route, Route)
    firsts = {route.in_order(random.Random(seed).shuffle)[0].name for seed in range(50)}
    assert len(firsts) > 3
