"""What the sending domain adds: its signature is the same whoever makes it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, get_args

import attrs
from twisted.internet.defer import Deferred

from mailsvc.delivery.parcel import Parcel
from mailsvc.delivery.sending import DomainSide
from mailsvc.mail import dkim
from mailsvc.store.domains import StoredKey
from mailsvc.store.ids import uuid7_floor
from mailsvc.store.queue import Leased
from tests.delivery.fakes import MESSAGE, START, number

KEYS = tuple(StoredKey(f"s{n}", algorithm, dkim.generate(algorithm)[0]) for n, algorithm in enumerate(get_args(dkim.Algorithm)))
EXPIRES = datetime.fromtimestamp(START + 5 * 86400, UTC)


@attrs.define
class Domain:
    name: str = "sender.example"


class Stored:
    async def get(self, _: Any) -> Any:
        return Domain()

    async def signing_keys(self, _: Any) -> tuple[StoredKey, ...]:
        return KEYS


async def at_once(work: Callable[[], bytes]) -> bytes:
    return work()


def signature(parcel: Parcel) -> bytes:
    """By a process of its own."""
    stored: Any = Stored()
    found: list[bytes] = []
    Deferred.fromCoroutine(DomainSide(stored, stored, b"secret", at_once).sign(parcel, MESSAGE)).addCallback(found.append)
    return found[0]


def parcel() -> Parcel:
    email_id = uuid7_floor(datetime.fromtimestamp(START, UTC))
    leased = Leased(number(1), email_id, 0, number(9), "eu", "a@b.example", "mx", 0, "queued", EXPIRES, False)
    return Parcel(number(1), email_id, number(9), 7, False, (leased,))


def test_two_processes_that_attempt_first_send_the_same_octets() -> None:
    first = parcel()
    [leased] = first.recipients
    second = attrs.evolve(first, lease=8, recipients=(attrs.evolve(leased, recipient=1, destination="other"),))
    assert signature(first) == signature(second)
    assert signature(first).count(b"DKIM-Signature:") == 2


def test_a_signature_holds_from_the_acceptance_until_well_after_the_last_attempt() -> None:
    assert f" t={START:.0f}; x={START + 14 * 86400:.0f};".encode() in signature(parcel())
