"""Taking returned mail: which email it is about, what is counted, and when it is refused for now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import attrs
import pytest
from twisted.internet.defer import Deferred

from mailsvc.bounces.intake import BounceIntake, NotSettledYet
from mailsvc.bounces.reading import ReportMail
from mailsvc.mail import return_path
from mailsvc.relay.inbound import ReturnedMail
from mailsvc.store.events.async_bounces import Recorded, Report
from mailsvc.store.mail.dsn_requests import ForwardedReport
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
    """Has one email with `addresses`; every report gets the same result."""

    addresses: Sequence[str] = ("rita@example.org",)
    result: Recorded = "changed"
    error: Exception | None = None
    reports: list[Report] = attrs.field(factory=list)
    forwarded: list[ForwardedReport] = attrs.field(factory=list)

    async def record(
        self, account_id: UUID, email_id: UUID, interpret: Callable[[Sequence[str]], Sequence[Report]], now: datetime
    ) -> Mapping[int, Recorded] | None:
        if self.error is not None:
            raise self.error
        assert (account_id, now.timestamp()) == (ACCOUNT.id, 1_780_000_000)
        if email_id != EMAIL:
            return None
        found = interpret(self.addresses)
        self.reports += found
        return {each.recipient: self.result for each in found}

    async def forward(
        self, account_id: UUID, email_id: UUID, interpret: Callable[[Sequence[str]], Sequence[ForwardedReport]], now: datetime
    ) -> None:
        if self.error is not None:
            raise self.error
        assert account_id == ACCOUNT.id
        if email_id == EMAIL:
            self.forwarded += interpret(self.addresses)


def intake(store: Store, threads: list[int] | None = None) -> BounceIntake:
    async def in_thread(read: Callable[[], ReportMail]) -> Any:
        if threads is not None:
            threads.append(1)
        return read()

    return BounceIntake(lambda address: return_path.read(address, b"secret"), Accounts(), store, in_thread, lambda: 1_780_000_000.0)


def take(bounces: BounceIntake, message: bytes, *paths: tuple[str, int, UUID]) -> dict[str, int]:
    """Take the mail; the counts afterwards."""
    outcome: list[Any] = []
    Deferred.fromCoroutine(bounces.take(ReturnedMail("", paths or (PATH,), message))).addBoth(outcome.append)
    if outcome[0] is not None:
        outcome[0].raiseException()
    return dict(bounces.counts)


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
def test_each_kind_of_mail_is_counted(name: str, counted: str) -> None:
    store = Store(("rita@example.org", "x@example.org"))
    assert take(intake(store), sample(name)) == {counted: 1}
    assert len(store.reports) == (1 if counted in ("bounce", "complaint") else 0)


def test_nothing_is_accepted_while_held() -> None:
    store = Store(("rita@example.org", "x@example.org"))
    held = intake(store)
    held.held = lambda: "this machine's clock is 60 s ahead of the database's"
    with pytest.raises(Unavailable):
        take(held, sample("postfix"))
    assert not store.reports and not held.counts


def test_delays_and_deliveries_are_forwarded() -> None:
    store = Store(("x@example.org", "rita@example.org"))
    assert take(intake(store), sample("success")) == {"success": 1}
    assert store.forwarded == [ForwardedReport(1, "delivered", "2.0.0", "mx.example.net")] and not store.reports
    take(intake(store), sample("success"), ("b-x@a", 8, EMAIL), ("b-x@a", 7, UUID(int=1)))
    take(intake(store), sample("postfix"))
    assert len(store.forwarded) == 1
    take(intake(store), sample("delayed"))
    assert [(each.recipient, each.action) for each in store.forwarded] == [(1, "delivered"), (1, "delayed")]
    with pytest.raises(Unavailable):
        take(intake(Store(error=Unavailable("no"))), sample("success"))


def test_reports_without_effect_are_counted_separately() -> None:
    assert take(intake(Store(result="repeated")), sample("postfix")) == {"repeated": 1}
    assert take(intake(Store(("x@example.org", "y@example.org"))), sample("postfix")) == {"no_recipient": 1}
    assert take(intake(Store()), sample("postfix"), ("b-x@a", 8, EMAIL)) == {"gone": 1}
    assert take(intake(Store()), sample("postfix"), ("b-x@a", 7, UUID(int=1))) == {"gone": 1}


def test_a_report_that_cannot_be_recorded_yet_is_refused_for_now() -> None:
    early = intake(Store(result="early"))
    with pytest.raises(NotSettledYet):
        take(early, sample("postfix"))
    assert early.counts == {"early": 1}
    with pytest.raises(Unavailable):
        take(intake(Store(error=Unavailable("no"))), sample("postfix"))


def test_every_return_path_is_recorded() -> None:
    store = Store()
    assert take(intake(store), sample("arf"), PATH, ("b-y@a", 7, UUID(int=1))) == {"complaint": 1, "gone": 1}


@pytest.mark.parametrize("size", [0, 100_000])
def test_mail_of_strangers_is_parsed_in_a_thread(size: int) -> None:
    threads: list[int] = []
    counts = take(intake(Store(), threads), sample("postfix") + b"x" * size)
    assert (threads, counts) == ([1], {"bounce": 1})


def test_mail_from_a_person_is_refused_because_nobody_reads_the_address() -> None:
    def reply(name: str, sender: str) -> Any:
        outcome: list[Any] = []
        Deferred.fromCoroutine(intake(Store()).take(ReturnedMail(sender, (PATH,), sample(name)))).addBoth(outcome.append)
        return outcome[0]

    assert reply("person", "rita@example.org").code == 550
    assert reply("person", "") is None, "it may be a bounce in an unknown format, and refusing it would bounce it again"
    assert reply("vacation", "rita@example.org") is None
    assert reply("postfix", "rita@example.org") is None


def test_forged_return_paths_are_counted() -> None:
    found = intake(Store())
    assert found.find_email(return_path.make("send.example.com", 7, EMAIL, b"secret")) == (7, EMAIL)
    assert found.find_email("postmaster@send.example.com") is None and found.counts == {}
    assert found.find_email(return_path.make("send.example.com", 7, EMAIL, b"other")) is None
    assert found.counts == {"forged": 1}


def take_abuse_report(found: BounceIntake, message: bytes) -> dict[str, int]:
    outcome: list[Any] = []
    Deferred.fromCoroutine(found.take_abuse_report(message)).addBoth(outcome.append)
    assert outcome == ["complaint" in found.counts]
    return dict(found.counts)


def test_a_complaint_sent_to_abuse_is_matched_by_its_return_path() -> None:
    path = return_path.make("send.example.com", 7, EMAIL, b"secret").encode()
    store = Store()
    named = sample("arf").replace(b"b-x@send.example.com", path)
    assert take_abuse_report(intake(store), named) == {"complaint": 1} and len(store.reports) == 1
    returned = sample("arf-redacted").replace(b"To: redacted@provider.example", b"Return-Path: <" + path + b">")
    assert take_abuse_report(intake(Store()), returned) == {"complaint": 1}
    assert take_abuse_report(intake(Store()), sample("arf")) == {}
    assert take_abuse_report(intake(Store()), named.replace(path[:30], b"b-" + b"a" * 28)) == {"forged": 1}
    assert take_abuse_report(intake(Store()), sample("postfix").replace(b"b-x@send.example.com", path)) == {}, "not a complaint"
    assert take_abuse_report(intake(Store()), b"Subject: Hello\r\n\r\nI have a question.\r\n") == {}
