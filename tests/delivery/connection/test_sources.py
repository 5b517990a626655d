"""Mail from several source addresses: new ones that warm up, overflow, pools, and what waits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred

from mailsvc.delivery.connection.sources import Refused, Sources, parse
from mailsvc.delivery.connection.tls_policy import Source
from mailsvc.mail.reply import Reply
from mailsvc.outcome import Delivered
from mailsvc.store.postgres.errors import Unavailable
from tests.delivery.connection.source_fakes import TODAY, SourcesRig, Table
from tests.delivery.fakes import START, answered, clock_at, number, taken

NEW = f"192.0.2.1 new.example since={TODAY}"
WARM = "192.0.2.2 warm.example"
DAY = 86400.0
MIDNIGHT = datetime.combine(TODAY + timedelta(days=1), datetime.min.time(), UTC)


def server(rig: SourcesRig, provider: str = "big") -> Any:
    return rig.server("a.example", "1.1.1.1", host=f"mx.{provider}.example")


def add(rig: SourcesRig, count: int, first: int = 1, **values: Any) -> None:
    for email in range(first, first + count):
        rig.store.add(email, "x@a.example", **values)


def used(rig: SourcesRig) -> dict[str, int]:
    """Emails by source."""
    found: dict[str, int] = {}
    for settled in rig.store.settled:
        if settled.attempt is not None and settled.attempt.source is not None:
            found[settled.attempt.source] = found.get(settled.attempt.source, 0) + 1
    return found


def until_tomorrow(rig: SourcesRig) -> float:
    return MIDNIGHT.timestamp() - rig.clock.seconds()


# The setting


def test_a_source_may_have_a_weight_a_pool_and_a_first_day() -> None:
    texts = [
        "192.0.2.1 a.example",
        "192.0.2.2 a.example 3",
        "2001:db8::1 a.example pool=bulk",
        f"192.0.2.3 a.example 2 since={TODAY} pool=default",
    ]
    assert parse(texts) == (
        Source("192.0.2.1", "a.example"), Source("192.0.2.2", "a.example", 3), Source("2001:db8::1", "a.example", 1, "bulk"),
        Source("192.0.2.3", "a.example", 2, "", TODAY),
    )  # fmt: skip


@pytest.mark.parametrize("text", [
    "192.0.2.1", "out a.example", "192.0.2.1 a.example many", "192.0.2.1 a.example pool=Bulk", "192.0.2.1 a.example since=today",
    "192.0.2.1 a.example 1 2", "192.0.2.1 a.example tool=bulk", "192.0.2.1 a.example pool=a pool=b", "192.0.2.1 a.example pool=",
    "192.0.2.1 a.example 0", "192.0.2.1 a.example -1",
])  # fmt: skip
def test_a_wrong_source_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="address, name, weight, options"):
        parse([text])


@pytest.mark.parametrize("text", ["2001:db8::1 b.example pool=bulk", "2001:DB8:0::1 a.example"])
def test_a_source_cannot_be_in_two_pools(text: str) -> None:
    with pytest.raises(ValueError, match="2001:db8::1 twice"):
        parse(["2001:db8::1 a.example", text])


# Warming up


def test_overflow_of_a_new_source_goes_to_the_warm_one() -> None:
    rig = SourcesRig([NEW, WARM])
    server(rig)
    add(rig, 20)
    rig.start().run(30)
    assert used(rig) == {"192.0.2.1": 4, "192.0.2.2": 16}
    assert not rig.store.rows and not rig.store.hold_rows


def test_without_a_warm_source_mail_waits_with_a_reason_and_a_time() -> None:
    rig = SourcesRig([NEW], poll_seconds=30.0)
    big = server(rig)
    add(rig, 20)
    rig.start().run(60)
    assert len(big.mails) == 4
    hold = rig.store.hold_rows["big"]
    assert (hold.state, hold.until) == ("source", MIDNIGHT)
    assert hold.reason.startswith("Source warm-up: the source addresses have sent as many emails to big as they may today.")
    assert all(row.leased.attempts == 0 and row.lease is None for row in rig.store.rows.values()), "nothing counts as an attempt"
    rig.run(until_tomorrow(rig) + 60)
    assert len(big.mails) == 4 + 8, "the next day allows more"
    rig.run(DAY)
    assert len(big.mails) == 20 and not rig.store.rows
    assert all(isinstance(outcomes[-1], Delivered) for outcomes in rig.store.outcomes.values())


def test_each_provider_has_its_own_count_and_all_without_a_provider_share_one() -> None:
    rig = SourcesRig([NEW])
    big, small, other = server(rig), rig.server("b.example", "1.1.1.2"), rig.server("c.example", "1.1.1.3")
    for email, name in enumerate("abcabcabc" * 3, 1):
        rig.store.add(email, f"x@{name}.example")
    rig.start().run(60)
    assert (len(big.mails), len(small.mails) + len(other.mails)) == (4, 2)
    assert {hold.state for hold in rig.store.hold_rows.values()} == {"source"}


def test_after_the_last_day_of_its_schedule_a_source_is_warm_and_nothing_is_counted() -> None:
    rig = SourcesRig([f"192.0.2.1 new.example since={TODAY - timedelta(days=3)}"])
    big = server(rig)
    add(rig, 100)
    rig.start().run(60)
    assert len(big.mails) == 100 and rig.table.writes == 0


def test_before_its_first_day_a_source_sends_nothing() -> None:
    rig = SourcesRig([f"192.0.2.1 new.example since={TODAY + timedelta(days=1)}", WARM])
    server(rig)
    add(rig, 10)
    rig.start().run(30)
    assert used(rig) == {"192.0.2.2": 10}


def test_mail_waits_for_the_first_day_of_the_only_source() -> None:
    rig = SourcesRig([f"192.0.2.1 new.example since={TODAY + timedelta(days=2)}"], poll_seconds=30.0)
    big = server(rig)
    add(rig, 3)
    rig.start().run(30)
    hold = rig.store.hold_rows["big"]
    assert hold.until == MIDNIGHT + timedelta(days=1) and hold.reason.startswith("Source warm-up: the source addresses send nothing before")
    rig.run(until_tomorrow(rig) + DAY + 60)
    assert len(big.mails) == 3


def test_a_wait_ends_when_another_source_may_send() -> None:
    table = Table()
    rig = SourcesRig([NEW], table=table)
    big = server(rig)
    add(rig, 10)
    rig.start().run(60)
    assert len(big.mails) == 4
    rig.stop()
    rig.run(1)
    restarted = SourcesRig([NEW, WARM], table=table, clock=rig.clock)
    restarted.store.rows, restarted.store.hold_rows = rig.store.rows, rig.store.hold_rows
    again = server(restarted)
    restarted.start().run(5)
    assert not again.mails and restarted.store.hold_rows
    restarted.refresh()
    restarted.run(5)
    assert len(again.mails) == 6 and not restarted.store.hold_rows


def test_mail_deferred_by_a_new_source_may_go_out_from_another_one() -> None:
    rig = SourcesRig([NEW, WARM], retry_after=(60.0,), retry_every=60.0, connections_max=1)
    big = server(rig)
    big.answer = lambda envelope: answered(envelope, Reply(451, "greylisted", "4.7.1"), "rcpt")
    add(rig, 4)
    rig.start().run(10)
    assert used(rig) == {"192.0.2.1": 4}
    big.answer = taken
    rig.run(1000)
    assert used(rig) == {"192.0.2.1": 4, "192.0.2.2": 4} and not rig.store.rows
    assert big.connections <= 3, "no connection for each email"


# Several processes


def test_processes_share_the_days_emails_and_a_restart_does_not_add_any() -> None:
    table, clock = Table(), clock_at(START)
    rigs = [SourcesRig([NEW], table=table, clock=clock) for _ in range(2)]
    servers = [server(rig) for rig in rigs]
    for rig in rigs:
        add(rig, 20)
        rig.start()
    rigs[0].run(30)
    assert sum(len(each.mails) for each in servers) == 4
    restarted = SourcesRig([NEW], table=table, clock=clock)
    third = server(restarted)
    add(restarted, 5)
    restarted.start().run(30)
    assert not third.mails


def test_a_process_leaves_mail_to_the_one_that_has_the_source() -> None:
    table, clock = Table(), clock_at(START)
    have = SourcesRig([WARM.replace("warm.example", "warm.example pool=shop")], table=table, clock=clock, assigned={number(1): "shop"})
    have.refresh()
    lack = SourcesRig([], table=table, clock=clock, assigned={number(1): "shop"})
    server(lack)
    add(lack, 5, destination="shop@big/mx.big.example")
    lack.start().run(5)
    assert len(lack.store.rows) == 5 and not lack.store.hold_rows, "no hold, which would stop the other process"
    assert all(row.lease is None for row in lack.store.rows.values())
    assert lack.store.calls["claim"] == 1, "it does not claim it again at once"
    lack.run(40)
    assert lack.store.calls["claim"] == 2


def test_a_process_that_is_gone_has_no_sources() -> None:
    table, clock = Table(), clock_at(START)
    SourcesRig(["192.0.2.9 shop.example pool=shop"], table=table, clock=clock)
    clock.advance(600.0)
    rig = SourcesRig([WARM], table=table, clock=clock, assigned={number(1): "shop"})
    server(rig)
    add(rig, 1)
    rig.start().run(5)
    assert rig.store.hold_rows["shop@big"].state == "source"


def test_what_was_left_of_a_day_is_not_added_to_the_next() -> None:
    rig = SourcesRig([NEW])
    sources = Sources(parse([NEW]), state=rig.state)

    def choose() -> Any:
        found: list[Any] = []
        Deferred.fromCoroutine(sources.choose("mx.small.example", "1.1.1.1", None)).addCallback(found.append)
        return found[0]

    chosen = choose()
    assert chosen.most == 2
    sources.give_back("mx.small.example", chosen, 1)
    open_at_midnight = choose()
    assert open_at_midnight.most == 1
    rig.clock.advance(DAY)
    sources.give_back("mx.small.example", open_at_midnight, 0)
    assert choose().most == 4
    sources.give_back("mx.small.example", open_at_midnight, 0)
    assert isinstance(choose(), Refused)


def test_mail_of_a_pool_without_a_source_waits() -> None:
    rig = SourcesRig([WARM], assigned={number(1): "shop"})
    big = server(rig)
    add(rig, 5)
    rig.start().run(30)
    assert not big.mails
    assert rig.store.hold_rows["shop@big"].reason.startswith("No running process has one of the source addresses of the pool shop")


def test_without_the_database_mail_waits_a_little_and_no_hold_is_written() -> None:
    rig = SourcesRig([NEW])
    big = server(rig)
    reserve, failing = rig.table.reserve, [True]

    async def reserve_or_fail(*values: Any) -> Any:
        if failing:
            raise Unavailable("the database is down")
        return await reserve(*values)

    rig.table.reserve = reserve_or_fail  # type: ignore[method-assign]
    add(rig, 3)
    rig.start().run(10)
    assert not big.mails and not rig.store.hold_rows and not rig.store.settled
    failing.clear()
    rig.run(60)
    assert len(big.mails) == 3


# Rest


def rest(rig: SourcesRig, address: str, *lists: str) -> None:
    rig.table.stored[address] = attrs.evolve(rig.table.stored[address], listed=lists)
    rig.refresh()


def test_a_listed_source_sends_nothing_and_the_others_continue() -> None:
    rig = SourcesRig([NEW.partition(" since")[0], WARM])
    server(rig)
    rest(rig, "192.0.2.1", "list.example")
    add(rig, 10)
    rig.start().run(30)
    assert used(rig) == {"192.0.2.2": 10}


def test_when_all_sources_rest_mail_waits_and_is_sent_afterwards() -> None:
    rig = SourcesRig([WARM], poll_seconds=30.0)
    big = server(rig)
    rest(rig, "192.0.2.2", "list.example")
    add(rig, 10, expires=3 * DAY)
    rig.start().run(2 * DAY)
    assert not big.mails and len(rig.store.rows) == 10 and not rig.store.settled
    hold = rig.store.hold_rows["big"]
    assert (hold.state, hold.reason) == (
        "source", "All source addresses are on block lists. Mail waits until one of them is removed from the lists."
    )  # fmt: skip
    assert 0 < hold.until.timestamp() - rig.clock.seconds() <= 3600
    rest(rig, "192.0.2.2")
    rig.run(700)
    assert len(big.mails) == 10


# Pools


def test_pools_keep_bulk_mail_and_dedicated_accounts_and_domains_apart() -> None:
    texts = [WARM, "192.0.2.3 b.example pool=bulk", "192.0.2.4 s.example pool=shop", "192.0.2.5 d.example pool=domain"]
    rig = SourcesRig(texts, assigned={number(2): "shop", number(9_003): "domain"}, bulk="bulk")
    server(rig)
    add(rig, 3)
    add(rig, 3, 11, bulk=True)
    add(rig, 3, 21, account=2)
    add(rig, 3, 31, account=2, bulk=True)
    for key in [rig.store.add(email, "x@a.example", account=2) for email in (41, 42)]:
        row = rig.store.rows[key]
        row.leased = attrs.evolve(row.leased, domain_id=number(9_003))
    rig.start().run(30)
    assert not rig.store.rows
    by_email = {settled.email_id.int: settled.attempt.source for settled in rig.store.settled if settled.attempt is not None}
    assert {source: sorted(email for email in by_email if by_email[email] == source) for source in set(by_email.values())} == {
        "192.0.2.2": [1, 2, 3], "192.0.2.3": [11, 12, 13], "192.0.2.4": [21, 22, 23, 31, 32, 33], "192.0.2.5": [41, 42],
    }  # fmt: skip


def test_a_throttling_reply_to_bulk_mail_does_not_slow_transactional_mail() -> None:
    rig = SourcesRig([WARM, "192.0.2.3 b.example pool=bulk"], bulk="bulk")
    big = server(rig)
    add(rig, 5, destination="bulk@big/mx.big.example", bulk=True)
    rig.start()
    rig.delivery.holds.pause("bulk@big", "bulk@big is paused because it says so.", 3600.0)
    add(rig, 5, 11)
    rig.run(10)
    assert len(big.mails) == 5 and len(rig.store.rows) == 5


def test_new_mail_of_a_pool_is_handed_to_its_own_lane() -> None:
    rig = SourcesRig([WARM, "192.0.2.3 b.example pool=bulk"], bulk="bulk")
    server(rig)
    add(rig, 1)
    rig.start().run(5)
    reserve = rig.delivery.handoff.reserve
    assert reserve("a.example", 10, False, rig.pools.of(number(1), number(9), False)).destination == "big/mx.big.example"
    found = reserve("a.example", 10, True, rig.pools.of(number(1), number(9), True))
    assert found.destination == "bulk@big/mx.big.example" and found.leased


def test_the_overflow_of_a_pool_may_go_to_another_pool() -> None:
    rig = SourcesRig([NEW + " pool=shop", WARM], assigned={number(1): "shop"}, overflow={"shop": ""}, connections_max=1)
    server(rig)
    add(rig, 10)
    rig.start().run(30)
    assert used(rig) == {"192.0.2.1": 4, "192.0.2.2": 6}


def test_mail_moves_when_its_pool_changes() -> None:
    assigned = {number(1): "shop"}
    rig = SourcesRig([WARM], assigned=assigned)
    big = server(rig)
    add(rig, 5)
    rig.start().run(5)
    assert not big.mails and {row.leased.destination for row in rig.store.rows.values()} == {"shop@big/mx.big.example"}
    assigned.clear()
    rig.refresh()
    rig.run(700)
    assert len(big.mails) == 5


@pytest.mark.parametrize("first", [NEW, NEW.partition(" since")[0]])
def test_a_source_that_this_machine_does_not_have_is_left_out(first: str) -> None:
    rig = SourcesRig([first, WARM], retry_after=(60.0,), retry_every=60.0, idle_seconds=5.0)
    big = server(rig)
    big.answer = lambda envelope: answered(envelope, Reply(451, "greylisted", "4.7.1"), "rcpt")
    add(rig, 1)
    rig.start().run(10)
    assert used(rig) == {"192.0.2.1": 1}
    rig.unbound.add("192.0.2.1")
    big.answer = taken
    add(rig, 3, first=2)
    rig.run(600)
    assert used(rig) == {"192.0.2.1": 1, "192.0.2.2": 4} and not rig.store.hold_rows
    assert [how.source.address for how in big.dialled].count("192.0.2.1") <= 4, "it is tried once a minute"


def test_without_any_source_that_this_machine_has_the_destination_is_held() -> None:
    rig = SourcesRig([WARM])
    big = server(rig)
    rig.unbound.add("192.0.2.2")
    add(rig, 2)
    rig.start().run(10)
    [hold] = rig.store.hold_rows.values()
    assert "Couldn't bind" in hold.reason and len(rig.store.settled) == 1
    rig.unbound.clear()
    rig.run(3600)
    assert len(big.mails) == 2
