"""The commands of the control socket: show, pause, resume and retry by destination, account and email.

The tables: store/queue/operator, for all processes. The current state of lanes is that of the process that answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

import attrs

from mailsvc.accounts.onboarding import Refused, find_account
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.audit import INSTALLATION, Line, by_operator
from mailsvc.store.queue.claims import Queue
from mailsvc.store.queue.holds import EVERYTHING, FOREVER
from mailsvc.store.queue.operator import Operating


class Named(Protocol):
    """delivery.connection.destination_names.Named."""

    @property
    def names(self) -> Sequence[str]: ...
    @property
    def why(self) -> str: ...


class Delivery(Protocol):
    """delivery.service.Delivery, as far as commands use it."""

    async def named(self, text: str, known: Collection[str]) -> Named: ...

    def view(self) -> Mapping[str, Mapping[str, object]]: ...

    def wake(self) -> None: ...


@attrs.frozen
class OperatorCommands:
    """A method for each command. Arguments come from the socket; results can be written as JSON."""

    queue: Queue
    operating: Operating
    region: str
    seconds: Callable[[], float]
    accounts: Accounts
    notify: Callable[[], None]
    delivery: Delivery | None = None
    outcomes: Mapping[str, int] = attrs.field(factory=dict)  # of this process, since its start
    line: Callable[..., Line] = by_operator  # an entry for the audit log

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds(), UTC)

    def by_name(self) -> Mapping[str, Callable[..., Any]]:
        return {"queue": self.show, "email": self.email, "pause": self.pause, "resume": self.resume, "retry": self.retry}

    async def show(self) -> dict[str, object]:
        """Shows the queue by destination."""
        now = self.now
        live = {} if self.delivery is None else self.delivery.view()
        destinations = []
        for each in await self.operating.destinations(self.region, now):
            shown: dict[str, object] = attrs.asdict(each)
            shown["oldest_seconds"] = None if each.oldest is None else max(0.0, round(self.seconds() - each.oldest, 1))
            stopped = each.next_at is not None and each.next_at.year == FOREVER.year  # all mail there, by account or email
            shown["until"] = _until(each.until or (each.next_at if stopped else None))
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
        """Shows the queued recipients of an email, with reason and next attempt."""
        found = await self.operating.email(_uuid(email), self.now)
        for line in await self._about(_uuid(email), "recipients of an email shown"):
            await self.operating.record(line, self.now)
        return {"email": email, "waiting": [attrs.asdict(each) for each in found]}

    async def pause(self, kind: str, name: str, reason: str | None = None, seconds: float | None = None) -> dict[str, object]:
        """Starts no new deliveries. Deliveries in progress continue."""
        until = FOREVER if seconds is None else self.now + timedelta(seconds=seconds)
        why = _paused(reason)
        done: dict[str, object] = {"paused": name, "until": _until(until)}
        if kind == "destination":
            names = await self._destinations(name)
            await self.operating.record(self.line(INSTALLATION, "destination paused", f"{'; '.join(names)}: {why}"), self.now)
            for each in names:
                await self.queue.hold(self.region, each, "paused", why, until, ordered=True)
            done["destinations"] = names
        elif kind == "account":
            account_id = (await find_account(self.accounts, name)).id
            line = self.line(account_id, "mail paused", why)
            await self.operating.pause_account(account_id, why, until, self.now, [line])
        else:
            lines = await self._about(_uuid(name), "email paused")
            waiting, sending = await self.operating.pause_email(_uuid(name), why, until, self.now, lines)
            done |= {"recipients": waiting, "already_being_sent": sending}
        self._wake()
        return done

    async def resume(self, kind: str, name: str) -> dict[str, object]:
        """Ends a pause or a back-off, and retries at once."""
        done: dict[str, object] = {"resumed": name}
        key: UUID | Sequence[str]
        if kind == "destination":
            key = done["destinations"] = await self._destinations(name)
            await self.operating.record(self.line(INSTALLATION, "destination released", "; ".join(key)), self.now)
            count = await self._lift(key, paused=True)
        elif kind == "account":
            key = (await find_account(self.accounts, name)).id
            count = await self.operating.resume_account(key, self.now, [self.line(key, "mail released")])
        else:
            key = _uuid(name)
            count = await self.operating.retry_email(key, self.now, await self._about(key, "email released"))
        return await self._due(done, kind, key, count)

    async def retry(self, kind: str, name: str) -> dict[str, object]:
        """Retries deferred recipients now. Pauses stay in effect."""
        done: dict[str, object] = {"retried": name}
        key: UUID | Sequence[str]
        if kind == "destination":
            key = done["destinations"] = await self._destinations(name)
            count = await self._lift(key)
        elif kind == "account":
            key = (await find_account(self.accounts, name)).id
            count = await self.operating.retry_account(key, self.now)
        else:
            key = _uuid(name)
            count = await self.operating.retry_email(key, self.now)
        return await self._due(done, kind, key, count)

    async def _due(self, done: dict[str, object], kind: str, key: UUID | Sequence[str], count: int) -> dict[str, object]:
        """The answer: how many recipients are due again, and what still holds them."""
        self._wake()
        held = await self.operating.held_by(kind, key, self.region, self.now)
        return done | {"recipients": count, "held": [{"kind": of, "name": each, "reason": reason} for of, each, reason in held]}

    async def _destinations(self, text: str) -> Sequence[str]:
        """The destinations that the operator means. Raises Refused."""
        if text == EVERYTHING:
            raise Refused(f"{text!r} stands for all mail. `mailsvc queue hold` holds it, and `mailsvc queue release` ends that.")
        known = await self.operating.destination_names(self.region)
        if self.delivery is None:  # this process knows no routes
            if text not in known:
                raise Refused(f"There is no destination {text!r} with queued mail. Use a name from `mailsvc queue list`.")
            return [text]
        found = await self.delivery.named(text, known)
        if not found.names:
            raise Refused(found.why)
        return found.names

    async def _lift(self, names: Sequence[str], *, paused: bool = False) -> int:
        """Returns how many recipients are due again."""
        count = 0
        for each in names:
            await self.queue.lift(self.region, each, paused=paused)
            count += await self.operating.retry_destination(self.region, each, self.now)
        return count

    async def _about(self, email_id: UUID, action: str) -> list[Line]:
        account_id = await self.operating.account_of(email_id)
        return [] if account_id is None else [self.line(account_id, action, str(email_id))]

    def _wake(self) -> None:
        self.notify()
        if self.delivery is not None:
            self.delivery.wake()


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Refused(f"{text!r} is not the ID of an email.") from None


def _paused(reason: str | None) -> str:
    """The reason that customers see, as one sentence."""
    given = (reason or "").strip().rstrip(".")
    return f"Paused by the operator: {given}." if given else "Paused by the operator."


def _until(until: datetime | None) -> str | None:
    """Formats when a pause ends: a time, or "resumed" if only by the operator."""
    if until is None:
        return None
    return "resumed" if until.year == 9999 else until.isoformat(timespec="seconds")


def _why(sending: int, waiting: int, next_at: datetime | None, now: datetime) -> str | None:
    if not waiting:
        return "Being sent." if sending else None
    if next_at is not None and next_at > now:
        return "Waiting for the next attempt."
    return "Waiting for a connection."
