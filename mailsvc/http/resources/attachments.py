"""The files of an email: list them, and download them with links that work for an hour and need no API key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid5

import attrs

from mailsvc.clock import unix
from mailsvc.http import parameters
from mailsvc.http.answer import collection, ok
from mailsvc.http.operations import PAGING, Parameter, operation
from mailsvc.http.problem import Problem, content_deleted, not_found
from mailsvc.http.request import Request
from mailsvc.http.resources.contents import GONE, Contents
from mailsvc.http.views import Listing, View, choice, const, count, iso, maybe, text, uuid
from mailsvc.mail.mime import File, Parsed
from mailsvc.net.signed_links import Opened, SignedLinks
from mailsvc.store.mail.emails import Emails, EmailView
from mailsvc.store.paging import Page

VALID = 3600.0  # seconds that a link works
PURPOSE = "download"
ROW = View(
    "AttachmentRow",
    {
        "id": uuid("The attachment's ID."),
        "filename": maybe(text("The name of the file.", "invoice.pdf")),
        "content_type": text("The media type.", "application/pdf"),
        "content_id": maybe(text("The ID by which the HTML embeds the file.", "logo")),
        "content_disposition": choice("How the file is attached.", ("attachment", "inline"), "disposition"),
        "download_url": text("A link to the file that needs no API key.", "https://api.example.com/emails/…", format="uri"),
        "expires_at": iso("When the link expires."),
        "size": count("The size in bytes.", 34567, lambda file: len(file.content)),
    },
)
ATTACHMENT = View("Attachment", {"object": const("attachment", "Always `attachment`."), **ROW.values})
TOKEN = Parameter("token", "From `download_url`.", "eyJhIjoi…", {"type": "string"}, required=True)

_MEDIA_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]{1,127}/[a-z0-9!#$&^_.+-]{1,127}\Z")  # 6838 §4.2


@attrs.define(eq=False)
class Attachments:
    app = collection()
    stored: Emails
    contents: Contents
    links: SignedLinks
    base_url: str
    clock: Any

    @app.route("/emails/<id>/attachments", methods=["GET"])
    @operation(
        "List attachments",
        "The files of an email in the order of the message; all of them without parameters.",
        Listing(ROW),
        parameters=PAGING,
    )
    async def list(self, request: Request, id: str) -> bytes:
        page = parameters.page(request, default=None)
        return await request.detached(self._list(request, parameters.uuid(id, "id"), page))

    async def _list(self, request: Request, email_id: UUID, page: Page) -> bytes:
        email = await self._email(request.caller.account_id, email_id)
        parsed = await self._parsed(request, email)
        rows = [self._shown(ROW, email, place, file) for place, file in enumerate(parsed.files)]
        found, has_more = _page(rows, page)
        return ok(request, {"object": "list", "has_more": has_more, "data": found})

    @app.route("/emails/<id>/attachments/<attachment_id>", methods=["GET"])
    @operation("Retrieve an attachment", "A file of an email with a link to download it.", ATTACHMENT)
    async def get(self, request: Request, id: str, attachment_id: str) -> bytes:
        return await request.detached(self._get(request, parameters.uuid(id, "id"), parameters.uuid(attachment_id, "attachment_id")))

    async def _get(self, request: Request, email_id: UUID, attachment_id: UUID) -> bytes:
        email = await self._email(request.caller.account_id, email_id)
        parsed = await self._parsed(request, email)
        place = _place(email_id, attachment_id, parsed.files)
        return ok(request, self._shown(ATTACHMENT, email, place, parsed.files[place]))

    @app.route("/emails/<id>/attachments/<attachment_id>/download", methods=["GET"])
    @operation(
        "Download an attachment",
        "The file itself. The link has to be used before it expires.",
        "*/*",
        parameters=[TOKEN],
        key="none",
        errors=[403],
    )
    async def download(self, request: Request, id: str, attachment_id: str) -> bytes:
        wanted = parameters.uuid(id, "id"), parameters.uuid(attachment_id, "attachment_id")
        return await request.detached(self._download(request, wanted))

    async def _download(self, request: Request, wanted: tuple[UUID, UUID]) -> bytes:
        opened = await parameters.first(request, "token", self._opened)
        if opened is None or (opened.email_id, opened.part) != wanted:
            raise Problem(403, "validation_error", "This link is not valid or has expired. Retrieve the attachment again.")
        email = await self._email(opened.account_id, opened.email_id)
        parsed = await self._parsed(request, email)
        file = parsed.files[_place(opened.email_id, opened.part, parsed.files)]
        request.content_type = (file.content_type if _MEDIA_TYPE.match(file.content_type) else "application/octet-stream").encode()
        request.setHeader("Content-Disposition", _disposition(file.filename))
        for name, value in SAFE.items():
            request.setHeader(name, value)
        return request.sized(200, file.content)

    async def _opened(self, token: str) -> Opened | None:
        return self.links.read(PURPOSE, token, unix(self.clock))

    async def _email(self, account_id: UUID, email_id: UUID) -> EmailView:
        email = await self.stored.get(account_id, email_id)
        if email is None:
            raise not_found("Email")
        return email

    async def _parsed(self, request: Request, email: EmailView) -> Parsed:
        parsed = await self.contents.of(request, email)
        if parsed is GONE:
            raise content_deleted()
        return parsed

    def _shown(self, view: View, email: EmailView, place: int, file: File) -> dict[str, Any]:
        attachment_id, expires = _id(email.email_id, place), unix(self.clock) + VALID
        token = self.links.make(PURPOSE, Opened(email.account_id, email.email_id, attachment_id), expires)
        return view.show(
            file,
            id=attachment_id,
            download_url=f"{self.base_url}/emails/{email.email_id}/attachments/{attachment_id}/download?token={token}",
            expires_at=datetime.fromtimestamp(int(expires), UTC),
        )


# A browser can only save the file, because anybody may have written it.
SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-store",
}


def _id(email_id: UUID, place: int) -> UUID:
    """Always the same, because the message never changes."""
    return uuid5(email_id, f"attachment {place}")


def _place(email_id: UUID, attachment_id: UUID, files: Sequence[File]) -> int:
    for place in range(len(files)):
        if _id(email_id, place) == attachment_id:
            return place
    raise not_found("Attachment")


def _page(rows: list[dict[str, object]], page: Page) -> tuple[list[dict[str, object]], bool]:
    """The rows of one page, in the order of the message."""
    ids = [row["id"] for row in rows]
    edge = str(page.after or page.before)
    if edge in ids:
        rows = rows[ids.index(edge) + 1 :] if page.after else rows[: ids.index(edge)]
    elif page.after or page.before:
        rows = []
    if page.limit is None or len(rows) <= page.limit:
        return rows, False
    return (rows[-page.limit :] if page.before else rows[: page.limit]), True


def _disposition(filename: str | None) -> bytes:
    """6266 §4.3: the name in full, and in ASCII for older clients."""
    name = re.sub(r"[\x00-\x1f\x7f/\\]", "_", filename or "attachment")[:200]
    plain = re.sub(r"[^ !#$&+\-.0-9A-Z^_`a-z|~]", "_", name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}".encode()
