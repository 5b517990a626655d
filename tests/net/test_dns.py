"""The resolver with a real nameserver on loopback, and its cache with a fake clock."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import dns.message
import pytest
import pytest_twisted
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.net.dns import Mx, NxDomain, Records, Resolver, Temporary
from mailsvc.net.dns_query import Nameserver, NameserverError
from tests.dnsserver import DnsServer

ZONES = {
    "example.com": {
        "MX": ["20 MX2.example.com.", "10 mx1.example.com."],
        "TXT": ['"v=spf1 " "-all"', '"other"'],
        "NS": ["ns.example.com."],
    },
    "mx1.example.com": {"A": ["192.0.2.1", "192.0.2.2"], "AAAA": ["2001:db8::1"]},
    "six.example.com": {"AAAA": ["2001:db8::6"]},
    "four.example.com": {"A": ["192.0.2.4"]},
    "other.example.com": {"A": ["192.0.2.5"]},
    "empty.example.com": {},
    "none.example.com": {"MX": ["0 ."]},
    "alias.example.com": {"CNAME": ["example.com."]},
    "loop.example.com": {"CNAME": ["pool.example.com."]},
    "pool.example.com": {"CNAME": ["loop.example.com."]},
    "huge.example.com": {"TXT": [str(n) for n in range(501)]},
    "big.example.com": {"TXT": [f'"{i:0200d}"' for i in range(200)]},
}


def result_of(result: Awaitable[Any]) -> Any:
    """Returns the result of an awaitable that must be finished."""
    got: list[Any] = []
    Deferred.fromCoroutine(result).addBoth(got.append)  # type: ignore[arg-type]
    assert got, "no result yet"
    return got[0]


async def served(*, seconds: float = 30.0, retry_after: float = 10.0, **bad: Any) -> tuple[DnsServer, Resolver]:
    """By default, the resolver waits long enough for a busy machine."""
    from twisted.internet import reactor

    server = DnsServer(ZONES)
    for name, value in bad.items():
        setattr(server, name, value)
    await server.start(reactor)
    return server, Resolver(reactor, [server.address], seconds=seconds, retry_after=retry_after)


@pytest_twisted.ensureDeferred
async def test_each_kind_of_record_is_looked_up() -> None:
    server, resolver = await served()
    try:
        assert set((await resolver.mx("Example.COM.")).values) == {Mx(10, "mx1.example.com"), Mx(20, "mx2.example.com")}
        assert set((await resolver.txt("example.com")).values) == {"v=spf1 -all", "other"}
        assert (await resolver.ns("example.com")).values == ("ns.example.com",)
        assert sorted((await resolver.addresses("mx1.example.com")).values) == ["192.0.2.1", "192.0.2.2", "2001:db8::1"]
        assert (await resolver.addresses("six.example.com")).values == ("2001:db8::6",)
        assert (await resolver.cname("alias.example.com")).values == ("example.com",)
        assert (await resolver.mx("none.example.com")).values == (Mx(0, ""),)
        assert await resolver.mx("empty.example.com") == Records("empty.example.com")
        assert await resolver.addresses("empty.example.com") == Records("empty.example.com")
        assert await resolver.mx("missing.example.com") == NxDomain("missing.example.com")
        assert await resolver.addresses("missing.example.com") == NxDomain("missing.example.com")
        assert len(set(server.ids)) > len(server.ids) - 3
        assert len(set(server.ports)) > len(server.ports) - 3  # a source port for each question
    finally:
        await server.stop()


@pytest_twisted.ensureDeferred
async def test_cnames_are_followed_by_the_server_or_the_resolver() -> None:
    server, resolver = await served(terse=set())
    try:
        assert (await resolver.mx("alias.example.com")).name == "example.com"
    finally:
        await server.stop()
    server, resolver = await served(terse={"alias.example.com"})
    try:
        answer = await resolver.mx("alias.example.com")
        assert (answer.name, len(answer.values)) == ("example.com", 2)
        assert isinstance(await resolver.mx("loop.example.com"), Temporary)
    finally:
        await server.stop()


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("name", ["mx1.example.com", "four.example.com", "six.example.com"])
async def test_addresses_are_authenticated_with_the_absence_of_the_other_family(name: str) -> None:
    server, resolver = await served(validated={name})
    try:
        assert (await resolver.addresses(name)).authenticated
        assert not (await resolver.addresses("other.example.com")).authenticated
    finally:
        await server.stop()


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("terse", [True, False])
@pytest.mark.parametrize("missing", ["alias.example.com", "second.example.com", "four.example.com", ""])
async def test_records_behind_cnames_are_authenticated_if_all_of_them_are(terse: bool, missing: str) -> None:
    chain = {"alias.example.com", "second.example.com"}
    zones = {"alias.example.com": {"CNAME": ["second.example.com."]}, "second.example.com": {"CNAME": ["four.example.com."]}}
    server, resolver = await served(
        zones={**ZONES, **zones}, terse=chain if terse else set(), validated={*chain, "four.example.com"} - {missing}
    )
    try:
        answer = await resolver.addresses("alias.example.com")
        assert answer == Records("four.example.com", ("192.0.2.4",), not missing)
    finally:
        await server.stop()


@pytest_twisted.ensureDeferred
async def test_an_answer_with_very_many_records_is_not_parsed() -> None:
    """Thousands take half a second."""
    server, resolver = await served(truncated={"huge.example.com"})
    try:
        assert await resolver.txt("huge.example.com") == Temporary("the nameserver answered with more than 500 records")
    finally:
        await server.stop()


@pytest_twisted.ensureDeferred
async def test_truncated_answers_are_repeated_over_tcp() -> None:
    server, resolver = await served(truncated={"example.com", "big.example.com"})
    try:
        assert len((await resolver.mx("example.com")).values) == 2
        assert len((await resolver.txt("big.example.com")).values) == 200
        assert [transport for _, _, transport in server.queries] == ["udp", "tcp", "udp", "tcp"]
    finally:
        await server.stop()


@pytest_twisted.ensureDeferred
async def test_forged_answers_are_ignored() -> None:
    server, resolver = await served(forged={"mx1.example.com"})
    try:
        assert "192.0.2.66" not in (await resolver.addresses("mx1.example.com")).values
    finally:
        await server.stop()


@pytest_twisted.ensureDeferred
async def test_failures_are_returned_within_the_deadline() -> None:
    from twisted.internet import reactor

    rcodes = {"example.com": "SERVFAIL", "mx1.example.com": "REFUSED"}
    server, resolver = await served(seconds=0.5, retry_after=0.2, rcodes=rcodes, silent={"six.example.com"})
    try:
        failed = await resolver.mx("example.com")
        assert isinstance(failed, Temporary)
        assert "SERVFAIL" in failed.reason
        assert "REFUSED" in (await resolver.addresses("mx1.example.com")).reason
        started = reactor.seconds()
        assert "in time" in (await resolver.addresses("six.example.com")).reason
        assert reactor.seconds() - started < 2
    finally:
        await server.stop()
    nobody = Resolver(reactor, [server.address], seconds=0.5, retry_after=0.2)
    assert isinstance(await nobody.mx("example.com"), Temporary)


class Fake:
    """An exchange that answers from a DnsServer without a network; `held`: when the test says so."""

    def __init__(self, zones: Any = ZONES, ttl: int = 300) -> None:
        self.server = DnsServer(zones, ttl)
        self.pending: list[Deferred[Any]] = []
        self.held = False
        self.dead: set[str] = set()
        self.queries: list[str] = []

    async def __call__(self, server: Nameserver, query: dns.message.QueryMessage, seconds: float) -> Any:
        self.queries.append(str(server))
        if server.host in self.dead:
            raise NameserverError(f"nameserver {server} did not answer in time")
        if self.held:
            waiting: Deferred[Any] = Deferred()
            self.pending.append(waiting)
            await waiting
        name = query.question[0].name.to_text(omit_final_dot=True).lower()
        wire = self.server.answer(query, name, "udp").to_wire()
        return dns.message.from_wire(wire)


def resolver(fake: Fake, clock: Clock, *servers: str, **settings: Any) -> Resolver:
    return Resolver(clock, servers or ("192.0.2.53",), exchange=fake, **settings)


def test_concurrent_lookups_share_a_query_and_can_be_cancelled() -> None:
    fake, clock = Fake(), Clock()
    fake.held = True
    it = resolver(fake, clock)
    results: list[Any] = []
    waiting = [Deferred.fromCoroutine(it.mx("example.com")) for _ in range(50)]
    waiting[0].cancel()
    waiting[0].addErrback(lambda _: None)
    for each in waiting[1:]:
        each.addCallback(results.append)
    assert len(fake.queries) == 1
    fake.pending[0].callback(None)
    assert len(results) == 49
    assert all(len(result.values) == 2 for result in results)


def test_lookups_work_again_after_many_could_not_be_sent() -> None:
    """Queries fail at once while the network is down: whoever waits for a slot must not be called by the one before."""
    fake, clock, sent = Fake(), Clock(), list[Deferred[None]]()

    async def exchange(server: Nameserver, query: dns.message.QueryMessage, seconds: float) -> dns.message.QueryMessage:
        if clock.seconds() < 60:
            if len(sent) == 3:
                raise NameserverError("the network is down")
            sent.append(Deferred())
            await sent[-1]
        return await fake(server, query, seconds)

    it = Resolver(clock, ("192.0.2.53",), exchange=exchange, concurrent=3)
    waiting = [Deferred.fromCoroutine(it.mx(f"{number}.example")) for number in range(150)]
    for each in sent:
        each.errback(NameserverError("no answer"))
    clock.pump([0] * 300)
    assert {type(each.result) for each in waiting if each.called} == {Temporary} and all(each.called for each in waiting)
    clock.advance(60)
    assert isinstance(result_of(it.mx("example.com")), Records)


def cached_for(result: Any, ttl: int, name: str) -> int:
    """Returns for how many seconds an answer with this TTL is cached."""
    fake, clock = Fake(ttl=ttl), Clock()
    it = resolver(fake, clock)
    result_of(it.mx(name))
    seconds = 0
    for step in (59, 60, 61, 299, 300, 301, 899, 900, 901, 86399, 86400, 86401):
        clock.advance(step - seconds)
        seconds = step
        before = len(fake.queries)
        result_of(it.mx(name))
        if len(fake.queries) > before:
            return step
    return seconds


def test_ttls_have_a_minimum_and_a_maximum() -> None:
    assert cached_for(Records, 1, "example.com") == 60
    assert cached_for(Records, 300, "example.com") == 300
    assert cached_for(Records, 999_999, "example.com") == 86400
    assert cached_for(NxDomain, 999_999, "missing.example.com") == 900
    assert cached_for(Records, 999_999, "empty.example.com") == 900


def test_failures_are_cached_briefly() -> None:
    fake, clock = Fake(), Clock()
    fake.server.rcodes["example.com"] = "SERVFAIL"
    it = resolver(fake, clock)
    assert isinstance(result_of(it.mx("example.com")), Temporary)
    count = len(fake.queries)
    result_of(it.mx("example.com"))
    assert len(fake.queries) == count
    fake.server.rcodes.clear()
    clock.advance(16)
    assert isinstance(result_of(it.mx("example.com")), Records)


def test_a_cached_mx_is_known_without_a_query() -> None:
    fake, clock = Fake(), Clock()
    it = resolver(fake, clock)
    assert it.known_mx("example.com") is None and fake.queries == []
    found = result_of(it.mx("example.com"))
    assert it.known_mx("Example.COM.") == found
    clock.advance(86401)
    assert it.known_mx("example.com") is None


def test_the_next_nameserver_is_tried() -> None:
    fake, clock = Fake(), Clock()
    fake.dead.add("192.0.2.53")
    assert result_of(resolver(fake, clock, "192.0.2.53", "192.0.2.54").mx("example.com")).values
    assert fake.queries == ["192.0.2.53", "192.0.2.54"]


def test_the_cache_is_limited() -> None:
    fake, clock = Fake(), Clock()
    it = resolver(fake, clock, size=10)
    for number in range(100):
        result_of(it.mx(f"n{number}.example.com"))
    assert len(it._cache) == 10


def test_large_answers_take_more_room_in_the_cache() -> None:
    large = {f"large{n}.example.com": {"A": [f"192.0.2.{last}" for last in range(60)]} for n in range(3)}
    it = resolver(Fake(ZONES | large), Clock(), size=10)
    for name in [*large, *large]:
        assert len(result_of(it.addresses(name)).values) == 60
        assert [each for each, kind in it._cache if kind == "A"] == [name]
    for _ in range(2):
        result_of(it.mx("example.com"))
    assert it._weight == sum(each.weight for each in it._cache.values()) < 20_000


def test_addresses_and_localhost_need_no_query() -> None:
    fake = Fake()
    it = resolver(fake, Clock())
    assert result_of(it.addresses("127.0.0.1")).values == ("127.0.0.1",)
    assert result_of(it.addresses("::1")).values == ("::1",)
    assert result_of(it.addresses("localhost.")).values == ("127.0.0.1", "::1")
    assert fake.queries == []


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80) | st.from_regex(r"[a-z.\\-]{0,300}", fullmatch=True))
def test_any_name_gets_a_result(name: str) -> None:
    assert isinstance(result_of(resolver(Fake(), Clock()).mx(name)), NxDomain | Temporary | Records)


def test_nameservers_are_parsed_with_ports() -> None:
    assert Nameserver.parse("192.0.2.1") == Nameserver("192.0.2.1")
    assert Nameserver.parse("192.0.2.1:5353") == Nameserver("192.0.2.1", 5353)
    assert Nameserver.parse("[2001:db8::1]:5353") == Nameserver("2001:db8::1", 5353)
    assert str(Nameserver.parse("2001:db8::1")) == "[2001:db8::1]"
