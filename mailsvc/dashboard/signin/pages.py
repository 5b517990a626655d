"""Signing in with a password or a link, proving again who one is, and signing out."""

from __future__ import annotations

import attrs

from mailsvc.dashboard.account.security import person
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import AGAIN, SESSION, SIGN_IN, Visit, area, page
from mailsvc.dashboard.safety import inside
from mailsvc.dashboard.signin.completion import Entrance, line
from mailsvc.dashboard.signin.passkeys import PasskeyEntrance
from mailsvc.dashboard.signin.password import outdated
from mailsvc.dashboard.signin.second_factor import SecondFactor

WRONG = "Incorrect email or password."


@attrs.define(eq=False)
class SignIn:
    app = area()
    desk: PageContext
    entrance: Entrance
    passkeys: PasskeyEntrance
    second: SecondFactor

    @page(app, SIGN_IN, who="anybody")
    async def ask(self, visit: Visit) -> bytes:
        next_ = inside(visit.query("next"))
        if visit.session is not None and visit.session.stage == "whole":
            return visit.redirect(next_)
        return await self._asked(visit, next_, "", {})

    @page(app, SIGN_IN, "POST", who="anybody")
    async def check(self, visit: Visit) -> bytes:
        email, password, next_ = visit.field("email").lower(), visit.form.get("password", ""), inside(visit.field("next"))
        if self.entrance.passwords.busy:
            return await self._asked(visit, next_, email, {"password": "Too many sign-ins right now. Try again in a moment."}, 429)
        subjects = self.entrance.subjects(visit, email)
        refused = await self.entrance.attempt(subjects)
        if refused is not None:
            return await self._asked(visit, next_, email, {"password": refused.sentence}, refused.status)
        user = await self.desk.users.named(email)
        if not await self.entrance.passwords.good(password, user.password if user else None) or user is None:
            await self.entrance.throttle.failed(subjects)
            if user is not None:
                self.desk.later("an audit line", self.entrance.failed(visit, user, "password"))
            return await self._asked(visit, next_, email, {"password": WRONG}, 422)
        await self.entrance.throttle.passed(subjects)
        if outdated(user.password or ""):
            await self.desk.users.set_password(user.id, await self.entrance.passwords.hash(password))
        return await self.entrance.enter(visit, user, next_, proof="password")

    # A page of its own with a button: what only looks at a link, as mail scanners do, must not use it up.

    @page(app, f"{SIGN_IN}/link", who="anybody")
    async def link(self, visit: Visit) -> bytes:
        found = await self.desk.sessions.find_link(visit.query("link"), "sign-in")
        return visit.render("signin/link.html", found=found, link=visit.query("link"))

    @page(app, f"{SIGN_IN}/link", "POST", who="anybody")
    async def follow(self, visit: Visit) -> bytes:
        found = await self.desk.sessions.take_link(visit.field("link"), "sign-in")
        user = await self.desk.users.named(found.email) if found else None
        if user is None:
            return visit.render("signin/link.html", 410, found=None, link="")
        return await self.entrance.enter(visit, user, "", proof="sign-in link")

    # Proving again who it is

    @page(app, AGAIN, who="person")
    async def again(self, visit: Visit) -> bytes:
        return await self._again(visit, inside(visit.query("next")), {})

    @page(app, AGAIN, "POST", who="person")
    async def prove(self, visit: Visit) -> bytes:
        user, next_ = await person(self.desk, visit), inside(visit.field("next"))
        field = "code" if user.totp and "code" in visit.form else "password"
        if field == "code":
            refused = await self.second.checked(visit, user)
        else:
            refused = await self.entrance.checked(visit, user, visit.form.get("password", ""), "Incorrect password.")
        if refused is not None:
            return await self._again(visit, next_, {field: refused.sentence}, refused.status)
        await visit.proved("authenticator app" if field == "code" else "password")
        return visit.redirect(next_)

    async def _again(self, visit: Visit, next_: str, errors: dict[str, str], status: int = 200) -> bytes:
        user = await person(self.desk, visit)
        identities = await self.desk.identities.of(user.id)
        known = [self.desk.providers[name] for name in sorted({one.provider for one in identities} & set(self.desk.providers))]
        connected = [provider for provider in known if provider.tells_when]
        options = await self.passkeys.options(visit, user) if user.passkey else ""
        return visit.render("signin/again.html", status, user=user, errors=errors, next=next_, passkey_options=options, connected=connected)

    @page(app, f"{SIGN_IN}/out", "POST", who="half")
    async def out(self, visit: Visit) -> bytes:
        user = await person(self.desk, visit)
        await self.desk.sessions.end(visit.who.hash, [line(visit, user, "signed out")] if visit.who.stage == "whole" else [])
        visit.set_cookie(SESSION, "", 0)
        return visit.redirect(SIGN_IN)

    async def _asked(self, visit: Visit, next_: str, email: str, errors: dict[str, str], status: int = 200) -> bytes:
        options = await self.passkeys.options(visit, None)
        return visit.render("signin/signin.html", status, next=next_, email=email, errors=errors, passkey_options=options)
