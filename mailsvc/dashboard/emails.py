"""Emails: the list with its filters, and everything about one of them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import urlencode
from uuid import UUID

import attrs

from mailsvc.dashboard import timeline
from mailsvc.dashboard.desk import Desk
from mailsvc.dashboard.page import Visit, area, not_found, page
from mailsvc.dashboard.preview import embedded
from mailsvc.dashboard.safety import HOME, mail_csp
from mailsvc.dashboard.signin.mails import SOURCE
from mailsvc.domains.names import registrable
from mailsvc.mail import insights, mime
from mailsvc.mail.insights import Grouped, Insight
from mailsvc.mail.mime import Parsed
from mailsvc.outcome import WAITING
from mailsvc.store.domains import Domains
from mailsvc.store.emails import Emails as Stored
from mailsvc.store.emails import EmailView
from mailsvc.store.history import History
from mailsvc.store.keys import Keys
from mailsvc.store.messages import Messages
from mailsvc.store.search import Filters, Search

EMAILS = f"{HOME}/emails"
PAGE = 50
IN_THREAD = 64 * 1024  # octets above which a message is read off the reactor
SHOWN = 256 * 1024  # characters of text or source on a page; the whole is a download
_STATUSES = ("delivered", "sent", "delivery_delayed", "bounced", "complained", "failed", "scheduled", "canceled", "suppressed")
_SPANS = {"1": "Last 24 hours", "7": "Last 7 days", "30": "Last 30 days"}
_DONE = {
    "canceled": "Canceled: what had not left yet will not leave.",
    "rescheduled": "It goes out at the new time.",
    "too_late": "Too late: it is on its way already.",
}


@attrs.define(eq=False)
class Emails:
    app = area()
    desk: Desk
    stored: Stored
    search: Search
    history: History
    messages: Messages
    domains: Domains
    keys: Keys

    @page(app, EMAILS)
    async def list(self, visit: Visit) -> bytes:
        text = visit.query("q")[:200]
        found = await self._named(visit, text)
        if found is not None:
            return visit.redirect(f"{EMAILS}/{found}")
        domains, _ = await self.domains.list(visit.account_id)
        keys, _ = await self.keys.list(visit.account_id)
        chosen = {name: visit.query(name) for name in ("status", "days", "domain", "key")}
        filters = Filters(
            text=text,
            status=f"email.{chosen['status']}" if chosen["status"] in _STATUSES else "",
            since=self.desk.now() - timedelta(days=int(chosen["days"])) if chosen["days"] in _SPANS else None,
            domain_id=next((d.id for d in domains if str(d.id) == chosen["domain"]), None),
            key_id=next((k.id for k in keys if str(k.id) == chosen["key"]), None),
        )
        after = visit.uuid(visit.query("after")) if visit.query("after") else None
        result = await self.search.emails(visit.account_id, filters, PAGE, after)
        kept = {name: value for name, value in {"q": text, **chosen}.items() if value}
        older = f"{EMAILS}?{urlencode({**kept, 'after': str(result.after)})}" if result.after else None
        return visit.render(
            "emails/list.html", page=result, older=older, first=after is None, filtered=not filters.empty, q=text, chosen=chosen,
            statuses=_STATUSES, spans=_SPANS, domains=domains, keys=keys,
        )  # fmt: skip

    async def _named(self, visit: Visit, text: str) -> UUID | None:
        """The email whose whole id was searched for."""
        try:
            email_id = UUID(text)
        except ValueError:
            return None
        return email_id if await self.stored.get(visit.account_id, email_id) else None

    @page(app, f"{EMAILS}/<text>")
    async def one(self, visit: Visit, text: str) -> bytes:
        email = await self._email(visit, text)
        recipients = await self.stored.recipients(visit.account_id, email.email_id)
        attempts = await self.stored.attempts(visit.account_id, email.email_id)
        events = await self.history.events(visit.account_id, email.email_id)
        parsed = await self._parsed(visit, email)
        key = next((k for k in (await self.keys.list(visit.account_id))[0] if k.id == email.key_id), None)
        return visit.render(
            "emails/one.html",
            email=email,
            key=key,
            recipients=[(r, timeline.of_recipient(r.recipient, events, attempts)) for r in recipients],
            live=any(r.status in WAITING for r in recipients),
            can_cancel=any(r.status in ("scheduled", "queued", "delayed") for r in recipients),
            parsed=parsed,
            view=_view(visit.query("view"), parsed),
            images=visit.query("images") == "1",
            shown=SHOWN,
            source=await self._source(visit, email) if visit.query("view") == "source" else "",
            insights=await self._insights(email, parsed) if parsed else None,
            done=_DONE.get(visit.query("done"), ""),
            tomorrow=self.desk.now() + timedelta(days=1),
        )

    @page(app, f"{EMAILS}/<text>/preview")
    async def preview(self, visit: Visit, text: str) -> bytes:
        """What the frame on the email's page shows. Written by strangers: it gets no origin, no script and nothing from elsewhere."""
        email = await self._email(visit, text)
        parsed = await self._parsed(visit, email)
        if parsed is None or parsed.html is None:
            raise not_found("preview")
        html = embedded(parsed)
        csp = mail_csp(images=visit.query("images") == "1")
        return visit.send(html.encode("utf-8", "replace"), "text/html; charset=utf-8", csp=csp)

    @page(app, f"{EMAILS}/<text>/source")
    async def source(self, visit: Visit, text: str) -> bytes:
        email = await self._email(visit, text)
        message = await self._message(visit, email)
        if message is None:
            raise not_found("message")
        return _download(visit, message, "message/rfc822", f"{email.email_id}.eml")

    @page(app, f"{EMAILS}/<text>/files/<number>")
    async def file(self, visit: Visit, text: str, number: str) -> bytes:
        parsed = await self._parsed(visit, await self._email(visit, text))
        if parsed is None or not number.isdecimal() or int(number) >= len(parsed.files):
            raise not_found("file")
        file = parsed.files[int(number)]
        return _download(visit, file.content, "application/octet-stream", file.filename or f"file-{number}")

    @page(app, f"{EMAILS}/<text>/cancel", "POST")
    async def cancel(self, visit: Visit, text: str) -> bytes:
        email_id = visit.uuid(text, "email")
        result = await self.stored.cancel(visit.account_id, email_id, self.desk.now())
        if result == "not_found":
            raise not_found("email")
        if result == "canceled":
            await visit.note("email canceled", str(email_id))
        return visit.redirect(f"{EMAILS}/{email_id}", done=result)

    @page(app, f"{EMAILS}/<text>/reschedule", "POST")
    async def reschedule(self, visit: Visit, text: str) -> bytes:
        email_id = visit.uuid(text, "email")
        try:
            at = datetime.fromisoformat(visit.field("at")).replace(tzinfo=UTC)
        except ValueError:
            return visit.redirect(f"{EMAILS}/{email_id}")
        now = self.desk.now()
        result = await self.stored.reschedule(visit.account_id, email_id, min(max(at, now), now + timedelta(days=30)), now)
        if result == "not_found":
            raise not_found("email")
        if result == "rescheduled":
            await visit.note("email rescheduled", str(email_id))
        return visit.redirect(f"{EMAILS}/{email_id}", done=result)

    async def _email(self, visit: Visit, text: str) -> EmailView:
        email = await self.stored.get(visit.account_id, visit.uuid(text, "email"))
        if email is None:
            raise not_found("email")
        return email

    async def _message(self, visit: Visit, email: EmailView) -> bytes | None:
        """Mails of the service itself hold links that sign people in: they are for their recipients alone."""
        if email.source == SOURCE:
            return None
        stored = await self.messages.load(visit.account_id, email.email_id)
        return (stored.signature or b"") + stored.body if stored else None

    async def _source(self, visit: Visit, email: EmailView) -> str:
        message = await self._message(visit, email)
        return (message or b"")[:SHOWN].decode("utf-8", "replace").replace("\r\n", "\n")

    async def _insights(self, email: EmailView, parsed: Parsed) -> Grouped:
        """What its message shows, and what the last check of its domain found of DMARC."""
        make = partial(insights.of_message, parsed, email.size, email.bulk, _same_organisation)
        found: list[Insight] = make() if email.size < IN_THREAD else await self.desk.in_thread(make)
        domain = await self.domains.get(email.domain_id)
        for advice in domain.advice if domain else ():
            if advice.status == "verified":
                found.append(Insight("great", "The domain has a DMARC policy", advice.told or ""))
            else:
                why = "Large receivers ask for one."
                found.append(Insight("attention", "Publish a DMARC policy", advice.told or "", why, f"{advice.name} TXT {advice.expected}"))
        return insights.grouped(found)

    async def _parsed(self, visit: Visit, email: EmailView) -> Parsed | None:
        message = await self._message(visit, email)
        if message is None:
            return None
        try:
            if len(message) < IN_THREAD:
                return mime.parse(message)
            parsed: Parsed = await self.desk.in_thread(lambda: mime.parse(message))
            return parsed
        except mime.MimeError:
            return None


def _same_organisation(one: str, other: str) -> bool:
    return one == other or (registrable(one) is not None and registrable(one) == registrable(other))


def _view(asked: str, parsed: Parsed | None) -> str:
    if parsed is None or asked in ("text", "source", "insights"):
        return asked if parsed is not None else "none"
    return "preview" if parsed.html is not None else "text"


def _download(visit: Visit, content: bytes, kind: str, name: str) -> bytes:
    """A file that no browser opens by itself, whatever is in it."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)[-100:]
    visit.set_header("Content-Disposition", f'attachment; filename="{plain}"')
    return visit.send(content, kind, csp="default-src 'none'; sandbox")
