"""Signing in with a password or a link, and signing out."""

from __future__ import annotations

import attrs

from mailsvc.dashboard.desk import Desk
from mailsvc.dashboard.page import SESSION, SIGN_IN, Visit, area, page
from mailsvc.dashboard.safety import inside
from mailsvc.dashboard.signin.entrance import Entrance
from mailsvc.dashboard.signin.password import outdated
from mailsvc.dashboard.words import span

WRONG = "This address and this password do not belong together."


@attrs.define(eq=False)
class SignIn:
    app = area()
    desk: Desk
    entrance: Entrance

    @page(app, SIGN_IN, who="anybody")
    async def ask(self, visit: Visit) -> bytes:
        next_ = inside(visit.query("next"))
        if visit.session is not None and visit.session.stage == "whole":
            return visit.redirect(next_)
        return _asked(visit, next_, "", {})

    @page(app, SIGN_IN, "POST", who="anybody")
    async def check(self, visit: Visit) -> bytes:
        email, password, next_ = visit.field("email").lower(), visit.form.get("password", ""), inside(visit.field("next"))
        subjects = self.entrance.subjects(visit, email)
        wait = self.entrance.throttle.wait(subjects)
        if wait or self.entrance.passwords.busy:
            return _asked(visit, next_, email, {"password": f"Too many attempts. Try again in {span(max(wait, 2))}."}, 429)
        user = await self.desk.users.named(email)
        if not await self.entrance.passwords.good(password, user.password if user else None) or user is None:
            self.entrance.throttle.failed(subjects)
            if user is not None:
                for account in await self.desk.users.accounts(user.id):
                    await self.desk.audit.add(account.account_id, None, email, visit.address, "sign-in failed", "password")
            return _asked(visit, next_, email, {"password": WRONG}, 422)
        for subject in subjects:
            if subject[0] != "address":
                self.entrance.throttle.passed(subject)
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

    @page(app, f"{SIGN_IN}/out", "POST", who="half")
    async def out(self, visit: Visit) -> bytes:
        await self.desk.sessions.end(visit.who.hash)
        visit.set_cookie(SESSION, "", 0)
        return visit.redirect(SIGN_IN)


def _asked(visit: Visit, next_: str, email: str, errors: dict[str, str], status: int = 200) -> bytes:
    return visit.render("signin/signin.html", status, next=next_, email=email, errors=errors)
