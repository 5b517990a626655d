"""The development inbox: the emails that the sandbox received for an account. Only in development."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from mailsvc.http import parameters
from mailsvc.http.answer import collection, ok, page
from mailsvc.http.fields import described
from mailsvc.http.operations import PAGING, operation
from mailsvc.http.problem import not_found
from mailsvc.http.request import Request
from mailsvc.http.views import Listing, Value, View, const, count, maybe, text, texts, time, uuid
from mailsvc.store.mail.sandbox import Sandbox as StoredSandbox


def _verdicts(verdicts: Sequence[Any]) -> list[dict[str, Any]]:
    return [attrs.asdict(verdict) for verdict in verdicts]


_DKIM = Value(
    {
        "type": "array",
        "items": {"type": "object", "additionalProperties": True},
        **described("The result of each DKIM signature.", [{"domain": "example.com", "result": "pass"}]),
    },
    _verdicts,
)
ROW = View(
    "SandboxEmailRow",
    {
        "id": uuid("The ID in the inbox."),
        "email_id": maybe(uuid("The email's ID.")),
        "created_at": time("When it arrived.", "received_at"),
        "from": text("The envelope sender.", "bounces@send.example.com", "sender"),
        "to": texts("The envelope recipients.", ["someone@example.net"], "recipients"),
        "tls": maybe(text("The version of TLS.", "TLSv1.3")),
        "dkim": _DKIM,
        "size": count("The size in bytes.", 1234),
    },
)
EMAIL = View(
    "SandboxEmail",
    {
        "object": const("sandbox_email", "Always `sandbox_email`."),
        **ROW.values,
        "raw": text("The message.", "Subject: Hello"),
        "raw_charset": text("The character set in which `raw` has the bytes of the message.", "utf-8"),
    },
)


@attrs.define(eq=False)
class Sandbox:
    app = collection()
    inbox: StoredSandbox

    @app.route("/sandbox/emails", methods=["GET"])
    @operation("List received emails", "The emails in the development inbox, newest first.", Listing(ROW), parameters=PAGING, key="any")
    async def list(self, request: Request) -> bytes:
        wanted = parameters.page(request)
        emails, has_more = await request.detached(
            self.inbox.list(request.caller.account_id, wanted.limit or parameters.PAGE_DEFAULT, wanted.after, wanted.before)
        )
        return page(request, ROW, emails, has_more)

    @app.route("/sandbox/emails/<id>", methods=["GET"])
    @operation("Retrieve a received email", "An email as it arrived.", EMAIL, key="any")
    async def get(self, request: Request, id: str) -> bytes:
        email = await request.detached(self.inbox.get(request.caller.account_id, parameters.uuid(id, "id")))
        if email is None:
            raise not_found("Email")
        return ok(request, EMAIL.show(email, **_raw(email.message or b"")))


def _raw(message: bytes) -> dict[str, object]:
    """The bytes as text: as latin-1, one character for each byte, if they are not UTF-8."""
    try:
        return {"raw": message.decode(), "raw_charset": "utf-8"}
    except UnicodeDecodeError:
        return {"raw": message.decode("latin-1"), "raw_charset": "latin-1"}
