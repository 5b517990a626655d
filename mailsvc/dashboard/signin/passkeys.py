"""Signing in with a passkey: instead of a password, as the second factor after one, or to prove again who one is."""

from __future__ import annotations

from datetime import UTC, datetime

import attrs
from twisted.logger import Logger

from mailsvc.clock import unix
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import SIGN_IN, Stop, Visit, area, page
from mailsvc.dashboard.safety import inside
from mailsvc.dashboard.signin import authenticators, tickets
from mailsvc.dashboard.signin.authenticators import Answer, NotGood, Site
from mailsvc.dashboard.signin.completion import Entrance
from mailsvc.store.people.passkeys import Passkey
from mailsvc.store.people.users import User

PROVE, MAKE = "passkey", "new passkey"
REFUSED = Stop(403, "Passkey not accepted", "Go back and try again, or sign in another way.")
log = Logger()


@attrs.define(eq=False)
class PasskeyEntrance:
    app = area()
    desk: PageContext
    entrance: Entrance

    async def options(self, visit: Visit, user: User | None) -> str:
        """What the browser is asked for, of this person or of anybody; empty where there are no passkeys."""
        site = self.desk.site
        if site is None:
            return ""
        known = await self.desk.passkeys.of(user.id) if user is not None else []
        return authenticators.to_prove(site, self.ticket(visit, PROVE), known)

    def ticket(self, visit: Visit, purpose: str) -> str:
        return tickets.issue(self.desk.secrets()[0], visit.anchor, purpose, unix(self.desk.clock))

    @page(app, f"{SIGN_IN}/passkey", "POST", who="anybody")
    async def check(self, visit: Visit) -> bytes:
        try:
            site, answer = await self.read(visit, PROVE)
            passkey = await self.desk.passkeys.find(answer.credential)
            user = await self.desk.users.get(passkey.user_id) if passkey is not None else None
            if passkey is None or user is None:
                raise NotGood("it is nobody's")
            again = visit.session is not None and visit.session.stage == "whole"
            if visit.session is not None and again and visit.session.user_id != user.id:
                raise NotGood("it is somebody else's than whose session this is")
            await self._take(visit, site, answer, passkey, user)
        except NotGood as error:
            log.info("a passkey was not taken: {reason}", reason=str(error))
            raise REFUSED from None
        if visit.session is not None and again:
            await visit.proved("passkey")
            return visit.redirect(inside(visit.field("next")))
        return await self.entrance.enter(visit, user, visit.field("next"), proof="passkey", both=True)

    async def read(self, visit: Visit, purpose: str) -> tuple[Site, Answer]:
        """What the browser sent for a ticket of ours, which is used up by it; or NotGood."""
        site, now = self.desk.site, unix(self.desk.clock)
        if site is None:
            raise NotGood("there are no passkeys at this base_url")
        answer = Answer.read(visit.form.get("answer", ""))
        if tickets.read(self.desk.secrets(), visit.anchor, purpose, answer.ticket, now) is None:
            raise NotGood("the challenge is none of ours, or too old")
        if not await self.entrance.attempts.spend(answer.ticket, datetime.fromtimestamp(now + tickets.LIFE, UTC)):
            raise NotGood("the challenge was used before")
        return site, answer

    async def _take(self, visit: Visit, site: Site, answer: Answer, passkey: Passkey, user: User) -> None:
        """The signature is good and the passkey no copy, or NotGood."""
        try:
            count, backed_up = authenticators.proved(site, answer, passkey)
        except NotGood:
            await self.entrance.failed(visit, user, f"passkey {passkey.name}")
            raise
        if not await self.desk.passkeys.used(passkey.id, count, backed_up):
            await self.entrance.failed(visit, user, f"passkey {passkey.name}, whose counter did not grow: it may have been copied")
            await self.entrance.notice(visit, user.email, f"passkey {passkey.name} was refused because it may have been copied")
            raise NotGood("its counter did not grow")
