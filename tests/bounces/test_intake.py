"""The way in: whose email a mail is about, what is counted, and when it has to come again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import attrs
import pytest
from twisted.internet.defer import Deferred

from mailsvc.bounces.intake import BounceIntake, Early
from mailsvc.bounces.reading import Letter
from mailsvc.mail import return_path
from mailsvc.relay.inbound import Returned
from mailsvc.store.events.async_bounces import Heard, Report
from mailsvc.store.mail.dsn_requests import Passed
from mailsvc.store.people.accounts import Account
from mailsvc.store.postgres.errors import Unavailable
from tests.bounces.test_reading import sample

EMAIL = UUID(int=0xE)
ACCOUNT = Account(UUID(int=0xA), 7, "Shop", None, None, datetime(2026, 1, 1, tzinfo=UTC))
PATH = ("b-x@send.example.com", 7, EMAIL)


class Accounts:
    async def numbered(self, number: int) -> Account | None:
        return ACCOUNT if number == 7 else None


@attrs.define
class Store:
    """`addresses` of the one email there is, and what becomes of all news."""

    addresses: Sequence[str] = ("rita@example.org",)
    becomes: Heard = "changed"
    error: Exception | None = None
    news: list[Report] = attrs.field(factory=list)
    passed: list[Passed] = attrs.field(factory=list)

    async def hear(
        self, account_id: UUID, email_id: UUID, judge: Callable[[Sequence[str]], Sequence[Report]], now: datetime
    ) -> Mapping[int, Heard] | None:
        if self.error is not None:
            raise self.error
        assert (account_id, now.timestamp()) == (ACCOUNT.id, 1_780_000_000)
        if email_id != EMAIL:
            return None
        found = judge(self.addresses)
        self.news += found
        return {each.recipient: self.becomes for each in found}

    async def pass_on(self, account_id: UUID, email_id: UUID, judge: Callable[[Sequence[str]], Sequence[Passed]], now: datetime) -> None:
        if self.error is not None:
            raise self.error
        assert account_id == ACCOUNT.id
        if email_id == EMAIL:
            self.passed += judge(self.addresses)


def returns(store: Store, threads: list[int] | None = None) -> BounceIntake:
    async def in_thread(read: Callable[[], Letter]) -> Any:
        if threads is not None:
            threads.append(1)
        return read()

    return BounceIntake(lambda address: return_path.read(address, b"secret"), Accounts(), store, in_thread, lambda: 1_780_000_000.0)


def take(returns: BounceIntake, message: bytes, *paths: tuple[str, int, UUID]) -> dict[str, int]:
    """The counts after it."""
    outcome: list[Any] = []
    Deferred.fromCoroutine(returns.take(Returned("", paths or (PATH,), message))).addBoth(outcome.append)
    if outcome[0] is not None:
        outcome[0].raiseException()
    return dict(returns.counts)


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("postfix", "bounce"),
        ("qmail", "bounce"),
        ("arf", "complaint"),
        ("delayed", "delay"),
        ("success", "success"),
        ("arf-not-spam", "feedback"),
        ("vacation", "automatic"),
        ("person", "unknown"),
    ],
)
def test_what_is_counted(name: str, counted: str) -> None:
    store = Store(("rita@example.org", "x@example.org"))
    assert take(returns(store), sample(name)) == {counted: 1}
    assert len(store.news) == (1 if counted in ("bounce", "complaint") else 0)


def test_nothing_is_taken_while_the_clocks_disagree() -> None:
    store = Store(("rita@example.org", "x@example.org"))
    held = returns(store)
    held.held = lambda: "this machine's clock is 60 s ahead of the database's"
    with pytest.raises(Unavailable):
        take(held, sample("postfix"))
    assert not store.news and not held.counts


def test_what_the_next_server_tells_goes_on() -> None:
    store = Store(("x@example.org", "rita@example.org"))
    assert take(returns(store), sample("success")) == {"success": 1}
    assert store.passed == [Passed(1, "delivered", "2.0.0", "mx.example.net")] and not store.news
    take(returns(store), sample("success"), ("b-x@a", 8, EMAIL), ("b-x@a", 7, UUID(int=1)))
    take(returns(store), sample("postfix"))
    assert len(store.passed) == 1
    take(returns(store), sample("delayed"))
    assert [(each.recipient, each.action) for each in store.passed] == [(1, "delivered"), (1, "delayed")]
    with pytest.raises(Unavailable):
        take(returns(Store(error=Unavailable("no"))), sample("success"))


def test_what_changes_nothing_is_counted_apart() -> None:
    assert take(returns(Store(becomes="repeated")), sample("postfix")) == {"repeated": 1}
    assert take(returns(Store(("x@example.org", "y@example.org"))), sample("postfix")) == {"stranger": 1}
    assert take(returns(Store()), sample("postfix"), ("b-x@a", 8, EMAIL)) == {"gone": 1}
    assert take(returns(Store()), sample("postfix"), ("b-x@a", 7, UUID(int=1))) == {"gone": 1}


def test_one_that_is_early_or_cannot_be_kept_has_to_come_again() -> None:
    early = returns(Store(becomes="early"))
    with pytest.raises(Early):
        take(early, sample("postfix"))
    assert early.counts == {"early": 1}
    with pytest.raises(Unavailable):
        take(returns(Store(error=Unavailable("no"))), sample("postfix"))


def test_each_path_is_asked() -> None:
    store = Store()
    assert take(returns(store), sample("arf"), PATH, ("b-y@a", 7, UUID(int=1))) == {"complaint": 1, "gone": 1}


def test_a_large_one_is_read_elsewhere() -> None:
    threads: list[int] = []
    counts = take(returns(Store(), threads), sample("postfix") + b"x" * 100_000)
    assert (threads, counts) == ([1], {"bounce": 1})


def test_people_are_told_that_nobody_reads_it() -> None:
    def reply(name: str, sender: str) -> Any:
        outcome: list[Any] = []
        Deferred.fromCoroutine(returns(Store()).take(Returned(sender, (PATH,), sample(name)))).addBoth(outcome.append)
        return outcome[0]

    assert reply("person", "rita@example.org").code == 550
    assert reply("person", "") is None, "perhaps a bounce that is not understood: it would be bounced again"
    assert reply("vacation", "rita@example.org") is None
    assert reply("postfix", "rita@example.org") is None


def test_forged_paths_are_counted() -> None:
    found = returns(Store())
    assert found.whose(return_path.make("send.example.com", 7, EMAIL, b"secret")) == (7, EMAIL)
    assert found.whose("postmaster@send.example.com") is None and found.counts == {}
    assert found.whose(return_path.make("send.example.com", 7, EMAIL, b"other")) is None
    assert found.counts == {"forged": 1}


def overhear(found: BounceIntake, message: bytes) -> dict[str, int]:
    outcome: list[Any] = []
    Deferred.fromCoroutine(found.overhear(message)).addBoth(outcome.append)
    assert outcome == [None]
    return dict(found.counts)


def test_a_complaint_that_came_to_a_role_names_its_email() -> None:
    path = return_path.make("send.example.com", 7, EMAIL, b"secret").encode()
    store = Store()
    named = sample("arf").replace(b"b-x@send.example.com", path)
    assert overhear(returns(store), named) == {"complaint": 1} and len(store.news) == 1
    returned = sample("arf-redacted").replace(b"To: redacted@provider.example", b"Return-Path: <" + path + b">")
    assert overhear(returns(Store()), returned) == {"complaint": 1}
    assert overhear(returns(Store()), sample("arf")) == {}
    assert overhear(returns(Store()), named.replace(path[:30], b"b-" + b"a" * 28)) == {"forged": 1}
    assert overhear(returns(Store()), sample("postfix").replace(b"b-x@send.example.com", path)) == {}, "bounces come to the path itself"
    assert overhear(returns(Store()), b"Subject: Hello\r\n\r\nI have a question.\r\n") == {}
