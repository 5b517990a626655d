"""What all pages share: users and sessions, templates, secrets, the clock. A single request is in page.py."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs
from jinja2 import Environment
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mailsvc.clock import utc
from mailsvc.dashboard import zones
from mailsvc.dashboard.samples import Samples
from mailsvc.dashboard.signin.authenticators import RelyingParty
from mailsvc.dashboard.signin.providers import Provider
from mailsvc.runtime.offload import InThread
from mailsvc.store.people.audit import Audit
from mailsvc.store.people.identities import Identities
from mailsvc.store.people.passkeys import Passkeys
from mailsvc.store.people.sessions import Session, Sessions
from mailsvc.store.people.single_sign_on import SingleSignOns
from mailsvc.store.people.users import Users

log = Logger()


@attrs.define(eq=False, kw_only=True)
class PageContext:
    """`base_url`: the public URL of the service. `secrets`: the first one signs form tokens and tickets, all verify them.

    `providers`: identity providers by name. `relying_party`: None where browsers do not allow passkeys.
    """

    users: Users
    sessions: Sessions
    audit: Audit
    templates: Environment
    secrets: Callable[[], Sequence[bytes]]
    base_url: str
    clock: Any
    in_thread: InThread
    has_sandbox: bool = False
    sign_up: bool = False
    sends_email: bool = False  # whether the service can send emails itself
    identities: Identities
    passkeys: Passkeys
    single_sign_ons: SingleSignOns
    providers: Mapping[str, Provider] = attrs.field(factory=dict)
    relying_party: RelyingParty | None = None
    samples: Samples

    @property
    def secure(self) -> bool:
        return self.base_url.startswith("https:")

    def now(self) -> datetime:
        return utc(self.clock)

    async def with_zone(self, session: Session, of_browser: str) -> Session:
        """The session. If its user has no time zone yet, they get that of the browser (the cookie of dashboard.js)."""
        if session.time_zone or of_browser not in zones.names():
            return session
        await self.users.suggest_zone(session.user_id, of_browser)
        return attrs.evolve(session, time_zone=of_browser)

    def later(self, what: str, work: Coroutine[Deferred[Any], Any, object]) -> None:
        """Run `work` in the background, so that the response time reveals nothing about it. A failure is logged."""
        Deferred.fromCoroutine(work).addErrback(lambda failure: log.failure("{what} failed", failure=failure, what=what))
