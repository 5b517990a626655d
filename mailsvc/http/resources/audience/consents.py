"""The evidence of consent, of all people or of one address, also after its contact was deleted: as a CSV file, or a page of it as JSON."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from typing import Any, get_args

import attrs
import orjson

from mailsvc.clock import iso_time
from mailsvc.http import parameters
from mailsvc.http.answer import collection, page
from mailsvc.http.operations import PAGING, Parameter, operation
from mailsvc.http.problem import invalid
from mailsvc.http.reading import Reader
from mailsvc.http.request import Request
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.http.views import Listing, View, choice, free, maybe, text, time, uuid
from mailsvc.mail import csv_file
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.store.audience.evidence import Action, Consent, Kind

COLUMNS = ("time", "email", "contact_id", "action", "kind", "target_id", "target_name", "source", "text", "details")
EMAIL = Parameter("email", "Returns only the rows of this address.", "ada@example.net", {"type": "string"})
ROW = View(
    "Consent",
    {
        "id": uuid("The row's ID."),
        "created_at": time("When it happened.", "at"),
        "email": maybe(text("The address; null once the contact is deleted.", "ada@example.net")),
        "contact_id": maybe(uuid("The contact, which may have been deleted; null if it was none.")),
        "action": choice("What the person did. `requested`: was asked to confirm.", get_args(Action), example="subscribed"),
        "kind": choice("What it is about; `all`: every broadcast.", get_args(Kind), example="topic"),
        "target_id": maybe(uuid("The segment or topic; null if it is about all.")),
        "target_name": maybe(text("Its name at that time.", "Product news")),
        "source": text("By what means: `api`, `dashboard`, `confirmation`, `preferences` or `one_click`.", "preferences"),
        "text": maybe(text("What the person was shown.", "Choose which emails you want to receive.")),
        "details": free("IP address, user agent, API key and so on, as far as they are known.", {"ip": "192.0.2.1"}, type="object"),
    },
)


@attrs.define(eq=False)
class Consents:
    app = collection()
    context: AudienceContext
    reader: Reader

    @app.route("/consents", methods=["GET"])
    @operation(
        "Retrieve the evidence of consent",
        "Who subscribed to or unsubscribed from what, when, by what means, and what they were shown. A CSV file of everything, oldest "
        "first; with `limit`, `after` or `before` a page of it as JSON, newest first.",
        "text/csv",
        pages=Listing(ROW),
        parameters=[EMAIL, *PAGING],
    )
    async def export(self, request: Request) -> bytes:
        account_id, given = request.caller.account_id, parameters.one(request, "email")
        wanted, email = parameters.page(request, default=None), _address(given) if given else ""
        of = (await request.detached(self.context.contacts.keys.of(account_id))).hash(email) if email else None
        if wanted.limit is not None:
            return page(request, ROW, *await request.detached(self.context.evidence.list(account_id, wanted, of)))
        request.content_type = b"text/csv; charset=utf-8"
        request.setHeader("content-disposition", 'attachment; filename="consents.csv"')
        request.setResponseCode(200)
        await request.stream(_lines(self.context.evidence.all(account_id, of)))
        return b""


def _address(given: str) -> str:
    """As it is stored. What is no address has no evidence, and an empty file would look like the answer."""
    try:
        return parse_mailbox(given).address
    except AddressError as wrong:
        raise invalid(f"Invalid `email` parameter. {wrong}") from None


async def _lines(pages: AsyncIterator[Sequence[Consent]]) -> AsyncGenerator[bytes, None]:
    yield csv_file.lines([COLUMNS])
    async for rows in pages:
        yield csv_file.lines(map(_row, rows))


def _row(one: Consent) -> Iterable[Any]:
    details = orjson.dumps(one.details, option=orjson.OPT_SORT_KEYS).decode()
    return (
        iso_time(one.at),
        one.email,
        one.contact_id,
        one.action,
        one.kind,
        one.target_id,
        one.target_name,
        one.source,
        one.text,
        details,
    )
