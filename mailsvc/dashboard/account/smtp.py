"""Settings → SMTP: credentials, ports and code examples for the relay."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mailsvc.dashboard import snippets
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageRequest, page, section_app
from mailsvc.dashboard.safety import HOME
from mailsvc.settings.schema import Settings
from mailsvc.store.domains.domains import Domains
from mailsvc.store.people.api_keys import Keys

SMTP = f"{HOME}/settings/smtp"
KEY = "SMTP"  # name of keys created here
IMPLICIT = "Implicit TLS"
_KINDS = {
    "465": (IMPLICIT, "recommended"),
    "2465": (IMPLICIT, "if port 465 is blocked"),
    "587": ("STARTTLS", "TLS required"),
    "2587": ("STARTTLS", "TLS required; if port 587 is blocked"),
    "25": ("STARTTLS", "TLS recommended; many networks block this port"),
}


@attrs.frozen
class Port:
    """A port of the relay. `tls` and `note` describe its security."""

    number: int
    tls: str
    note: str


@attrs.frozen
class RelayAccess:
    """How customers reach the SMTP relay. `ports` maps standard ports to actual ones."""

    host: str
    user: str
    ports: Mapping[str, int]

    @classmethod
    def of(cls, settings: Settings, opened: Mapping[str, int]) -> RelayAccess:
        """`opened`: ports that this process listens on. Empty if another process does; then the standard ones."""
        ports = opened or {number: int(number) for number in settings.smtp.listen}
        return cls(settings.delivery.ehlo_name or "localhost", settings.smtp.username, ports)

    @property
    def listed(self) -> list[Port]:
        """The ports for customers, best first."""
        return [Port(self.ports[number], *kind) for number, kind in _KINDS.items() if number in self.ports]

    @property
    def best(self) -> Port:
        """The port for clients that support both implicit TLS and STARTTLS."""
        return next(iter(self.listed), Port(465, *_KINDS["465"]))

    @property
    def starttls(self) -> Port:
        """The port for clients without implicit TLS; the best port if there is none."""
        return next((port for port in self.listed if port.tls == "STARTTLS"), self.best)


@attrs.define(eq=False)
class SmtpPages:
    app = section_app()
    context: PageContext
    relay: RelayAccess
    keys: Keys
    domains: Domains

    @page(app, SMTP)
    async def show(self, request: PageRequest) -> bytes:
        return await self._shown(request, "")

    @page(app, SMTP, "POST")
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
        sender = f"hello@{(ready or domains[0]).name}" if domains else "hello@your-domain.example"
        relay = self.relay
        port, old = [(port.number, port.tls == IMPLICIT) for port in (relay.best, relay.starttls)]
        login = snippets.Login(relay.host, port, old, relay.user, secret or "ms_…", sender, request.user_session.email)
        return request.render("settings/smtp.html", relay=relay, secret=secret, code=snippets.over_smtp(login), ready=ready)
