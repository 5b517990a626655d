"""One email: its timeline by recipient, content, insights, and actions (cancel, reschedule, resend, share). The list is in listing.py."""

from __future__ import annotations

import re
from collections import Counter
from datetime import timedelta
from uuid import UUID, uuid4

import attrs

from mailsvc.clock import unix
from mailsvc.dashboard import zones
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.emails import timeline
from mailsvc.dashboard.emails.preview import embedded
from mailsvc.dashboard.emails.resend import Resend
from mailsvc.dashboard.emails.sending import NotSent
from mailsvc.dashboard.formatting import result
from mailsvc.dashboard.page import PageError, PageRequest, not_found, page, section_app
from mailsvc.dashboard.safety import HOME, mail_csp
from mailsvc.dashboard.signin.mails import SOURCE
from mailsvc.domains.names import is_registrable, same_organisation
from mailsvc.insights import checks
from mailsvc.insights.checks import Grouped, Insight
from mailsvc.insights.checks.links import all_hosts
from mailsvc.insights.checks.reputation import of_facts, of_linked
from mailsvc.insights.reputation import Reputation
from mailsvc.mail import mime
from mailsvc.mail.mime import Parsed
from mailsvc.net.signed_links import SHARE_MAX_SECONDS, SignedLinks
from mailsvc.outcome import WAITING
from mailsvc.store.domains.domains import Domains
from mailsvc.store.mail.emails import Emails as Stored
from mailsvc.store.mail.emails import EmailView
from mailsvc.store.mail.history import History
from mailsvc.store.mail.messages import Messages, StoredMessage
from mailsvc.store.people.api_keys import Keys
from mailsvc.store.people.audit import Line

EMAILS = f"{HOME}/emails"
IN_THREAD = 64 * 1024  # larger messages (in bytes) are parsed in a thread
COPIES = 3  # of a message that are in memory while it is shown
SHOWN = 256 * 1024  # characters of text or source on the page
UNFOLDED = 5  # recipients; of more, the delivered ones are folded
HOURS = {"1": "1 hour", "24": "24 hours", "48": "48 hours"}  # lifetimes of a public link
_DONE = {
    "canceled": "Canceled. Unsent recipients won’t receive it.",
    "rescheduled": "Rescheduled.",
    "too_late": "Too late to change: this email is already being sent.",
    "again": "Resent. This is the new email, with its own ID.",
}


@attrs.define(eq=False)
class EmailPages:
    """`ahead`: how far in the future an email can be scheduled."""

    app = section_app()
    context: PageContext
    stored: Stored
    history: History
    messages: Messages
    domains: Domains
    keys: Keys
    resend: Resend
    links: SignedLinks
    reputation: Reputation
    ahead: timedelta

    @page(app, f"{EMAILS}/<text>", access="read_mail")
    async def one(self, request: PageRequest, text: str) -> bytes:
        return await self._shown(request, await self._email(request, text))

    async def _shown(self, request: PageRequest, email: EmailView, status: int = 200, **values: object) -> bytes:
        """`values`: results and errors of a form on this page."""
        recipients = await self.stored.recipients(request.account_id, email.email_id)
        attempts = await self.stored.attempts(request.account_id, email.email_id)
        events = await self.history.events(request.account_id, email.email_id)
        parsed = await self._parsed(request, email)
        key = next((k for k in await self.keys.ever(request.account_id) if k.id == email.key_id), None)
        found, of_domain, looking = await self._insights(email, parsed) if parsed else (None, None, False)
        defaults: dict[str, object] = {"shared": "", "not_sent": "", "errors": {}, "done": _DONE.get(request.query("done"), "")}
        defaults["refused"] = request.query("done") == "too_late"
        shown = [(r, timeline.of_recipient(r.recipient, events, attempts, request.now)) for r in recipients]
        fold = len(recipients) > UNFOLDED
        return request.render(
            "emails/one.html",
            status,
            email=email,
            key=key,
            result=result(Counter(f"email.{r.status}" for r in recipients), len(recipients), email.last_event),
            problems=[r for r in recipients if r.reason and r.status != "scheduled"],
            recipients=shown,
            open_recipients=[each for each in shown if not fold or each[0].status != "delivered"],
            folded=[each for each in shown if fold and each[0].status == "delivered"],
            live=any(r.status in WAITING for r in recipients),
            can_cancel=any(r.status in ("scheduled", "queued", "delayed") for r in recipients),
            parsed=parsed,
            view=_view(request.query("view"), parsed),
            images=request.query("images") == "1",
            shown=SHOWN,
            source=await self._source(request, email) if request.query("view") == "source" else "",
            insights=found,
            of_domain=of_domain,
            looking=looking,
            at=request.field("at") or zones.field(email.scheduled_at or self.context.now() + timedelta(days=1), request.zone),
            hours=HOURS,
            once=uuid4().hex,
            **defaults | values,
        )

    @page(app, f"{EMAILS}/<text>/preview", access="read_mail")
    async def preview(self, request: PageRequest, text: str) -> bytes:
        """The document in the preview frame. The content is untrusted: opaque origin, no scripts, no remote content unless requested."""
        email = await self._email(request, text)
        parsed = await self._parsed(request, email)
        if parsed is None or parsed.html is None:
            raise not_found("preview")
        html = await self.context.in_thread(lambda: embedded(parsed).encode("utf-8", "replace"))
        csp = mail_csp(images=request.query("images") == "1")
        return request.send(html, "text/html; charset=utf-8", csp=csp)

    @page(app, f"{EMAILS}/<text>/source", access="read_mail")
    async def source(self, request: PageRequest, text: str) -> bytes:
        email = await self._email(request, text)
        message = await self._message(request, email)
        if message is None:
            raise not_found("message")
        return _download(request, message, "message/rfc822", f"{email.email_id}.eml")

    @page(app, f"{EMAILS}/<text>/files/<number>", access="read_mail")
    async def file(self, request: PageRequest, text: str, number: str) -> bytes:
        parsed = await self._parsed(request, await self._email(request, text))
        if parsed is None or not re.fullmatch(r"[0-9]{1,6}", number) or int(number) >= len(parsed.files):
            raise not_found("file")
        file = parsed.files[int(number)]
        return _download(request, file.content, "application/octet-stream", file.filename or f"file-{number}")

    @page(app, f"{EMAILS}/<text>/cancel", "POST", access="send_mail")
    async def cancel(self, request: PageRequest, text: str) -> bytes:
        email_id = request.uuid(text, "email")
        entry = request.audit_entry("email canceled", str(email_id))
        result = await self.stored.cancel(request.account_id, email_id, self.context.now(), [entry])
        if result == "not_found":
            raise not_found("email")
        return request.redirect(f"{EMAILS}/{email_id}", done=result)

    @page(app, f"{EMAILS}/<text>/reschedule", "POST", access="send_mail")
    async def reschedule(self, request: PageRequest, text: str) -> bytes:
        email = await self._email(request, text)
        now = self.context.now()
        try:
            at = zones.upcoming(request.field("at"), request.zone, now, self.ahead, email.scheduled_at)
        except zones.BadTime as wrong:
            return await self._shown(request, email, 422, errors={"at": str(wrong)})
        entry = request.audit_entry("email rescheduled", f"{email.email_id} for {at.isoformat(timespec='minutes')}")
        result = await self.stored.reschedule(request.account_id, email.email_id, at, now, [entry])
        if result == "not_found":
            raise not_found("email")
        return request.redirect(f"{EMAILS}/{email.email_id}", done=result)

    @page(app, f"{EMAILS}/<text>/again", "POST", access="send_mail")
    async def again(self, request: PageRequest, text: str) -> bytes:
        """Resend to all recipients or to the selected one."""
        email, message = await self._readable(request, text)
        chosen = request.field("to")
        if chosen and chosen not in email.recipients:
            raise not_found("recipient")
        once = request.field("once")[:64] or uuid4().hex

        def entry(sent: UUID) -> Line:
            return request.audit_entry("email resent", f"{email.email_id} as {sent}")

        try:
            sent = await self.resend.send(email, message, [chosen] if chosen else email.recipients, once, entry)
        except NotSent as why:
            return await self._shown(request, email, 422, not_sent=why.message)
        return request.redirect(f"{EMAILS}/{sent}", done="again")

    @page(app, f"{EMAILS}/<text>/share", "POST", access="send_mail")
    async def share(self, request: PageRequest, text: str) -> bytes:
        """Create a public link. Only its audit entry is stored, and before the link is shown."""
        email = await self._email(request, text)
        if email.source == SOURCE:
            raise not_found("message")
        hours = request.field("hours") or "24"
        if hours not in HOURS:
            raise PageError(422, "Invalid expiration", "Choose when the link expires from the list.")
        expires = unix(self.context.clock) + min(int(hours) * 3600, SHARE_MAX_SECONDS)
        await request.write_audit_entry("email shared", f"{email.email_id} for {HOURS[hours]}")
        link = self.links.shared(self.context.base_url, request.account_id, email.email_id, expires)
        return await self._shown(request, email, shared=link, shared_for=HOURS[hours])

    async def _readable(self, request: PageRequest, text: str) -> tuple[EmailView, bytes]:
        """An email whose message may be read, and the message without its DKIM signature."""
        email = await self._email(request, text)
        stored = None if email.source == SOURCE else await self._load(request, email)
        if stored is None:
            raise not_found("message")
        return email, stored.body

    async def _email(self, request: PageRequest, text: str) -> EmailView:
        email = await self.stored.get(request.account_id, request.uuid(text, "email"))
        if email is None:
            raise not_found("email")
        return email

    async def _message(self, request: PageRequest, email: EmailView) -> bytes | None:
        """The stored message, or None. Sign-in emails hold links that sign people in, so only their recipients see them."""
        if email.source == SOURCE:
            return None
        stored = await self._load(request, email)
        return (stored.signature or b"") + stored.body if stored else None

    async def _load(self, request: PageRequest, email: EmailView) -> StoredMessage | None:
        """Load the message after reserving memory for it, its parsed form and the page."""

        async def reserve(size: int) -> None:
            if size >= IN_THREAD and not await request.http.turn(COPIES * size):
                raise PageError(
                    503, "Temporarily unavailable", "Too many messages are being read right now. Reload the page in a few seconds."
                )

        await reserve(email.size)  # of a broadcast's email, it is known when it is composed
        return await self.messages.load(request.account_id, email.email_id, before_rest=reserve)

    async def _source(self, request: PageRequest, email: EmailView) -> str:
        message = await self._message(request, email)
        return (message or b"")[:SHOWN].decode("utf-8", "replace").replace("\r\n", "\n")

    async def _insights(self, email: EmailView, parsed: Parsed) -> tuple[Grouped, Grouped | None, bool]:
        """Insights from the message, those of its domain, and whether DNS checks are still in progress."""

        def look() -> tuple[list[Insight], frozenset[str]]:
            mail = checks.mail_of(
                parsed, email.size, email.bulk, same_organisation, is_registrable, email.recipients, email.created_at,
                (self.reputation.tracking_host or "").removeprefix("www."),
            )  # fmt: skip
            return checks.of_mail(mail), all_hosts(mail)

        found, hosts = await self.context.in_thread(look)
        domain = await self.domains.get(email.domain_id)
        if domain is None:
            return checks.grouped(found), None, False
        listed, looking = self.reputation.linked([host for host in hosts if not same_organisation(host, domain.name)])
        facts, more = self.reputation.facts(domain)
        return checks.grouped([*found, *of_linked(listed)]), checks.grouped(of_facts(facts)), looking or more

    async def _parsed(self, request: PageRequest, email: EmailView) -> Parsed | None:
        message = await self._message(request, email)
        if message is None:
            return None
        try:
            if len(message) < IN_THREAD:
                return mime.parse(message)
            parsed: Parsed = await self.context.in_thread(lambda: mime.parse(message))
            return parsed
        except mime.MimeError:
            return None


def _view(requested: str, parsed: Parsed | None) -> str:
    if parsed is None or requested in ("text", "source", "insights"):
        return requested if parsed is not None else "none"
    return "preview" if parsed.html is not None else "text"


def _download(request: PageRequest, content: bytes, kind: str, name: str) -> bytes:
    """A download that browsers never open as a page."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)[-100:]
    request.set_header("Content-Disposition", f'attachment; filename="{plain}"')
    return request.send(content, kind, csp="default-src 'none'; sandbox")
