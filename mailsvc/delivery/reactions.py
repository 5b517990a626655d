"""Reacts to how a destination behaves: holds it, sends more slowly, and returns or moves the mail that waits for it."""

from __future__ import annotations

from collections.abc import Sequence

from mailsvc.delivery.admission.holds import Holds
from mailsvc.delivery.attempt import Attempts
from mailsvc.delivery.connection.connect import NoSource, Unreachable
from mailsvc.delivery.leases import LeaseBook
from mailsvc.delivery.shaping import Shaping, provider_of
from mailsvc.delivery.tasks import Tasks
from mailsvc.delivery.transaction import Transaction
from mailsvc.mail.reply import Reply


class Reactions:
    """Lanes report here."""

    def __init__(self, shaping: Shaping, holds: Holds, attempts: Attempts, leases: LeaseBook, tasks: Tasks) -> None:
        self._shaping, self._holds, self._attempts, self._leases, self._tasks = shaping, holds, attempts, leases, tasks

    def worked(self, destination: str) -> None:
        """The destination's servers did their work, whatever they replied."""
        self._holds.lift(destination)

    def refused(self, destination: str, replies: Sequence[Reply]) -> None:
        """Slow down or pause the provider if there is a rule for one of `replies`."""
        found = self._shaping.reaction(destination, replies)
        if found is None:
            return
        rule, _ = found
        name = provider_of(destination)
        if rule.then == "slow":
            self._holds.slow(name, rule.messages_per_minute, f"{rule.because} (rule {rule.name})", rule.seconds)
        else:
            self._holds.pause(name, f"{name} is paused because {rule.because} (rule {rule.name}).", rule.seconds)

    def unreachable(self, destination: str, why: Unreachable, waiting: list[Transaction]) -> None:
        """Hold the destination. The first waiting email gets the reason as its outcome, the others go back to the queue unchanged.

        If no attempt can ever succeed, all of them get the reason. If no source address may send, none was attempted.
        """
        if isinstance(why, NoSource):
            if why.until is None:
                self._holds.leave_to_others(provider_of(destination))
            else:
                name = destination if why.other_family else provider_of(destination)
                self._holds.wait_for_source(name, why.reason, why.until)
            self._tasks.spawn(self._leases.give_back(waiting))
            return
        if not why.permanent:
            self._holds.fail(destination, why.reason)
        settled = waiting if why.permanent else waiting[:1]
        for transaction in settled:
            self._tasks.spawn(self._attempts.unreachable(transaction, why))
        self._tasks.spawn(self._leases.give_back(waiting[len(settled) :]))
