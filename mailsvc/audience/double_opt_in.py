"""Double opt-in: sends the emails that ask for confirmation, and signs the links in them.

The emails go through intake like every email of the account. One that is refused, for example because the domain is not verified any
more, is tried again every hour until its link expires.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable
from datetime import timedelta
from functools import partial
from html import escape
from typing import Any, Protocol
from uuid import UUID

import attrs
from twisted.logger import Logger

from mailsvc.clock import utc
from mailsvc.incoming import Content, Incoming
from mailsvc.mail.address import parse_mailbox
from mailsvc.store.audience.confirmations import Confirmations, Request
from mailsvc.store.audience.keys import HASH, AudienceKeys
from mailsvc.store.in_turn import in_turn

CHANNEL = "confirmations"  # of notifications: somebody was asked
LINK = "{{{CONFIRM_URL}}}"  # in the text of an email
PURPOSE = "confirm"
CLAIMED = timedelta(minutes=2)  # after which another process tries, if this one died or had no database
AGAIN = timedelta(hours=1)  # after a refusal
log = Logger()


class Submit(Protocol):
    def __call__(self, account_id: UUID, email: Incoming, key: str, /) -> Awaitable[UUID | str]:
        """Accept an email once for each `key`. Returns its ID, or why it was refused."""


@attrs.define(eq=False)
class ConfirmationLinks:
    keys: AudienceKeys
    base_url: str

    async def url(self, account_id: UUID, id_: UUID) -> str:
        payload = account_id.bytes + id_.bytes
        token = payload + (await self.keys.of(account_id)).sign(PURPOSE, payload)
        return f"{self.base_url}/confirm?token={base64.urlsafe_b64encode(token).decode()}"

    async def read(self, token: str) -> tuple[UUID, UUID] | None:
        """The account and the request of a link; None if this service did not make it."""
        try:
            data = base64.urlsafe_b64decode(token)
        except (binascii.Error, ValueError):
            return None
        payload, signature = data[:32], data[32:]
        if len(signature) != HASH:
            return None
        account_id = UUID(bytes=payload[:16])
        key = await self.keys.existing(account_id)
        if key is None or not key.verify(PURPOSE, payload, signature):
            return None
        return account_id, UUID(bytes=payload[16:])


@attrs.define(eq=False)
class ConfirmationSender:
    confirmations: Confirmations
    links: ConfirmationLinks
    submit: Submit
    clock: Any

    async def send_due(self) -> None:
        now = utc(self.clock)
        await in_turn([partial(self._claim_and_send, due) for due in await self.confirmations.due(now)])

    async def _claim_and_send(self, due: Request) -> None:
        now = utc(self.clock)
        if await self.confirmations.claim(due, now, now + CLAIMED):
            await self._send(due)

    async def _send(self, due: Request) -> None:
        if due.wording is None or due.expires_at <= utc(self.clock):
            await self.confirmations.sent(due, None)
            return
        answer = await self.submit(due.account_id, await self._email(due), f"confirmation/{due.id}")
        if isinstance(answer, UUID):
            await self.confirmations.sent(due, answer)
        else:
            await self.confirmations.postpone(due, utc(self.clock) + AGAIN)
            log.info("A request for confirmation was refused and is tried again in an hour: {why}", why=answer, account=due.account_id)

    async def _email(self, due: Request) -> Incoming:
        wording, url = due.wording, await self.links.url(due.account_id, due.id)
        assert wording is not None
        html = None if wording.html is None else wording.html.replace(LINK, escape(url))
        text = None if wording.text is None else wording.text.replace(LINK, url)
        return Incoming(
            parse_mailbox(wording.sender), (parse_mailbox(due.email),), wording.subject, Content(html=html, text=text), source="api"
        )
