"""Signing in with a password or a link, confirming one's identity again, signing out."""

from __future__ import annotations

import attrs

from mailsvc.dashboard.account.security import person
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import FIRST, REAUTHENTICATE, SESSION, SIGN_IN, PageRequest, page, section_app
from mailsvc.dashboard.safety import HOME, inside
from mailsvc.dashboard.signin.completion import Authentication, audit_entry
from mailsvc.dashboard.signin.passkeys import PasskeySignIn
from mailsvc.dashboard.signin.password import outdated
from mailsvc.dashboard.signin.second_factor import SecondFactor
from mailsvc.domains.names import typed_address

WRONG = "Incorrect email or password."


@attrs.define(eq=False)
class SignIn:
    app = section_app()
    context: PageContext
    authentication: Authentication
    passkeys: PasskeySignIn
    second: SecondFactor

    @page(app, SIGN_IN, access="public")
    async def form(self, request: PageRequest) -> bytes:
        next_ = inside(request.query("next"))
        if request.session is not None and request.session.stage == "whole":
            return request.redirect(next_)
        return await self.shown(request, next_, "", {})

    @page(app, SIGN_IN, "POST", access="public")
    async def check(self, request: PageRequest) -> bytes:
        email, password, next_ = typed_address(request.field("email")), request.form.get("password", ""), inside(request.field("next"))
        if self.authentication.passwords.busy:
            return await self.shown(request, next_, email, {"password": "Too many sign-ins right now. Try again in a moment."}, 429)
        subjects = self.authentication.throttle_subjects(request, email)
        refused = await self.authentication.throttled(subjects)
        if refused is not None:
            return await self.shown(request, next_, email, {"password": refused.message}, refused.status)
        user = await self.context.users.named(email)
        if not await self.authentication.passwords.verify(password, user.password if user else None) or user is None:
            await self.authentication.throttle.failed(subjects)
            answer = await self.shown(request, next_, email, {"password": WRONG}, 422)
            if user is not None:
                self.context.later("writing an audit entry", self.authentication.record_failure(request, user, "password"))
            return answer
        await self.authentication.throttle.passed(subjects)
        if outdated(user.password or ""):
            user = await self.context.users.hash_again(user, await self.authentication.passwords.hash(password))
        return await self.authentication.sign_in(request, user, next_, proof="password")

    # The link opens a page with a button, since mail scanners that open links must not use it up.

    @page(app, f"{SIGN_IN}/link", access="public")
    async def link(self, request: PageRequest) -> bytes:
        found = await self.context.sessions.find_link(request.query("link"), "sign-in")
        return request.render("signin/link.html", found=found, link=request.query("link"))

    @page(app, f"{SIGN_IN}/link", "POST", access="public")
    async def follow(self, request: PageRequest) -> bytes:
        found = await self.context.sessions.take_link(request.field("link"), "sign-in")
        user = await self.context.users.named(found.email) if found else None
        if user is None:
            return request.render("signin/link.html", 410, found=None, link="")
        return await self.authentication.sign_in(request, user, "", proof="sign-in link")

    # The link worked once: without a password or a passkey there would be no way to come back.

    @page(app, FIRST, access="user")
    async def first(self, request: PageRequest) -> bytes:
        return self._first(request, {}) if request.user_session.no_way_back else request.redirect(HOME)

    @page(app, FIRST, "POST", access="user")
    async def choose(self, request: PageRequest) -> bytes:
        """Set the first password. The session alone proves who it is, however old it is: there is nothing else to ask for."""
        if not request.user_session.no_way_back:
            return request.redirect(HOME)
        user, chosen = await person(self.context, request), request.form.get("password", "")
        easy = await self.authentication.password_problem(str(user.id), chosen, user.email, user.name, request.user_session.account or "")
        if easy is not None:
            return self._first(request, {"password": easy})
        hashed = await self.authentication.passwords.hash(chosen)
        entries = [request.own_audit_entry("password changed", "first sign-in")]
        await self.context.users.set_password(user.id, hashed, entries, keep=request.user_session.hash)
        await self.authentication.send_notice(request, user.email, "password was set")
        return request.redirect(HOME)

    def _first(self, request: PageRequest, errors: dict[str, str]) -> bytes:
        passkeys = self.context.relying_party is not None and request.reauthenticated
        return request.render("signin/first.html", 422 if errors else 200, errors=errors, passkeys=passkeys)

    # Confirming the identity again

    @page(app, REAUTHENTICATE, access="user")
    async def again(self, request: PageRequest) -> bytes:
        return await self._again(request, inside(request.query("next")), {})

    @page(app, REAUTHENTICATE, "POST", access="user")
    async def prove(self, request: PageRequest) -> bytes:
        user, next_ = await person(self.context, request), inside(request.field("next"))
        field = "code" if user.totp and "code" in request.form else "password"
        if field == "code":
            refused = await self.second.checked(request, user)
        else:
            refused = await self.authentication.check_password(request, user, request.form.get("password", ""), "Incorrect password.")
        if refused is not None:
            return await self._again(request, next_, {field: refused.message}, refused.status)
        await request.mark_reauthenticated("authenticator app" if field == "code" else "password")
        return request.redirect(next_)

    async def _again(self, request: PageRequest, next_: str, errors: dict[str, str], status: int = 200) -> bytes:
        if request.user_session.no_way_back:
            return request.redirect(FIRST)
        user = await person(self.context, request)
        identities = await self.context.identities.of(user.id)
        known = [self.context.providers[name] for name in sorted({one.provider for one in identities} & set(self.context.providers))]
        connected = [provider for provider in known if provider.reports_sign_in_time]
        options = await self.passkeys.options(request, user) if user.passkey else ""
        found = await self.context.single_sign_ons.of_address(user.email)
        single = found is not None and found.account_id in [each.account_id for each in await self.context.users.accounts(user.id)]
        return request.render(
            "signin/again.html", status, user=user, errors=errors, next=next_, passkey_options=options, connected=connected,
            single_sign_on=single, form=request.field("form") or request.query("form"),
        )  # fmt: skip

    @page(app, f"{SIGN_IN}/out", "POST", access="first_factor")
    async def out(self, request: PageRequest) -> bytes:
        user = await person(self.context, request)
        await self.context.sessions.end(
            request.user_session.hash, [audit_entry(request, user, "signed out")] if request.user_session.stage == "whole" else []
        )
        request.set_cookie(SESSION, "", 0)
        return request.redirect(SIGN_IN)

    async def shown(self, request: PageRequest, next_: str, email: str, errors: dict[str, str], status: int = 200) -> bytes:
        """The form. Below an address at a domain whose members must sign in with its provider, it says so."""
        options = await self.passkeys.options(request, None)
        found = await self.context.single_sign_ons.of_address(email) if email else None
        return request.render(
            "signin/signin.html", status, next=next_, email=email, errors=errors, passkey_options=options,
            single_sign_on=await self.context.single_sign_ons.any(), required=found is not None and found.required,
        )  # fmt: skip
