"""Shared emails: a page for everybody who has the link, for at most 48 hours. It has no Bcc and no history, and runs nothing."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html import escape
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import unix
from mailsvc.http import parameters
from mailsvc.http.answer import collection, ok
from mailsvc.http.error_page import FOR_READER, error_page, or_error_page, wants_page
from mailsvc.http.fields import Record, Text, Wrong
from mailsvc.http.operations import Parameter, operation
from mailsvc.http.problem import DELETED, Problem, not_found
from mailsvc.http.reading import Reader
from mailsvc.http.request import Request
from mailsvc.http.resources.contents import GONE, Contents
from mailsvc.http.views import acknowledged, text
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.net.signed_links import SHARE, SHARE_MAX_SECONDS, Opened, SignedLinks
from mailsvc.store.mail.emails import Emails, EmailView, RecipientView

EMPTY = "This email has no text."
WRONG = "This link is not valid or has expired."
ASK = "Ask whoever sent you the link for a new one."
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SAME = {"sending": "queued", "uncertain": "delayed", "failed": "bounced", "complained": "delivered"}
_STATUS = {
    "queued": "Waiting to be sent",
    "delayed": "Not delivered yet: delivery is retried",
    "bounced": "Could not be delivered",
    "suppressed": "Not sent: the address is suppressed",
    "canceled": "Canceled before it was sent",
}
_PART = re.compile(r"(\d{1,9}) ?(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)(?= ?\d|\Z)", re.ASCII | re.IGNORECASE)


def _seconds(text: str) -> int:
    """A sum, such as `1h 30m`, or one part of it."""
    text = text.strip()
    seconds = sum(int(number) * UNITS[unit[0].lower()] for number, unit in _PART.findall(text))
    if seconds == 0 or _PART.sub("", text).strip():
        raise Wrong("must be a duration such as `10m`, `2 hours` or `1 day`")
    if seconds > SHARE_MAX_SECONDS:
        raise Wrong("must not exceed 48 hours")
    return seconds


SHARE_EMAIL = Record(
    title="ShareEmail",
    fields={
        "expires_in": Text(
            "How long the link works: `10m`, `2 hours`, `1h 30m`, `1 day`. By default, and at most, 48 hours.", "2 hours",
            least=1, most=40, blank=False, parse=_seconds,
        )
    },
)  # fmt: skip
SHARED = acknowledged(
    "email", "SharedEmail", "The email's ID.", url=text("The link.", "https://api.example.com/shared?token=…", format="uri")
)
TOKEN = Parameter("token", "From `url`.", "eyJhIjoi…", {"type": "string"}, required=True)

# The page has no scripts. The HTML of the email is in a frame that can only show images and open links.
HEADERS = {
    **FOR_READER,
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src https: data:; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{subject}</title>
<style>:root{{color-scheme:light dark}}
body{{font:16px system-ui,sans-serif;margin:0;color:#222;background:#f4f4f4}}main{{max-width:52rem;margin:0 auto;padding:1rem}}
h1{{font-size:1.3rem;overflow-wrap:anywhere}}dl{{display:grid;grid-template-columns:auto 1fr;gap:.2rem .8rem;overflow-wrap:anywhere}}
dt{{color:#666}}dd{{margin:0}}iframe,pre{{width:100%;box-sizing:border-box;background:#fff;border:1px solid #ddd;border-radius:.4rem}}
iframe{{height:75vh;color-scheme:light}}pre{{padding:1rem;white-space:pre-wrap;overflow-wrap:anywhere}}
@media(prefers-color-scheme:dark){{body{{color:#eceef2;background:#16181c}}dt{{color:#a4abb6}}iframe,pre{{border-color:#4a4f58}}
pre{{background:#1f2228}}}}</style></head>
<body><main><h1 dir="auto">{subject}</h1><dl><dt>From</dt><dd><bdi>{sender}</bdi></dd><dt>To</dt>
<dd><bdi>{to}</bdi></dd><dt>{label}</dt><dd>{sent}</dd></dl>
{content}</main></body></html>
"""


@attrs.define(eq=False)
class Share:
    app = collection()
    stored: Emails
    contents: Contents
    links: SignedLinks
    reader: Reader
    base_url: str
    clock: Any

    @app.route("/emails/<id>/share", methods=["POST"])
    @operation(
        "Share an email", "Creates a link that shows an email to everybody who has it.", SHARED, body=SHARE_EMAIL, body_required=False
    )
    async def share(self, request: Request, id: str) -> bytes:
        return await request.detached(self._share(request, parameters.uuid(id, "id")))

    async def _share(self, request: Request, email_id: UUID) -> bytes:
        given = await self.reader.record(request, SHARE_EMAIL) if request.received else {"expires_in": None}
        seconds = given["expires_in"] or SHARE_MAX_SECONDS
        email = await self.stored.get(request.caller.account_id, email_id)
        if email is None:
            raise not_found("Email")
        url = self.links.shared(self.base_url, email.account_id, email_id, unix(self.clock) + seconds)
        return ok(request, SHARED.show(id=email_id, url=url))

    @app.route("/shared", methods=["GET"])
    @operation(
        "View a shared email",
        "The page that a shared link opens. If the link no longer works, browsers get a page that says so.",
        "text/html",
        parameters=[TOKEN],
        key="none",
        errors=[403, 404],
    )
    async def show(self, request: Request) -> bytes:
        return await request.detached(or_error_page(request, self._show(request)))

    async def _show(self, request: Request) -> bytes:
        opened = await parameters.first(request, "token", self._opened)
        if opened is None:
            return _refused(request, Problem(403, "validation_error", WRONG), WRONG, ASK)
        email = await self.stored.get(opened.account_id, opened.email_id)
        if email is None:
            return _refused(request, not_found("Email"), "This email has been deleted.")
        parsed = await self.contents.of(request, email)
        page = _page(email, parsed.html, DELETED if parsed is GONE else parsed.text or EMPTY, await self._when(email))
        return _send(request, 200, page)

    async def _opened(self, token: str) -> Opened | None:
        return self.links.read(SHARE, token, unix(self.clock))

    async def _when(self, email: EmailView) -> tuple[str, str]:
        """A label and a text: when the email was or will be sent, or why it was not delivered. Nothing shows how it went for a Bcc."""
        recipients = await self.stored.recipients(email.account_id, email.email_id)
        named = {_address(text) for text in (*email.to, *email.cc)}
        visible = [one for one in recipients if one.address.lower() in named]
        results = {_result(one) for one in visible or recipients}
        at = datetime.strftime((email.scheduled_at or email.created_at).astimezone(UTC), "%Y-%m-%d %H:%M UTC")
        if results == {"delivered"}:
            return "Sent", at
        if "scheduled" in results:
            return "Scheduled for", at
        return "Status", _STATUS[results.pop()] if len(results) == 1 else "Not delivered to every recipient"


def _refused(request: Request, problem: Problem, message: str, advice: str = "") -> bytes:
    """A page for people; programs get the problem."""
    if not wants_page(request):
        raise problem
    return error_page(request, problem.status, message, advice)


def _send(request: Request, status: int, page: bytes) -> bytes:
    request.content_type = b"text/html; charset=utf-8"
    for name, value in HEADERS.items():
        request.setHeader(name, value)
    return request.sized(status, page)


def _address(text: str) -> str:
    try:
        return parse_mailbox(text).address.lower()
    except AddressError:  # as a client of the relay wrote it
        return ""


def _result(recipient: RecipientView) -> str:
    """Its state, or the one with the same text. A complaint is private."""
    lost = recipient.status == "failed" and recipient.reason is None  # its history was deleted
    return "delivered" if lost else _SAME.get(recipient.status, recipient.status)


def _page(email: EmailView, html: str | None, text: str, when: tuple[str, str]) -> bytes:
    if html is not None:
        framed = escape(f'<base target="_blank">{html}')
        content = f'<iframe sandbox="allow-popups allow-popups-to-escape-sandbox" srcdoc="{framed}" title="The email"></iframe>'
    else:
        content = f'<pre dir="auto">{escape(text)}</pre>'
    (label, sent), to = when, escape(", ".join([*email.to, *email.cc]))
    page = _PAGE.format(subject=escape(email.subject), sender=escape(email.sender), to=to, label=label, sent=sent, content=content)
    return page.encode("utf-8", "replace")
