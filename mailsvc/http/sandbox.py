"""The sandbox inbox, read: what the development server received for this account. Only there in development."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

import attrs

from mailsvc.http import parameters
from mailsvc.http.answer import collection, ok
from mailsvc.http.problem import not_found
from mailsvc.http.request import Request
from mailsvc.http.views import time
from mailsvc.store.detach import detached


class ReceivedMail(Protocol):
    """A mail as it arrived over SMTP. `dkim` is what checking its signatures gave."""

    @property
    def id(self) -> UUID: ...
    @property
    def received_at(self) -> datetime: ...
    @property
    def sender(self) -> str: ...
    @property
    def recipients(self) -> Sequence[str]: ...
    @property
    def subject(self) -> str: ...
    @property
    def dkim(self) -> str: ...
    @property
    def raw(self) -> bytes: ...


class Inbox(Protocol):
    """sandbox/; newest first, one account's only."""

    async def list(self, account_id: UUID, limit: int) -> Sequence[ReceivedMail]: ...
    async def get(self, account_id: UUID, mail_id: UUID) -> ReceivedMail | None: ...


@attrs.define(eq=False)
class Sandbox:
    app = collection()
    inbox: Inbox

    @app.route("/sandbox/emails", methods=["GET"])
    async def list(self, request: Request) -> bytes:
        page = parameters.page(request)
        mails = await detached(self._list(request.caller.account_id, page.limit + 1))
        data = [_listed(mail) for mail in mails[: page.limit]]
        return ok(request, {"object": "list", "has_more": len(mails) > page.limit, "data": data})

    async def _list(self, account_id: UUID, limit: int) -> Sequence[ReceivedMail]:
        return await self.inbox.list(account_id, limit)

    @app.route("/sandbox/emails/<text>", methods=["GET"])
    async def get(self, request: Request, text: str) -> bytes:
        mail = await self.inbox.get(request.caller.account_id, parameters.uuid(text, "id"))
        if mail is None:
            raise not_found("Email")
        return ok(request, {"object": "sandbox_email", **_listed(mail), **_raw(mail.raw)})


def _listed(mail: ReceivedMail) -> dict[str, object]:
    return {
        "id": str(mail.id),
        "created_at": time(mail.received_at),
        "from": mail.sender,
        "to": list(mail.recipients),
        "subject": mail.subject,
        "dkim": mail.dkim,
        "size": len(mail.raw),
    }


def _raw(raw: bytes) -> dict[str, object]:
    """The octets as text; latin-1 stands for octets that are not UTF-8, one character each."""
    try:
        return {"raw": raw.decode(), "raw_charset": "utf-8"}
    except UnicodeDecodeError:
        return {"raw": raw.decode("latin-1"), "raw_charset": "latin-1"}
