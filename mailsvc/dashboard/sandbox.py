"""The development inbox: emails that the sandbox received."""

from __future__ import annotations

import attrs

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.emails.preview import embedded
from mailsvc.dashboard.page import PageError, PageRequest, not_found, page, section_app
from mailsvc.dashboard.safety import HOME, mail_csp
from mailsvc.mail import mime
from mailsvc.store.mail.sandbox import Sandbox, SandboxEmail

SANDBOX = f"{HOME}/sandbox"
PAGE = 50
SHOWN = 256 * 1024
COPIES = 3  # of a message that are in memory while it is shown


@attrs.define(eq=False)
class Inbox:
    app = section_app()
    context: PageContext
    sandbox: Sandbox

    @page(app, SANDBOX, access="read_mail")
    async def list(self, request: PageRequest) -> bytes:
        after = request.uuid(request.query("after")) if request.query("after") else None
        mails, more = await self.sandbox.list(request.account_id, PAGE, after)
        subjects = {}
        await _reserve(request, max((mail.size for mail in mails if mail.size < SHOWN), default=0))  # they are read one after the other
        for mail in mails:
            found = await self.sandbox.get(request.account_id, mail.id) if mail.size < SHOWN else None
            subjects[mail.id] = _subject(found)
        older = f"{SANDBOX}?after={mails[-1].id}" if more and mails else None
        return request.render("sandbox/list.html", mails=mails, subjects=subjects, older=older, first=after is None)

    @page(app, f"{SANDBOX}/<text>", access="read_mail")
    async def one(self, request: PageRequest, text: str) -> bytes:
        mail = await self._mail(request, text)
        parsed = _parsed(mail)
        view = request.query("view") or ("preview" if parsed is not None and parsed.html is not None else "text")
        source = (mail.message or b"")[:SHOWN].decode("utf-8", "replace").replace("\r\n", "\n")
        return request.render("sandbox/one.html", mail=mail, parsed=parsed, view=view, source=source, subject=_subject(mail))

    @page(app, f"{SANDBOX}/<text>/preview", access="read_mail")
    async def preview(self, request: PageRequest, text: str) -> bytes:
        parsed = _parsed(await self._mail(request, text))
        if parsed is None or parsed.html is None:
            raise not_found("preview")
        return request.send(embedded(parsed).encode("utf-8", "replace"), "text/html; charset=utf-8", csp=mail_csp(images=False))

    async def _mail(self, request: PageRequest, text: str) -> SandboxEmail:
        id_ = request.uuid(text, "mail")
        await _reserve(request, await self.sandbox.size(request.account_id, id_) or 0)
        mail = await self.sandbox.get(request.account_id, id_)
        if mail is None:
            raise not_found("mail")
        return mail


async def _reserve(request: PageRequest, size: int) -> None:
    """Reserve memory for the message, its parsed form and the page, within the budget for requests."""
    if not await request.http.turn(COPIES * size):
        raise PageError(503, "Temporarily unavailable", "Too many messages are being read right now. Reload the page in a few seconds.")


def _parsed(mail: SandboxEmail) -> mime.Parsed | None:
    try:
        return mime.parse(mail.message or b"")
    except mime.MimeError:
        return None


def _subject(mail: SandboxEmail | None) -> str:
    parsed = _parsed(mail) if mail is not None else None
    return (parsed.header("Subject") or "").strip() if parsed is not None else ""
