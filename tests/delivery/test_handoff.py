"""The hand-off of a process that accepts mail and does not deliver; what is signed before a commit by one that does both."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mailsvc.delivery.connection.route import Routes
from mailsvc.delivery.handoff import _AHEAD, _LOOKUPS, LocalHandoff, QueueOnly
from mailsvc.delivery.passing.handoff import PassingHandoff
from mailsvc.delivery.transaction import NewMail
from mailsvc.net.dns import Mx, Records
from mailsvc.store.mail.values import NewEmail, NewRecipient
from tests.store.fixtures import email


class Names:
    """DNS that answers when a test says so."""

    def __init__(self) -> None:
        self.lookups: dict[str, Deferred[Any]] = {}

    def mx(self, domain: str) -> Any:
        assert domain not in self.lookups
        self.lookups[domain] = Deferred()
        return self.lookups[domain]

    def answer(self, domain: str, host: str) -> None:
        self.lookups.pop(domain).callback(Records(domain, (Mx(10, host),)))


def leaving(**routes: str) -> tuple[QueueOnly, Names]:
    names: Any = Names()
    return QueueOnly(Routes(Clock(), names, routes)), names


def test_mail_is_queued_under_its_destination_once_it_is_known() -> None:
    leave, names = leaving()
    assert leave.reserve("Example.org", 1, False).destination == "example.org"
    assert leave.reserve("example.org", 1, False).destination == "example.org"
    names.answer("example.org", "mx.example.net")
    offer = leave.reserve("EXAMPLE.org", 1, False)
    assert (offer.destination, offer.leased) == ("mx.example.net", False)


def test_a_route_setting_is_known_at_once() -> None:
    leave, names = leaving(**{"*": "smtp://10.0.0.1:2525"})
    assert leave.reserve("example.org", 1, False).destination == "10.0.0.1:2525"
    assert not names.lookups


def test_lookups_are_limited_and_a_failed_one_is_repeated() -> None:
    leave, names = leaving()
    for number in range(_LOOKUPS + 1):
        leave.reserve(f"d{number}.example", 1, False)
    assert len(names.lookups) == _LOOKUPS
    names.answer("d0.example", "mx.example.net")
    assert leave.reserve(f"d{_LOOKUPS}.example", 1, False).destination == f"d{_LOOKUPS}.example"
    assert f"d{_LOOKUPS}.example" in names.lookups


class Sender:
    """Keeps the calls. All leases are of process 9."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def lease(self, *given: Any) -> int:
        self.calls.append(("lease", given))
        return 9

    def __getattr__(self, name: str) -> Any:
        return lambda given: self.calls.append((name, given))


def test_mail_for_known_destinations_is_stored_with_the_lease_of_another_process() -> None:
    queue, names = leaving()
    sender: Any = Sender()
    leave = PassingHandoff(queue, sender)
    first = leave.reserve("example.org", 1, False, "warm", "eu")
    assert (first.destination, first.lease, sender.calls) == ("example.org", 0, [])
    names.answer("example.org", "mx.example.net")
    second = leave.reserve("Example.org", 1, True, "warm", "eu")
    assert (second.lease, second.leased, sender.calls) == (9, True, [("lease", (second.destination, True, "eu"))])
    assert "mx.example.net" in second.destination and "warm" in second.destination


def test_an_email_is_passed_on_before_the_commit_and_its_outcome_afterwards() -> None:
    sender: Any = Sender()
    leave = PassingHandoff(leaving()[0], sender)
    new = email()
    leave.prepare(new)
    leave.writing([new])
    leave.deliver(new, {})
    leave.release(new.email_id, {})
    assert sender.calls == [("pass_on", new), ("committed", new), ("dropped", new.email_id)]


class Loader:
    """Keeps what it should sign ahead."""

    def __init__(self) -> None:
        self.ahead: list[NewMail] = []

    def sign_ahead(self, emails: list[NewMail]) -> None:
        self.ahead += emails


def delivering(held: int) -> tuple[LocalHandoff, Loader]:
    """The hand-off of a process that has leased so many recipients as number 7."""
    loader: Any = Loader()
    limits: Any = SimpleNamespace(recipients_per_message=100)
    leases: Any = SimpleNamespace(held=set(range(held)))
    queue: Any = SimpleNamespace(lease=7)
    rest: Any = None
    return LocalHandoff(limits, rest, queue, rest, rest, rest, rest, leases, loader), loader


def leased(*destinations: str) -> NewEmail:
    """An email with a recipient for each destination; without a lease for those that are empty."""
    recipients = tuple(NewRecipient(f"{n}@example.org", name or "elsewhere", bool(name)) for n, name in enumerate(destinations))
    return attrs.evolve(email(), recipients=recipients, lease=7)


def test_what_is_sent_right_after_the_commit_is_signed_during_it() -> None:
    leave, loader = delivering(held=0)
    new, queued = leased("", "mx.example.net", "mx.example.com"), leased("", "")
    leave.writing([queued, new])
    assert loader.ahead == [new]


@pytest.mark.parametrize(("held", "signed"), [(0, 3), (_AHEAD - 2, 2), (_AHEAD, 0), (_AHEAD + 1, 0)])
def test_nothing_is_signed_ahead_while_much_waits(held: int, signed: int) -> None:
    leave, loader = delivering(held)
    leave.writing([leased("mx.example.net") for _ in range(3)])
    assert len(loader.ahead) == signed
