"""The page that the link of a double opt-in opens. A GET changes nothing, because programs follow links; its button confirms.

The page has no scripts. Its texts are the account's.
"""

from __future__ import annotations

from html import escape

import attrs

from mailsvc.clock import utc
from mailsvc.http import parameters
from mailsvc.http.answer import collection
from mailsvc.http.error_page import FOR_READER, or_error_page
from mailsvc.http.request import Request
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.store.audience.confirmations import Request as Asked
from mailsvc.store.audience.values import By

HEADERS = {
    **FOR_READER,
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title>
<style>:root{{--page:#f4f4f4;--text:#222;--accent:#0b57d0;--on:#fff}}
@media(prefers-color-scheme:dark){{:root{{--page:#16181c;--text:#eceef2;--accent:#a8c7fa;--on:#16181c}}}}
body{{font:16px/1.5 system-ui,sans-serif;margin:0;color:var(--text);background:var(--page)}}
main{{max-width:34rem;margin:0 auto;padding:1.5rem 1rem}}h1{{font-size:1.4rem;overflow-wrap:anywhere}}
p{{overflow-wrap:anywhere;white-space:pre-line}}button{{font:inherit;min-height:2.75rem;padding:.4rem 1.1rem;border:0;border-radius:.4rem;
background:var(--accent);color:var(--on);cursor:pointer}}button:focus-visible{{outline:3px solid var(--text);outline-offset:2px}}</style>
</head><body><main><h1 dir="auto">{title}</h1><p role="status" dir="auto">{message}</p>{form}</main></body></html>
"""
_FORM = '<form method="post"><button dir="auto">{button}</button></form>'
_WRONG = ("This link is not valid", "It has expired, or the subscription no longer exists. To subscribe, sign up again.")


@attrs.define(eq=False)
class ConfirmationPage:
    app = collection()
    context: AudienceContext

    @app.route("/confirm", methods=["GET", "HEAD"])
    async def show(self, request: Request) -> bytes:
        return await request.detached(or_error_page(request, self._show(request)))

    async def _show(self, request: Request) -> bytes:
        found = await self._asked(request)
        if found is None or found.wording is None:
            return _send(request, 404, *_WRONG)
        wording = found.wording
        if found.confirmed_at is not None:
            return _send(request, 200, wording.title, wording.done)
        if found.expires_at <= utc(self.context.contacts.clock):
            return _send(request, 404, *_WRONG)
        return _send(request, 200, wording.title, wording.message, _FORM.format(button=escape(wording.button)))

    @app.route("/confirm", methods=["POST"])
    async def confirm(self, request: Request) -> bytes:
        return await request.detached(or_error_page(request, self._confirm(request)))

    async def _confirm(self, request: Request) -> bytes:
        """Pressing the button again changes nothing."""
        found = await self._asked(request)
        if found is not None and found.wording is not None:
            wording = found.wording
            shown = f"{wording.title}\n{wording.message}\n[{wording.button}]"
            agent = (request.requestHeaders.getRawHeaders(b"user-agent") or [b""])[0][:300].decode("latin-1")
            details = {"ip": request.address(), "user_agent": agent, "email_id": str(found.email_id)}
            await self.context.preferences.confirm(found.account_id, found.id, By("confirmation", details, shown))
            self.context.changed()
        return await self._show(request)

    async def _asked(self, request: Request) -> Asked | None:
        found = await parameters.first(request, "token", self.context.links.read)
        return None if found is None else await self.context.confirmations.get(*found)


def _send(request: Request, status: int, title: str, message: str, form: str = "") -> bytes:
    for name, value in HEADERS.items():
        request.setHeader(name, value)
    page = _PAGE.format(title=escape(title), message=escape(message), form=form)
    return request.sized(status, page.encode("utf-8", "replace"))
