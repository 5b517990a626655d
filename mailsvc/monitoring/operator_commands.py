"""What the operator may ask for and order over the control socket: the queue by destination, account and email.

The tables: store/queue/operator. What lanes do at this moment is told by the process that is asked; the tables tell of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

import attrs

from mailsvc.accounts.onboarding import Refused, find_account
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.queue.claims import Queue
from mailsvc.store.queue.holds import FOREVER
from mailsvc.store.queue.operator import Operating


class Delivery(Protocol):
    """What the operator sees of delivery/service, and how it is woken."""

    def view(self) -> Mapping[str, Mapping[str, object]]: ...

    def wake(self) -> None: ...


@attrs.frozen
class Orders:
    """One method for each order; the arguments are what came over the socket, the results can be written as JSON."""

    queue: Queue
    operating: Operating
    region: str
    seconds: Callable[[], float]
    accounts: Accounts
    ring: Callable[[], None]
    delivery: Delivery | None = None
    outcomes: Mapping[str, int] = attrs.field(factory=dict)  # of this process, since its start

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds(), UTC)

    def by_name(self) -> Mapping[str, Callable[..., Any]]:
        return {"queue": self.show, "email": self.email, "pause": self.pause, "resume": self.resume, "retry": self.retry}

    async def show(self) -> dict[str, object]:
        """Everything that waits, by destination."""
        now = self.now
        live = {} if self.delivery is None else self.delivery.view()
        destinations = []
        for each in await self.operating.destinations(self.region, now):
            shown: dict[str, object] = attrs.asdict(each)
            shown["oldest_seconds"] = None if each.oldest is None else max(0.0, round(self.seconds() - each.oldest, 1))
            shown["until"] = _until(each.until)
            shown["reason"] = each.reason or _why(each.sending, each.queued + each.delayed + each.uncertain, each.next_at, now)
            destinations.append(shown | {"lane": live.get(each.name)})
        paused = await self.operating.pauses(now)
        accounts = [{"account": str(account), "reason": reason, "until": _until(until)} for account, (reason, until) in paused.items()]
        unexplained = await self.queue.unexplained(now)
        return {
            "region": self.region,
            "destinations": destinations,
            "paused_accounts": accounts,
            "outcomes": dict(self.outcomes),
            "unexplained": unexplained,
        }

    async def email(self, email: str) -> dict[str, object]:
        """The recipients of one email that wait: why, and until when."""
        found = await self.operating.email(_uuid(email), self.now)
        return {"email": email, "waiting": [attrs.asdict(each) for each in found]}

    async def pause(self, kind: str, name: str, reason: str | None = None, seconds: float | None = None) -> dict[str, object]:
        """Nothing more is begun; what is under way goes on."""
        until = FOREVER if seconds is None else self.now + timedelta(seconds=seconds)
        why = f"Paused by the operator{f': {reason}' if reason else ''}."
        done: dict[str, object] = {"paused": name, "until": _until(until)}
        if kind == "destination":
            await self.queue.hold(self.region, name, "paused", why, until, ordered=True)
        elif kind == "account":
            await self.operating.pause_account((await find_account(self.accounts, name)).id, why, until)
        else:
            waiting, sending = await self.operating.pause_email(_uuid(name), why, until)
            done |= {"recipients": waiting, "already_being_sent": sending}
        self._tell()
        return done

    async def resume(self, kind: str, name: str) -> dict[str, object]:
        """What was paused, or rests, goes on at once."""
        if kind == "destination":
            await self.queue.lift(self.region, name, paused=True)
            count = await self.operating.retry_destination(self.region, name, self.now)
        elif kind == "account":
            count = await self.operating.resume_account((await find_account(self.accounts, name)).id, self.now)
        else:
            count = await self.operating.retry_email(_uuid(name), self.now)
        self._tell()
        return {"resumed": name, "recipients": count}

    async def retry(self, kind: str, name: str) -> dict[str, object]:
        """Try now what waits for its next attempt. A pause stays."""
        if kind == "destination":
            await self.queue.lift(self.region, name)
            count = await self.operating.retry_destination(self.region, name, self.now)
        elif kind == "account":
            count = await self.operating.retry_account((await find_account(self.accounts, name)).id, self.now)
        else:
            count = await self.operating.retry_email(_uuid(name), self.now)
        self._tell()
        return {"retried": name, "recipients": count}

    def _tell(self) -> None:
        self.ring()
        if self.delivery is not None:
            self.delivery.wake()


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Refused(f"{text!r} is no id of an email.") from None


def _until(until: datetime | None) -> str | None:
    """A time, or that there is none."""
    if until is None:
        return None
    return "resumed" if until.year == 9999 else until.isoformat(timespec="seconds")


def _why(sending: int, waiting: int, next_at: datetime | None, now: datetime) -> str | None:
    if not waiting:
        return "Being sent." if sending else None
    if next_at is not None and next_at > now:
        return "Waiting for the next attempt."
    return "Waiting for a connection."
