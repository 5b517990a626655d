"""Mail for the service: to return paths, to addresses for reports, and to postmaster@ and abuse@ of its names (5321 §4.5.1, RFC 2142).

Servers that verify a sender may also ask for postmaster@ of its domain, so that of the hosts of return paths is accepted as well.
It needs no login and is never relayed: every other recipient is refused with `550 5.1.1`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from uuid import UUID

import attrs

from mailsvc.mail.address import Path
from mailsvc.mail.reply import Reply
from mailsvc.relay import replies
from mailsvc.relay.spool import Arrived, Spool
from mailsvc.runtime.budget import Hold
from mailsvc.runtime.offload import InThread
from mailsvc.smtp.server.replies import TOO_MANY_RECIPIENTS
from mailsvc.smtp.server.session import Envelope, Session, Sink
from mailsvc.store.postgres.errors import StoreError

POSTMASTER = "postmaster"
ROLES = frozenset({POSTMASTER, "abuse"})
PATHS_LIMIT = 10  # return paths and addresses for reports of one mail; a bounce has one

# Account number and email ID of a return path; None if this installation did not make it.
ReadReturnPath = Callable[[str], tuple[int, UUID] | None]


async def _nowhere(host: str) -> bool:
    return False


@attrs.frozen
class ReturnedMail:
    """Mail to return paths. `paths` are the recipients, each with the account's number and the email's ID."""

    sender: str  # "" is the null reverse-path
    paths: tuple[tuple[str, int, UUID], ...]
    message: bytes = attrs.field(repr=False)


@attrs.frozen
class ReportMail:
    """Mail to addresses for DMARC and TLS reports. `domains` are the recipients."""

    sender: str
    domains: tuple[UUID, ...]
    message: bytes = attrs.field(repr=False)


@attrs.frozen
class PostmasterMail:
    """Mail to postmaster@ or abuse@. `client` is the sending server's address, `name` what it called itself in EHLO or HELO."""

    sender: str
    recipients: tuple[str, ...]
    client: str
    name: str
    protocol: str
    message: bytes = attrs.field(repr=False)


Forward = Callable[[PostmasterMail], Awaitable[Reply | None]]


@attrs.frozen
class InboundMail:
    """`returned` takes bounces and complaints, `reported` takes reports, `forward` takes the operator's mail. Without one, its recipients
    are refused. `read_report` returns the domain's ID of an address for reports. `has_return_path`: whether a domain has its return paths
    at this host.

    Each stores its mail durably before it returns, or returns the reply that refuses it, or raises.
    """

    names: Collection[str]
    read: ReadReturnPath
    returned: Callable[[ReturnedMail], Awaitable[Reply | None]] | None = None
    forward: Forward | None = None
    read_report: Callable[[str], UUID | None] = lambda address: None
    reported: Callable[[ReportMail], Awaitable[Reply | None]] | None = None
    has_return_path: Callable[[str], Awaitable[bool]] = _nowhere

    async def refusal(self, envelope: Envelope, recipient: Path) -> Reply | None:
        """The reply that refuses a further recipient of a mail. None: it is accepted."""
        if _is_role(recipient):
            try:
                return None if await self._has_role(recipient) else replies.NO_MAILBOX
            except StoreError as error:
                return replies.of_store(error)
        if not self.takes(recipient.address):
            return replies.NO_MAILBOX
        others = {each.path.address for each in envelope.recipients if not _is_role(each.path)}
        return TOO_MANY_RECIPIENTS if len(others | {recipient.address}) > PATHS_LIMIT else None

    def takes(self, address: str) -> bool:
        """Whether it is a return path, or an address for reports."""
        if self.reported is not None and self.read_report(address) is not None:
            return True
        return self.returned is not None and self.read(address) is not None

    def sink(self, session: Session, envelope: Envelope, hold: Hold, in_thread: InThread) -> Sink:
        return Spool(hold, lambda arrived: self._accept(session, envelope, arrived), in_thread)

    async def _has_role(self, path: Path) -> bool:
        if self.forward is None:
            return False
        if not path.domain or path.domain in self.names:
            return True
        return path.local.lower() == POSTMASTER and await self.has_return_path(path.domain)

    async def _accept(self, session: Session, envelope: Envelope, arrived: Arrived) -> Reply:
        message = arrived.data[:]
        sender = envelope.sender.address
        roles = tuple({r.path.address.lower(): r.path.address for r in envelope.recipients if _is_role(r.path)}.values())
        addresses = dict.fromkeys(r.path.address for r in envelope.recipients)
        returned = tuple({found: (address, *found) for address in addresses if (found := self.read(address)) is not None}.values())
        reports = tuple({domain for address in addresses if (domain := self.read_report(address)) is not None})
        try:
            if returned and self.returned is not None:
                refusal = await self.returned(ReturnedMail(sender, returned, message))
                if refusal is not None:
                    return refusal
            if reports and self.reported is not None:
                refusal = await self.reported(ReportMail(sender, reports, message))
                if refusal is not None:
                    return refusal
            if roles and self.forward is not None:  # last: if the client has to try again, nothing was forwarded yet
                origin = session.peer.host, session.client_name or "", session.protocol
                refusal = await self.forward(PostmasterMail(sender, roles, *origin, message))
                if refusal is not None:
                    return refusal
        except StoreError as error:
            return replies.of_store(error)
        return Reply(250, "Accepted", "2.0.0")


def _is_role(path: Path) -> bool:
    return path.local.lower() in ROLES
