"""Settings → Security: password, authenticator app, recovery codes, active sessions."""

from __future__ import annotations

import attrs
import segno
from markupsafe import Markup

from mailsvc.clock import unix
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import SECURITY, PageError, PageRequest, not_found, page, section_app
from mailsvc.dashboard.signin import second_factor
from mailsvc.dashboard.signin.completion import Authentication
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
    app = section_app()
    context: PageContext
    authentication: Authentication
    second: SecondFactor

    @page(app, SECURITY, access="member")
    async def show(self, request: PageRequest) -> bytes:
        return await self._shown(request)

    async def _shown(self, request: PageRequest, status: int = 200, **values: object) -> bytes:
        user = await self._user(request)
        shown: dict[str, object] = {"errors": {}, "done": _DONE.get(request.query("done"), "")}
        shown["refused"] = request.query("done") in ("taken", "only")
        return request.render(
            "settings/security.html",
            status,
            user=user,
            sessions=await self.context.sessions.list(user.id),
            left=await self.context.users.recovery_codes_left(user.id),
            passkeys=await self.context.passkeys.of(user.id),
            identities=await self.context.identities.of(user.id),
            **shown | values,
        )

    # Password

    @page(app, f"{SECURITY}/password", "POST", access="member")
    async def password(self, request: PageRequest) -> bytes:
        user = await self._user(request)
        chosen = request.form.get("password", "")
        if user.password is not None:
            wrong = await self.authentication.check_password(request, user, request.form.get("old", ""), "Incorrect password.")
            if wrong is not None:
                return await self._shown(request, wrong.status, errors={"old": wrong.message})
        elif not request.reauthenticated:
            return request.ask_to_reauthenticate()
        easy = await self.authentication.password_problem(str(user.id), chosen, user.email, user.name, request.user_session.account or "")
        if easy is not None:
            return await self._shown(request, 422, errors={"password": easy})
        hashed = await self.authentication.passwords.hash(chosen)
        await self.context.users.set_password(
            user.id, hashed, [request.own_audit_entry("password changed")], keep=request.user_session.hash
        )
        await self.authentication.send_notice(request, user.email, "password was changed")
        return request.redirect(SECURITY, done="password")

    # Authenticator app

    @page(app, f"{SECURITY}/totp", "GET", "POST", access="member", reauthenticate=True)
    async def totp(self, request: PageRequest) -> bytes:
        """Show a secret to scan. It takes effect with its first correct code."""
        user = await self._user(request)
        if user.totp:
            return request.redirect(SECURITY)
        errors: dict[str, str] = {}
        if request.form:
            confirmed = await self._confirmed(request, user)
            if confirmed is not None:
                return confirmed
            errors = {"code": "Incorrect code. Enter the code the app shows now."}
        secret = await self.context.users.totp(user.id)
        if secret is None:
            secret = second_factor.new_secret()
            await self.context.users.propose_totp(user.id, secret)
        qr = Markup(segno.make(second_factor.uri(secret, user.email), error="m").svg_inline(scale=4, border=0))  # noqa: S704  made of squares
        return request.render("settings/totp.html", 422 if errors else 200, qr=qr, secret=second_factor.shown(secret), errors=errors)

    async def _confirmed(self, request: PageRequest, user: User) -> bytes | None:
        """Turn the app on if its code is correct, else None. If it is the first second factor, show recovery codes."""
        secret = await self.context.users.totp(user.id)
        code = request.field("code").replace(" ", "")
        step = second_factor.step_of(secret, code, unix(self.context.clock)) if secret else None
        codes = [] if user.second_factor else second_factor.new_codes()
        lines = [request.own_audit_entry("second factor added", "authenticator app")]
        if step is None or not await self.context.users.begin_totp(
            user.id, step, self.second.all_hashed(codes), request.user_session.hash, lines
        ):
            return None
        await self.authentication.send_notice(request, user.email, "two-factor authentication was turned on")
        return request.render("settings/codes.html", codes=codes, done="totp") if codes else request.redirect(SECURITY, done="totp")

    @page(app, f"{SECURITY}/codes", "POST", access="member", reauthenticate=True)
    async def codes(self, request: PageRequest) -> bytes:
        user = await self._user(request)
        if not user.second_factor:
            return request.redirect(SECURITY)
        codes = second_factor.new_codes()
        await self.context.users.set_recovery_codes(
            user.id, self.second.all_hashed(codes), [request.own_audit_entry("recovery codes replaced")]
        )
        await self.authentication.send_notice(request, user.email, "recovery codes were replaced")
        return request.render("settings/codes.html", codes=codes, done="codes")

    @page(app, f"{SECURITY}/totp/off", "POST", access="member", reauthenticate=True)
    async def totp_off(self, request: PageRequest) -> bytes:
        user = await self._user(request)
        if not await self.context.users.end_totp(user.id, [request.own_audit_entry("second factor removed", "authenticator app")]):
            return request.redirect(SECURITY)
        await self.authentication.send_notice(request, user.email, "authenticator app was removed")
        return request.redirect(SECURITY, done="totp-off")

    # Sessions

    @page(app, f"{SECURITY}/sessions/<text>/end", "POST", access="member")
    async def end(self, request: PageRequest, text: str) -> bytes:
        if text == "others":
            await self.context.sessions.end_others(
                request.user_session.user_id, request.user_session.hash, [request.own_audit_entry("all other sessions ended")]
            )
            return request.redirect(SECURITY, done="others")
        if not await self.context.sessions.end_one(
            request.user_session.user_id, request.uuid(text, "session"), [request.own_audit_entry("session ended")]
        ):
            raise not_found("session")
        return request.redirect(SECURITY, done="ended")

    async def _user(self, request: PageRequest) -> User:
        return await person(self.context, request)


async def person(context: PageContext, request: PageRequest) -> User:
    """The signed-in user."""
    user = await context.users.get(request.user_session.user_id)
    if user is None:
        raise PageError(403, "Not allowed", "Your user no longer exists.")
    return user
