"""Settings: how somebody signs in. Password, authenticator app, recovery codes, and the browsers that are signed in."""

from __future__ import annotations

from datetime import timedelta

import attrs
import segno
from markupsafe import Markup

from mailsvc.dashboard.desk import Desk
from mailsvc.dashboard.page import SECURITY, SIGN_IN, Stop, Visit, area, not_found, page
from mailsvc.dashboard.safety import inside
from mailsvc.dashboard.signin import secondfactor
from mailsvc.dashboard.signin.entrance import Entrance
from mailsvc.dashboard.signin.secondfactor import SecondFactor
from mailsvc.dashboard.words import span
from mailsvc.store.users import User

FRESH = timedelta(minutes=15)  # how long a proof of who it is counts for changing how they sign in
AGAIN = f"{SIGN_IN}/again"
_DONE = {
    "password": "Your password is changed. All other sessions have ended.",
    "totp": "The authenticator app is in force.",
    "totp-off": "The authenticator app is removed.",
    "ended": "The session has ended.",
    "others": "All other sessions have ended.",
}


@attrs.define(eq=False)
class Security:
    app = area()
    desk: Desk
    entrance: Entrance
    second: SecondFactor

    @page(app, SECURITY)
    async def show(self, visit: Visit) -> bytes:
        return await self._shown(visit)

    async def _shown(self, visit: Visit, status: int = 200, **values: object) -> bytes:
        user = await self._user(visit)
        shown: dict[str, object] = {"errors": {}, "codes": None, "done": _DONE.get(visit.query("done"), "")}
        return visit.render(
            "settings/security.html",
            status,
            user=user,
            sessions=await self.desk.sessions.list(user.id),
            left=await self.desk.users.recovery_codes_left(user.id),
            **shown | values,
        )

    # Proving again who it is

    @page(app, AGAIN, who="person")
    async def again(self, visit: Visit) -> bytes:
        return visit.render("signin/again.html", errors={}, next=inside(visit.query("next")))

    @page(app, AGAIN, "POST", who="person")
    async def prove(self, visit: Visit) -> bytes:
        user = await self._user(visit)
        next_ = inside(visit.field("next"))
        subjects = [("again", str(user.id))]
        wait = self.entrance.throttle.wait(subjects)
        if wait:
            errors = {"password": f"Too many attempts. Try again in {span(max(wait, 2))}."}
            return visit.render("signin/again.html", 429, errors=errors, next=next_)
        if not await self.entrance.passwords.good(visit.form.get("password", ""), user.password):
            self.entrance.throttle.failed(subjects)
            return visit.render("signin/again.html", 422, errors={"password": "This is not your password."}, next=next_)
        await self.desk.sessions.proved(visit.who.hash)
        return visit.redirect(next_)

    def _unproved(self, visit: Visit) -> bytes | None:
        """Where somebody is sent whose proof is too old for what they want."""
        if self.desk.now() - visit.who.proved_at <= FRESH:
            return None
        return visit.redirect(AGAIN, next=SECURITY)

    # Password

    @page(app, f"{SECURITY}/password", "POST")
    async def password(self, visit: Visit) -> bytes:
        user = await self._user(visit)
        chosen = visit.form.get("password", "")
        if user.password is not None and not await self.entrance.passwords.good(visit.form.get("old", ""), user.password):
            return await self._shown(visit, 422, errors={"old": "This is not your password."})
        if user.password is None and (elsewhere := self._unproved(visit)) is not None:
            return elsewhere
        wrong = await self.entrance.passwords.wrong(chosen, user.email, user.name)
        if wrong is not None:
            return await self._shown(visit, 422, errors={"password": wrong})
        await self.desk.users.set_password(user.id, await self.entrance.passwords.hash(chosen))
        await self.desk.sessions.end_others(user.id, visit.who.hash)
        await visit.note("password changed")
        await self.entrance.notice(visit, user.email, "password was changed")
        return visit.redirect(SECURITY, done="password")

    # Authenticator app

    @page(app, f"{SECURITY}/totp", "GET", "POST")
    async def totp(self, visit: Visit) -> bytes:
        """A secret to scan; it counts once its first code is given."""
        user = await self._user(visit)
        if user.totp:
            return visit.redirect(SECURITY)
        elsewhere = self._unproved(visit)
        if elsewhere is not None:
            return elsewhere
        errors: dict[str, str] = {}
        if visit.form:
            codes = await self._confirmed(visit, user)
            if codes is not None:
                return visit.render("settings/codes.html", codes=codes)
            errors = {"code": "This is not the code that the app shows now."}
        secret = await self.desk.users.totp(user.id)
        if secret is None:
            secret = secondfactor.new_secret()
            await self.desk.users.propose_totp(user.id, secret)
        qr = Markup(segno.make(secondfactor.uri(secret, user.email), error="m").svg_inline(scale=4, border=0))  # noqa: S704  made of squares
        return visit.render("settings/totp.html", 422 if errors else 200, qr=qr, secret=secondfactor.shown(secret), errors=errors)

    async def _confirmed(self, visit: Visit, user: User) -> list[str] | None:
        """The recovery codes, when the first code was good."""
        secret = await self.desk.users.totp(user.id)
        code = visit.field("code").replace(" ", "")
        step = secondfactor.step_of(secret, code, self.desk.clock.seconds()) if secret else None
        if step is None or not await self.desk.users.take_totp(user.id, step):
            return None
        codes = await self._new_codes(user)
        await self.desk.sessions.end_others(user.id, visit.who.hash)
        await visit.note("second factor added", "authenticator app")
        await self.entrance.notice(visit, user.email, "second factor was switched on")
        return codes

    @page(app, f"{SECURITY}/codes", "POST")
    async def codes(self, visit: Visit) -> bytes:
        user = await self._user(visit)
        elsewhere = self._unproved(visit)
        if elsewhere is not None or not user.totp:
            return elsewhere or visit.redirect(SECURITY)
        await visit.note("recovery codes replaced")
        await self.entrance.notice(visit, user.email, "recovery codes were replaced")
        return visit.render("settings/codes.html", codes=await self._new_codes(user))

    @page(app, f"{SECURITY}/totp/off", "POST")
    async def totp_off(self, visit: Visit) -> bytes:
        user = await self._user(visit)
        elsewhere = self._unproved(visit)
        if elsewhere is not None:
            return elsewhere
        await self.desk.users.end_totp(user.id)
        await visit.note("second factor removed", "authenticator app")
        await self.entrance.notice(visit, user.email, "second factor was switched off")
        return visit.redirect(SECURITY, done="totp-off")

    async def _new_codes(self, user: User) -> list[str]:
        codes = secondfactor.new_codes()
        await self.desk.users.set_recovery_codes(user.id, [self.second.hashes(code)[0] for code in codes])
        return codes

    # Sessions

    @page(app, f"{SECURITY}/sessions/<text>/end", "POST")
    async def end(self, visit: Visit, text: str) -> bytes:
        if text == "others":
            await self.desk.sessions.end_others(visit.who.user_id, visit.who.hash)
            await visit.note("all other sessions ended")
            return visit.redirect(SECURITY, done="others")
        if not await self.desk.sessions.end_one(visit.who.user_id, visit.uuid(text, "session")):
            raise not_found("session")
        await visit.note("session ended")
        return visit.redirect(SECURITY, done="ended")

    async def _user(self, visit: Visit) -> User:
        user = await self.desk.users.get(visit.who.user_id)
        if user is None:
            raise Stop(403, "Not allowed", "You are not there any more.")
        return user
