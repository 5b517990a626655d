"""The sandbox inbox, read: what the development server received for this account. Only there in development."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import attrs

from mailsvc.http import parameters
from mailsvc.http.answer import collection, ok
from mailsvc.http.describe import COUNT, ID, PAGING, TEXT, TEXTS, TIME, const, listed, maybe, obj, told
from mailsvc.http.problem import not_found
from mailsvc.http.request import Request
from mailsvc.http.resources.email_views import time

VERDICT = {"type": "object", "description": "What a DKIM signature came to."}
MAIL = {
    "id": ID,
    "email_id": maybe(ID),
    "created_at": TIME,
    "from": TEXT,
    "to": TEXTS,
    "tls": maybe(TEXT),
    "dkim": {"type": "array", "items": VERDICT},
    "size": COUNT,
}


class ReceivedMail(Protocol):
    """A mail as it arrived over SMTP. `dkim` has a verdict (an attrs class) for each signature; lists have no `message`."""

    @property
    def id(self) -> UUID: ...
    @property
    def email_id(self) -> UUID | None: ...
    @property
    def received_at(self) -> datetime: ...
    @property
    def sender(self) -> str: ...
    @property
    def recipients(self) -> Sequence[str]: ...
    @property
    def tls(self) -> str | None: ...
    @property
    def dkim(self) -> Sequence[Any]: ...
    @property
    def size(self) -> int: ...
    @property
    def message(self) -> bytes | None: ...


class Inbox(Protocol):
    """store/mail/sandbox: one account's mails, newest first."""

    async def list(
        self, account_id: UUID, limit: int, after: UUID | None = None, before: UUID | None = None
    ) -> tuple[Sequence[ReceivedMail], bool]: ...
    async def get(self, account_id: UUID, id_: UUID, /) -> ReceivedMail | None: ...


@attrs.define(eq=False)
class Sandbox:
    app = collection()
    inbox: Inbox

    @app.route("/sandbox/emails", methods=["GET"])
    @told("What the development inbox received for the account.", listed(obj(MAIL)), parameters=PAGING, key="any")
    async def list(self, request: Request) -> bytes:
        page = parameters.page(request)
        mails, has_more = await request.detached(
            self.inbox.list(request.caller.account_id, page.limit or parameters.PAGE_DEFAULT, page.after, page.before)
        )
        return ok(request, {"object": "list", "has_more": has_more, "data": [_listed(mail) for mail in mails]})

    @app.route("/sandbox/emails/<id>", methods=["GET"])
    @told("A mail as it arrived.", obj({"object": const("sandbox_email"), **MAIL, "raw": TEXT, "raw_charset": TEXT}), key="any")
    async def get(self, request: Request, id: str) -> bytes:
        mail = await request.detached(self.inbox.get(request.caller.account_id, parameters.uuid(id, "id")))
        if mail is None:
            raise not_found("Email")
        return ok(request, {"object": "sandbox_email", **_listed(mail), **_raw(mail.message or b"")})


def _listed(mail: ReceivedMail) -> dict[str, object]:
    return {
        "id": str(mail.id),
        "email_id": None if mail.email_id is None else str(mail.email_id),
        "created_at": time(mail.received_at),
        "from": mail.sender,
        "to": list(mail.recipients),
        "tls": mail.tls,
        "dkim": [attrs.asdict(verdict) for verdict in mail.dkim],
        "size": mail.size,
    }


def _raw(message: bytes) -> dict[str, object]:
    """The octets as text; latin-1 stands for octets that are not UTF-8, one character each."""
    try:
        return {"raw": message.decode(), "raw_charset": "utf-8"}
    except UnicodeDecodeError:
        return {"raw": message.decode("latin-1"), "raw_charset": "latin-1"}
