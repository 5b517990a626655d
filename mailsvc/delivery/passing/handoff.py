"""The hand-off of a process that accepts mail and leaves delivering to others of its machine: `intake.Handoff`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import attrs

from mailsvc.delivery.handoff import QueueOnly, Reservation
from mailsvc.delivery.passing.sender import Sender
from mailsvc.store.mail.values import NewEmail


@attrs.define(eq=False)
class PassingHandoff:
    """Recipients are stored with a lease of the process that `sender` passes the email on to, if that has room; else they are queued."""

    queue: QueueOnly
    sender: Sender

    def reserve(
        self, domain: str, size: int, bulk: bool, pool: str = "", region: str | None = None, account_id: UUID | None = None
    ) -> Reservation:
        destination = self.queue.known(domain, pool)
        if destination is None:
            return Reservation(domain.lower())
        return Reservation(destination, self.sender.lease(destination, bulk, region))

    def prepare(self, email: NewEmail) -> None:
        """The other process has the message before it can claim the email."""
        self.sender.pass_on(email)

    def writing(self, emails: Sequence[NewEmail]) -> None:
        """Nothing to do: the other process signs."""

    def deliver(self, email: NewEmail, reservations: Mapping[str, object]) -> None:
        self.sender.committed(email)

    def release(self, email_id: UUID, reservations: Mapping[str, object]) -> None:
        self.sender.dropped(email_id)
