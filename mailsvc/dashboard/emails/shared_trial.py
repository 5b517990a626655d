"""The shared test sender: a fixed message from the service's own domain, for accounts that have not verified a domain yet.

It goes to the signed-in user's confirmed address only, a few times a day. Intake refuses that domain to everything else.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

import attrs

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.emails.sending import SUSPENDED, NotSent, sent
from mailsvc.dashboard.page import PageError, PageRequest, page, section_app
from mailsvc.dashboard.safety import HOME, inside
from mailsvc.incoming import SHARED_TEST, Content, Incoming
from mailsvc.intake import Intake
from mailsvc.mail.address import Mailbox, parse_mailbox
from mailsvc.mail.authentication.dkim import TEST_LIFETIME
from mailsvc.store.domains.domains import Domains
from mailsvc.store.domains.values import Domain
from mailsvc.store.mail.emails import Emails as Stored
from mailsvc.store.mail.emails import RecipientView
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.api_keys import Caller
from mailsvc.store.people.shared_tests import PER_DAY, SharedTests

PATH = f"{HOME}/shared-test"
SUBJECT = "Your test email from mailsvc"
TEXT = """This test email was sent from the dashboard of mailsvc to the address that you sign in with.

It came from a shared domain that only sends this message. To send your own emails, verify a domain in the dashboard under Domains.
"""
_NOT_SENT = "Test email not sent"
LIFETIME = TEST_LIFETIME * 2 // 3  # seconds: what arrives last still has a valid signature when the recipient checks it


@attrs.frozen
class Offer:
    """A form that sends a test email. `once` identifies it; `confirmed`: whether the user's address is."""

    once: UUID
    confirmed: bool


@attrs.define(eq=False)
class SharedTrials:
    """`sender`: None if the installation has no shared test sender."""

    app = section_app()
    context: PageContext
    tests: SharedTests
    domains: Domains
    accounts: Accounts
    intake: Intake
    stored: Stored
    sender: Mailbox | None

    async def offer(self, request: PageRequest) -> Offer | None:
        """None if the account can send from a domain of its own, or if there is no shared test sender."""
        if await self._domain() is None or await self._own_domain(request):
            return None
        return Offer(uuid4(), request.user_session.verified)

    @page(app, PATH, "POST", access="send_mail")
    async def send(self, request: PageRequest) -> bytes:
        domain, id_ = await self._domain(), request.uuid(request.field("once"), "form")
        if domain is None:
            raise PageError(404, _NOT_SENT, "This installation has no shared test sender.")
        if await self._own_domain(request):
            raise PageError(409, _NOT_SENT, "Your account has a verified domain. Send a test email from there.")
        if not request.user_session.verified:
            raise PageError(403, _NOT_SENT, "Confirm your email address in Settings → Profile first.")
        try:
            await self._send(request, domain, id_)
        except NotSent as why:
            raise PageError(why.status, _NOT_SENT, why.message) from None
        return request.redirect(inside(request.field("back")).partition("?")[0], test=str(id_))

    async def recipient(self, account_id: UUID, id_: UUID) -> RecipientView | None:
        """What happened to one of the account's test emails of the last day."""
        email_id, domain = await self.tests.email(account_id, id_), await self._domain()
        if email_id is None or domain is None:
            return None
        recipients = await self.stored.recipients(domain.account_id, email_id)
        return recipients[0] if recipients else None

    async def _domain(self) -> Domain | None:
        """The domain of the shared test sender, if it can send now."""
        found = None if self.sender is None else await self.domains.called(self.sender.domain)
        return found if found is not None and found.may_send_tests else None

    async def _own_domain(self, request: PageRequest) -> bool:
        return any(domain.may_send for domain in (await self.domains.list(request.account_id))[0])

    async def _send(self, request: PageRequest, domain: Domain, id_: UUID) -> None:
        """Send it once, however often the form is sent."""
        account, to = await self.accounts.get(request.account_id), request.user_session.email
        if account is None or account.suspended_at is not None:
            raise NotSent(SUSPENDED, 403)
        taken = await self.tests.take(account.id, id_, [request.audit_entry("test email sent", f"from the shared test sender to {to}")])
        if taken == "limit":
            raise NotSent(f"An account can send {PER_DAY} test emails a day from the shared test sender. Try again tomorrow.", 429)
        if taken == "new":
            await self._submit(domain, account.id, id_, to)

    async def _submit(self, domain: Domain, account_id: UUID, id_: UUID, to: str) -> None:
        caller = Caller.of_service(domain.account_id, domain.id)
        try:
            answer = await self.intake.submit(caller, [self._message(to)])
            await self.tests.sent(account_id, id_, sent(answer, "It couldn’t be sent. Try again."))
        except NotSent:
            await self.tests.give_back(account_id, id_)
            raise

    def _message(self, to: str) -> Incoming:
        assert self.sender is not None
        content, lifetime = Content(text=TEXT), timedelta(seconds=LIFETIME)
        return Incoming(self.sender, (parse_mailbox(to),), SUBJECT, content, source=SHARED_TEST, lifetime=lifetime)
