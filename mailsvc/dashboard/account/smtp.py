"""Settings → SMTP: credentials, ports and code examples for the relay."""

from __future__ import annotations

import attrs

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageRequest, page, section_app
from mailsvc.dashboard.relay_access import RelayAccess
from mailsvc.dashboard.safety import HOME
from mailsvc.store.domains.domains import Domains
from mailsvc.store.people.api_keys import Keys

SMTP = f"{HOME}/settings/smtp"
KEY = "SMTP"  # name of keys created here


@attrs.define(eq=False)
class SmtpPages:
    app = section_app()
    context: PageContext
    relay: RelayAccess
    keys: Keys
    domains: Domains

    @page(app, SMTP, access="see_setup")
    async def show(self, request: PageRequest) -> bytes:
        return await self._shown(request, "")

    @page(app, SMTP, "POST", access="change_setup")
    async def key(self, request: PageRequest) -> bytes:
        """Create a key with sending access and show it once, in the code examples too."""
        entry = request.audit_entry("key created", f"{KEY} (sending_access)")
        _, secret = await self.keys.create(
            request.account_id, KEY, "sending_access", lines=[entry], created_by=request.user_session.user_id
        )
        return await self._shown(request, secret)

    async def _shown(self, request: PageRequest, secret: str) -> bytes:
        domains, _ = await self.domains.list(request.account_id)
        ready = next((domain for domain in domains if domain.may_send), None)
        code = self.context.samples.over_smtp(domains, request.user_session.email, secret)
        return request.render("settings/smtp.html", relay=self.relay, secret=secret, code=code, ready=ready)
