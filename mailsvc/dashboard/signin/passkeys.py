"""Signing in with a passkey: instead of a password, as the second factor, or to confirm the identity again."""

from __future__ import annotations

from datetime import UTC, datetime

import attrs
from twisted.logger import Logger

from mailsvc.clock import unix
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import SIGN_IN, PageError, PageRequest, page, section_app
from mailsvc.dashboard.safety import inside
from mailsvc.dashboard.signin import authenticators, tickets
from mailsvc.dashboard.signin.authenticators import PasskeyError, PasskeyResponse, RelyingParty
from mailsvc.dashboard.signin.completion import Authentication
from mailsvc.store.people.passkeys import Passkey
from mailsvc.store.people.users import User

PROVE, MAKE = "passkey", "new passkey"
REFUSED = PageError(403, "Passkey not accepted", "Go back and try again, or sign in another way.")
log = Logger()


@attrs.define(eq=False)
class PasskeySignIn:
    app = section_app()
    context: PageContext
    authentication: Authentication

    async def options(self, request: PageRequest, user: User | None) -> str:
        """Options for the browser, for this user's passkeys or any. Empty where passkeys are not available."""
        relying_party = self.context.relying_party
        if relying_party is None:
            return ""
        known = await self.context.passkeys.of(user.id) if user is not None else []
        return authenticators.authentication_options(relying_party, self.ticket(request, PROVE), known)

    def ticket(self, request: PageRequest, purpose: str) -> str:
        return tickets.issue(self.context.secrets()[0], request.binding, purpose, unix(self.context.clock))

    @page(app, f"{SIGN_IN}/passkey", "POST", access="public")
    async def check(self, request: PageRequest) -> bytes:
        try:
            relying_party, answer = await self.read(request, PROVE)
            passkey = await self.context.passkeys.find(answer.credential)
            user = await self.context.users.get(passkey.user_id) if passkey is not None else None
            if passkey is None or user is None:
                raise PasskeyError("it belongs to no user")
            again = request.session is not None and request.session.stage == "whole"
            if request.session is not None and again and request.session.user_id != user.id:
                raise PasskeyError("it belongs to a different user than the session")
            await self._take(request, relying_party, answer, passkey, user)
        except PasskeyError as error:
            log.info("passkey rejected: {reason}", reason=str(error))
            raise REFUSED from None
        if request.session is not None and again:
            await request.mark_reauthenticated("passkey")
            return request.redirect(inside(request.field("next")))
        return await self.authentication.sign_in(request, user, request.field("next"), proof="passkey", both=True)

    async def read(self, request: PageRequest, purpose: str) -> tuple[RelyingParty, PasskeyResponse]:
        """Read the browser's response and use up its ticket. Raises PasskeyError."""
        relying_party, now = self.context.relying_party, unix(self.context.clock)
        if relying_party is None:
            raise PasskeyError("base_url does not allow passkeys")
        answer = PasskeyResponse.read(request.form.get("answer", ""))
        if tickets.read(self.context.secrets(), request.binding, purpose, answer.ticket, now) is None:
            raise PasskeyError("the challenge is unknown or expired")
        if not await self.authentication.attempts.spend(answer.ticket, datetime.fromtimestamp(now + tickets.LIFE, UTC)):
            raise PasskeyError("the challenge was already used")
        return relying_party, answer

    async def _take(self, request: PageRequest, relying_party: RelyingParty, answer: PasskeyResponse, passkey: Passkey, user: User) -> None:
        """Verify the signature and the counter. Raises PasskeyError."""
        try:
            count, backed_up = authenticators.verify_authentication(relying_party, answer, passkey)
        except PasskeyError:
            await self.authentication.record_failure(request, user, f"passkey {passkey.name}")
            raise
        if not await self.context.passkeys.used(passkey.id, count, backed_up):
            await self.authentication.record_failure(
                request, user, f"passkey {passkey.name}, whose counter did not grow: it may have been copied"
            )
            await self.authentication.send_notice(
                request, user.email, f"passkey {passkey.name} was refused because it may have been copied"
            )
            raise PasskeyError("its counter did not grow")
