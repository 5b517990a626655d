"""The sandbox inbox, read: what the development server received for this account. Only there in development."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

import attrs

from mailsvc.http import parameters
from mailsvc.http.answer import collection, ok
from mailsvc.http.problem import not_found
from mailsvc.http.request import Request
from mailsvc.http.views import time
from mailsvc.store.detach import detached
from mailsvc.store.sandbox import SandboxEmail


class Inbox(Protocol):
    """store/sandbox; newest first, one account's only."""

    async def list(
        self, account_id: UUID, limit: int, after: UUID | None = None, before: UUID | None = None
    ) -> tuple[Sequence[SandboxEmail], bool]: ...
    async def get(self, account_id: UUID, id_: UUID) -> SandboxEmail | None: ...


@attrs.define(eq=False)
class Sandbox:
    app = collection()
    inbox: Inbox

    @app.route("/sandbox/emails", methods=["GET"])
    async def list(self, request: Request) -> bytes:
        page = parameters.page(request)
        mails, has_more = await detached(self._list(request.caller.account_id, page))
        return ok(request, {"object": "list", "has_more": has_more, "data": [_listed(mail) for mail in mails]})

    async def _list(self, account_id: UUID, page: parameters.Page) -> tuple[Sequence[SandboxEmail], bool]:
        return await self.inbox.list(account_id, page.limit, page.after, page.before)

    @app.route("/sandbox/emails/<text>", methods=["GET"])
    async def get(self, request: Request, text: str) -> bytes:
        mail = await self.inbox.get(request.caller.account_id, parameters.uuid(text, "id"))
        if mail is None:
            raise not_found("Email")
        return ok(request, {"object": "sandbox_email", **_listed(mail), **_raw(mail.message or b"")})


def _listed(mail: SandboxEmail) -> dict[str, object]:
    """`from` is the return path; `dkim` is pass when every signature is good, none without any, else fail."""
    results = {verdict.result for verdict in mail.dkim}
    return {
        "id": str(mail.id),
        "email_id": str(mail.email_id) if mail.email_id else None,
        "created_at": time(mail.received_at),
        "from": mail.sender,
        "to": list(mail.recipients),
        "dkim": "none" if not results else "pass" if results == {"pass"} else "fail",
        "signatures": [attrs.asdict(verdict) for verdict in mail.dkim],
        "tls": mail.tls,
        "size": mail.size,
    }


def _raw(raw: bytes) -> dict[str, object]:
    """The octets as text; latin-1 stands for octets that are not UTF-8, one character each."""
    try:
        return {"raw": raw.decode(), "raw_charset": "utf-8"}
    except UnicodeDecodeError:
        return {"raw": raw.decode("latin-1"), "raw_charset": "latin-1"}
