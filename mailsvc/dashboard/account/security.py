"""Settings: how somebody signs in. Password, authenticator app, recovery codes, and the browsers that are signed in."""

from __future__ import annotations

import attrs
import segno
from markupsafe import Markup

from mailsvc.clock import unix
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import SECURITY, Stop, Visit, area, not_found, page
from mailsvc.dashboard.signin import second_factor
from mailsvc.dashboard.signin.completion import Entrance
from mailsvc.dashboard.signin.second_factor import SecondFactor
from mailsvc.store.people.users import User

_DONE = {
    "password": "Password changed. You’ve been signed out of all other sessions.",
    "totp": "Authenticator app set up.",
    "codes": "New recovery codes generated. The old ones no longer work.",
    "totp-off": "Authenticator app removed.",
    "ended": "Session signed out.",
    "others": "All other sessions signed out.",
    "passkey": "Passkey added.",
    "passkey-named": "Passkey renamed.",
    "passkey-off": "Passkey removed.",
    "connected": "Connected. You can now sign in with it.",
    "disconnected": "Disconnected.",
    "taken": "Not connected: another user already signs in with it.",
    "only": "This is your only way to sign in. Set a password first.",
}


@attrs.define(eq=False)
class Security:
    app = area()
    desk: PageContext
    entrance: Entrance
    second: SecondFactor

    @page(app, SECURITY)
    async def show(self, visit: Visit) -> bytes:
        return await self._shown(visit)

    async def _shown(self, visit: Visit, status: int = 200, **values: object) -> bytes:
        user = await self._user(visit)
        shown: dict[str, object] = {"errors": {}, "done": _DONE.get(visit.query("done"), "")}
        return visit.render(
            "settings/security.html",
            status,
            user=user,
            sessions=await self.desk.sessions.list(user.id),
            left=await self.desk.users.recovery_codes_left(user.id),
            passkeys=await self.desk.passkeys.of(user.id),
            identities=await self.desk.identities.of(user.id),
            **shown | values,
        )

    # Password

    @page(app, f"{SECURITY}/password", "POST")
    async def password(self, visit: Visit) -> bytes:
        user = await self._user(visit)
        chosen = visit.form.get("password", "")
        if user.password is not None:
            wrong = await self.entrance.checked(visit, user, visit.form.get("old", ""), "Incorrect password.")
            if wrong is not None:
                return await self._shown(visit, wrong.status, errors={"old": wrong.sentence})
        elif not visit.fresh:
            return visit.prove_again()
        easy = await self.entrance.unfit(str(user.id), chosen, user.email, user.name, visit.who.account or "")
        if easy is not None:
            return await self._shown(visit, 422, errors={"password": easy})
        hashed = await self.entrance.passwords.hash(chosen)
        await self.desk.users.set_password(user.id, hashed, [visit.own_line("password changed")], keep=visit.who.hash)
        await self.entrance.notice(visit, user.email, "password was changed")
        return visit.redirect(SECURITY, done="password")

    # Authenticator app

    @page(app, f"{SECURITY}/totp", "GET", "POST", fresh=True)
    async def totp(self, visit: Visit) -> bytes:
        """A secret to scan; it counts once its first code is given."""
        user = await self._user(visit)
        if user.totp:
            return visit.redirect(SECURITY)
        errors: dict[str, str] = {}
        if visit.form:
            confirmed = await self._confirmed(visit, user)
            if confirmed is not None:
                return confirmed
            errors = {"code": "Incorrect code. Enter the code the app shows now."}
        secret = await self.desk.users.totp(user.id)
        if secret is None:
            secret = second_factor.new_secret()
            await self.desk.users.propose_totp(user.id, secret)
        qr = Markup(segno.make(second_factor.uri(secret, user.email), error="m").svg_inline(scale=4, border=0))  # noqa: S704  made of squares
        return visit.render("settings/totp.html", 422 if errors else 200, qr=qr, secret=second_factor.shown(secret), errors=errors)

    async def _confirmed(self, visit: Visit, user: User) -> bytes | None:
        """The first code was good: with the first second factor come recovery codes."""
        secret = await self.desk.users.totp(user.id)
        code = visit.field("code").replace(" ", "")
        step = second_factor.step_of(secret, code, unix(self.desk.clock)) if secret else None
        codes = [] if user.second_factor else second_factor.new_codes()
        lines = [visit.own_line("second factor added", "authenticator app")]
        if step is None or not await self.desk.users.begin_totp(user.id, step, self.second.all_hashed(codes), visit.who.hash, lines):
            return None
        await self.entrance.notice(visit, user.email, "two-factor authentication was turned on")
        return visit.render("settings/codes.html", codes=codes, done="totp") if codes else visit.redirect(SECURITY, done="totp")

    @page(app, f"{SECURITY}/codes", "POST", fresh=True)
    async def codes(self, visit: Visit) -> bytes:
        user = await self._user(visit)
        if not user.second_factor:
            return visit.redirect(SECURITY)
        codes = second_factor.new_codes()
        await self.desk.users.set_recovery_codes(user.id, self.second.all_hashed(codes), [visit.own_line("recovery codes replaced")])
        await self.entrance.notice(visit, user.email, "recovery codes were replaced")
        return visit.render("settings/codes.html", codes=codes, done="codes")

    @page(app, f"{SECURITY}/totp/off", "POST", fresh=True)
    async def totp_off(self, visit: Visit) -> bytes:
        user = await self._user(visit)
        await self.desk.users.end_totp(user.id, [visit.own_line("second factor removed", "authenticator app")])
        await self.entrance.notice(visit, user.email, "authenticator app was removed")
        return visit.redirect(SECURITY, done="totp-off")

    # Sessions

    @page(app, f"{SECURITY}/sessions/<text>/end", "POST")
    async def end(self, visit: Visit, text: str) -> bytes:
        if text == "others":
            await self.desk.sessions.end_others(visit.who.user_id, visit.who.hash, [visit.own_line("all other sessions ended")])
            return visit.redirect(SECURITY, done="others")
        if not await self.desk.sessions.end_one(visit.who.user_id, visit.uuid(text, "session"), [visit.own_line("session ended")]):
            raise not_found("session")
        return visit.redirect(SECURITY, done="ended")

    async def _user(self, visit: Visit) -> User:
        return await person(self.desk, visit)


async def person(desk: PageContext, visit: Visit) -> User:
    """Whoever is signed in."""
    user = await desk.users.get(visit.who.user_id)
    if user is None:
        raise Stop(403, "Not allowed", "Your user no longer exists.")
    return user
