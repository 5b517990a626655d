"""Signing in with a passkey: instead of a password, as the second factor after one, or to prove again who one is."""

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
        """What the browser is asked for, of this person or of anybody; empty where there are no passkeys."""
        site = self.context.relying_party
        if site is None:
            return ""
        known = await self.context.passkeys.of(user.id) if user is not None else []
        return authenticators.authentication_options(site, self.ticket(request, PROVE), known)

    def ticket(self, request: PageRequest, purpose: str) -> str:
        return tickets.issue(self.context.secrets()[0], request.binding, purpose, unix(self.context.clock))

    @page(app, f"{SIGN_IN}/passkey", "POST", access="public")
    async def check(self, request: PageRequest) -> bytes:
        try:
            site, answer = await self.read(request, PROVE)
            passkey = await self.context.passkeys.find(answer.credential)
            user = await self.context.users.get(passkey.user_id) if passkey is not None else None
            if passkey is None or user is None:
                raise PasskeyError("it is nobody's")
            again = request.session is not None and request.session.stage == "whole"
            if request.session is not None and again and request.session.user_id != user.id:
                raise PasskeyError("it is somebody else's than whose session this is")
            await self._take(request, site, answer, passkey, user)
        except PasskeyError as error:
            log.info("a passkey was not taken: {reason}", reason=str(error))
            raise REFUSED from None
        if request.session is not None and again:
            await request.mark_reauthenticated("passkey")
            return request.redirect(inside(request.field("next")))
        return await self.authentication.sign_in(request, user, request.field("next"), proof="passkey", both=True)

    async def read(self, request: PageRequest, purpose: str) -> tuple[RelyingParty, PasskeyResponse]:
        """What the browser sent for a ticket of ours, which is used up by it; or PasskeyError."""
        site, now = self.context.relying_party, unix(self.context.clock)
        if site is None:
            raise PasskeyError("there are no passkeys at this base_url")
        answer = PasskeyResponse.read(request.form.get("answer", ""))
        if tickets.read(self.context.secrets(), request.binding, purpose, answer.ticket, now) is None:
            raise PasskeyError("the challenge is none of ours, or too old")
        if not await self.authentication.attempts.spend(answer.ticket, datetime.fromtimestamp(now + tickets.LIFE, UTC)):
            raise PasskeyError("the challenge was used before")
        return site, answer

    async def _take(self, request: PageRequest, site: RelyingParty, answer: PasskeyResponse, passkey: Passkey, user: User) -> None:
        """The signature is good and the passkey no copy, or PasskeyError."""
        try:
            count, backed_up = authenticators.verify_authentication(site, answer, passkey)
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
