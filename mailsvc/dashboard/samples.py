"""The code samples of an account: with its own domain as the sender, and with a key right after that was created. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from mailsvc.dashboard import snippets
from mailsvc.dashboard.relay_access import IMPLICIT, RelayAccess
from mailsvc.store.domains.values import Domain


@attrs.frozen
class Samples:
    """`base_url`: of the API."""

    base_url: str
    relay: RelayAccess

    def of(self, domains: Sequence[Domain], to: str, secret: str = "") -> list[tuple[str, str]]:
        """Sending to `to` through the API, in several languages, and over SMTP, as (name, code)."""
        login = self._login(domains, to, secret)
        over_smtp = [("SMTP", snippets.over_smtp(login)[0][1])] if self.relay.listed else []
        return snippets.all_of(self.base_url, login.key, login.sender, to) + over_smtp

    def over_smtp(self, domains: Sequence[Domain], to: str, secret: str = "") -> list[tuple[str, str]]:
        """The same over SMTP, with several clients."""
        return snippets.over_smtp(self._login(domains, to, secret))

    def _login(self, domains: Sequence[Domain], to: str, secret: str) -> snippets.Login:
        domain = next((domain for domain in domains if domain.may_send), domains[0] if domains else None)
        sender = f"hello@{domain.name if domain else 'your-domain.example'}"
        best, starttls = ((port.number, port.tls == IMPLICIT) for port in (self.relay.best, self.relay.starttls))
        return snippets.Login(self.relay.host, best, starttls, self.relay.user, secret or "ms_…", sender, to)
