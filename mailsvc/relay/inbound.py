"""Mail for ourselves: what comes to return paths of ours, and to postmaster@ and abuse@ of our own names (5321 §4.5.1, RFC 2142).

Nobody logs in for it, and nobody is relayed for: everything else is `550 5.1.1`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from uuid import UUID

import attrs

from mailsvc.mail.address import Path
from mailsvc.mail.reply import Reply
from mailsvc.relay import replies
from mailsvc.relay.spool import Arrived, InThread, Spool
from mailsvc.runtime.budget import Hold
from mailsvc.smtp.server.session import Envelope, Sink
from mailsvc.store.postgres.errors import StoreError

ROLES = frozenset({"postmaster", "abuse"})

# Reads a return path of ours: account number and email id; None when it was not made by us.
ReadReturnPath = Callable[[str], tuple[int, UUID] | None]


@attrs.frozen
class Returned:
    """What came to return paths of ours. `paths` are those that were named, each with the account's number and the email's id."""

    sender: str  # "" is the null reverse-path
    paths: tuple[tuple[str, int, UUID], ...]
    message: bytes = attrs.field(repr=False)


@attrs.frozen
class ForPostmaster:
    """What came to postmaster@ or abuse@."""

    sender: str
    recipients: tuple[str, ...]
    message: bytes = attrs.field(repr=False)


Forward = Callable[[ForPostmaster], Awaitable[Reply | None]]


@attrs.frozen
class Own:
    """`late` takes bounces and complaints, `forward` what is for the operator; None: nobody does, so none is accepted.

    Either keeps what it is given for good before it returns, or raises.
    """

    names: Collection[str]
    read: ReadReturnPath
    late: Callable[[Returned], Awaitable[Reply | None]] | None = None
    forward: Forward | None = None

    def takes(self, recipient: Path) -> bool:
        if self._is_role(recipient):
            return self.forward is not None
        return self.late is not None and self.read(recipient.address) is not None

    def sink(self, envelope: Envelope, hold: Hold, in_thread: InThread) -> Sink:
        return Spool(hold, lambda arrived: self._accept(envelope, arrived), in_thread)

    def _is_role(self, path: Path) -> bool:
        return path.local.lower() in ROLES and (not path.domain or path.domain in self.names)

    async def _accept(self, envelope: Envelope, arrived: Arrived) -> Reply:
        message = arrived.octets[:]
        sender = envelope.sender.address
        roles = tuple(r.path.address for r in envelope.recipients if self._is_role(r.path))
        paths = [(r.path.address, self.read(r.path.address)) for r in envelope.recipients]
        returned = tuple((address, *found) for address, found in paths if found is not None)
        try:
            if roles and self.forward is not None:
                refusal = await self.forward(ForPostmaster(sender, roles, message))
                if refusal is not None:
                    return refusal
            if returned and self.late is not None:
                refusal = await self.late(Returned(sender, returned, message))
                if refusal is not None:
                    return refusal
        except StoreError as error:
            return replies.of_store(error)
        return Reply(250, "Taken", "2.0.0")
