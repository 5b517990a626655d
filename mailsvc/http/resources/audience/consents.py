"""The evidence of consent as a CSV file: of all people, or of one address, also after its contact was deleted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from typing import Any

import attrs
import orjson

from mailsvc.clock import iso_time
from mailsvc.http import parameters
from mailsvc.http.answer import collection
from mailsvc.http.operations import Parameter, operation
from mailsvc.http.problem import invalid
from mailsvc.http.reading import Reader
from mailsvc.http.request import Request
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.mail import csv_file
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.store.audience.evidence import Consent

COLUMNS = ("time", "email", "contact_id", "action", "kind", "target_id", "target_name", "source", "text", "details")
EMAIL = Parameter("email", "Returns only the rows of this address.", "ada@example.net", {"type": "string"})


@attrs.define(eq=False)
class Consents:
    app = collection()
    context: AudienceContext
    reader: Reader

    @app.route("/consents", methods=["GET"])
    @operation(
        "Download the evidence of consent",
        "A CSV file of who subscribed to or unsubscribed from what, when, by what means, and what they were shown.",
        "text/csv",
        parameters=[EMAIL],
    )
    async def export(self, request: Request) -> bytes:
        account_id, given = request.caller.account_id, parameters.one(request, "email")
        email = _address(given) if given else ""
        request.content_type = b"text/csv; charset=utf-8"
        request.setHeader("content-disposition", 'attachment; filename="consents.csv"')
        if email:
            key = await request.detached(self.context.contacts.keys.of(account_id))
            found = await request.detached(self.context.evidence.of(account_id, key.hash(email)))
            return request.sized(200, csv_file.lines([COLUMNS, *map(_row, found[::-1])]))
        request.setResponseCode(200)
        await request.stream(_lines(self.context.evidence.all(account_id)))
        return b""


def _address(text: str) -> str:
    """As it is stored. What is no address has no evidence, and an empty file would look like the answer."""
    try:
        return parse_mailbox(text).address
    except AddressError as wrong:
        raise invalid(f"Invalid `email` parameter. {wrong}") from None


async def _lines(pages: AsyncIterator[Sequence[Consent]]) -> AsyncGenerator[bytes, None]:
    yield csv_file.lines([COLUMNS])
    async for page in pages:
        yield csv_file.lines(map(_row, page))


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
