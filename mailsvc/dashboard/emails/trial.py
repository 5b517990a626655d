"""Test emails: a fixed message from one of the account's domains to the signed-in user, whose result is shown where it was sent from."""

from __future__ import annotations

import hashlib
from uuid import UUID, uuid4

import attrs

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.emails.sending import SUSPENDED, NotSent, sent
from mailsvc.dashboard.emails.shared_trial import SharedTrials
from mailsvc.dashboard.formatting import in_unicode
from mailsvc.dashboard.page import PageError, PageRequest, not_found, page, section_app
from mailsvc.dashboard.safety import HOME, inside
from mailsvc.intake import Content, Incoming, Intake, Key
from mailsvc.mail.address import Mailbox, parse_mailbox
from mailsvc.outcome import WAITING
from mailsvc.store.domains.domains import Domains
from mailsvc.store.domains.values import Domain
from mailsvc.store.mail.emails import Emails as Stored
from mailsvc.store.mail.emails import RecipientView
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.api_keys import Caller

TEST = f"{HOME}/test"
SOURCE = "test"  # the `source` of test emails
SENDER = "test"  # before the @


@attrs.frozen
class Trial:
    """A test email that was sent. `recipient`: the user. `shared`: it came from the shared test sender, and has no page."""

    email_id: UUID
    recipient: RecipientView
    shared: bool = False

    @property
    def live(self) -> bool:
        return self.recipient.status in WAITING


@attrs.define(eq=False)
class TrialPages:
    app = section_app()
    context: PageContext
    stored: Stored
    domains: Domains
    accounts: Accounts
    intake: Intake
    shared: SharedTrials

    @page(app, TEST, "POST", access="send_mail")
    async def send(self, request: PageRequest) -> bytes:
        domain = await self.domains.own(request.account_id, request.uuid(request.field("domain"), "domain"))
        if domain is None:
            raise not_found("domain")
        try:
            email_id = await self._send(request, domain)
        except NotSent as why:
            raise PageError(why.status, "Test email not sent", why.message) from None
        return request.redirect(inside(request.field("back")).partition("?")[0], test=str(email_id))

    async def of(self, request: PageRequest) -> Trial | None:
        """The test email that the page was asked to show."""
        if not request.query("test"):
            return None
        email_id = request.uuid(request.query("test"), "email")
        email = await self.stored.get(request.account_id, email_id)
        if email is None:
            recipient = await self.shared.recipient(request.account_id, email_id)
            return None if recipient is None else Trial(email_id, recipient, shared=True)
        recipients = await self.stored.recipients(request.account_id, email_id)
        return Trial(email_id, recipients[0]) if email is not None and email.source == SOURCE and recipients else None

    async def _send(self, request: PageRequest, domain: Domain) -> UUID:
        account, to = await self.accounts.get(request.account_id), request.user_session.email
        if account is None or account.suspended_at is not None:
            raise NotSent(SUSPENDED, 403)
        caller = Caller.without_key(account, domain.id)
        once = request.field("once")[:64] or uuid4().hex
        key = Key(TEST, once, hashlib.sha256(f"{domain.id} {to}".encode()).digest())
        entry = request.audit_entry("test email sent", f"from {domain.name} to {to}")
        answer = await self.intake.submit(caller, [_message(domain, to)], key, lines=[entry])
        return sent(answer, "This form was already submitted. Check your recent emails.")


def _message(domain: Domain, to: str) -> Incoming:
    name = in_unicode(domain.name)
    text = f"This test email was sent from {name}. If you can read it, the domain is set up to send email with mailsvc.\n"
    sender = Mailbox("mailsvc test", SENDER, domain.name)
    return Incoming(sender, (parse_mailbox(to),), f"Test email from {name}", Content(text=text), source=SOURCE)
