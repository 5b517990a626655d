"""Settings → Security: adding, naming and removing passkeys; disconnecting identity providers."""

from __future__ import annotations

import attrs
from twisted.logger import Logger

from mailsvc.dashboard.account.security import person
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.formatting import browser
from mailsvc.dashboard.page import PASSKEYS, SECURITY, PageRequest, not_found, page, section_app
from mailsvc.dashboard.safety import HOME
from mailsvc.dashboard.signin import authenticators, second_factor
from mailsvc.dashboard.signin.authenticators import NewPasskey, PasskeyError
from mailsvc.dashboard.signin.completion import Authentication
from mailsvc.dashboard.signin.passkeys import MAKE, PasskeySignIn
from mailsvc.dashboard.signin.second_factor import SecondFactor
from mailsvc.store.people.passkeys import MOST
from mailsvc.store.people.users import User

IDENTITIES = f"{HOME}/settings/identities"
NAME = 60
log = Logger()


@attrs.define(eq=False)
class PasskeyPages:
    app = section_app()
    context: PageContext
    authentication: Authentication
    passkeys: PasskeySignIn
    second: SecondFactor

    @page(app, f"{PASSKEYS}/new", "GET", "POST", access="member", reauthenticate=True)
    async def new(self, request: PageRequest) -> bytes:
        user, site = await person(self.context, request), self.context.relying_party
        known = await self.context.passkeys.of(user.id)
        if site is None or len(known) >= MOST:
            raise not_found()
        errors: dict[str, str] = {}
        if request.form:
            try:
                _, answer = await self.passkeys.read(request, MAKE)
                passkey = authenticators.verify_registration(site, answer)
            except PasskeyError as error:
                log.info("new passkey rejected: {reason}", reason=str(error))
                errors = {"name": "The browser didn’t provide a valid passkey. Try again."}
            else:
                return await self._added(request, user, passkey)
        options = authenticators.registration_options(site, user, self.passkeys.ticket(request, MAKE), known)
        name = request.single_line("name") or browser(request.agent)
        return request.render("settings/passkey.html", 422 if errors else 200, options=options, errors=errors, name=name)

    async def _added(self, request: PageRequest, user: User, passkey: NewPasskey) -> bytes:
        """Store a new passkey. If it is the first second factor, show recovery codes."""
        name = request.single_line("name")[:NAME] or browser(request.agent)
        entry = request.own_audit_entry("passkey added", name)
        if not await self.context.passkeys.add(
            user.id, passkey.credential, passkey.public_key, passkey.sign_count, passkey.backed_up, name, [entry]
        ):
            return request.redirect(SECURITY)
        await self.authentication.send_notice(request, user.email, f"passkey {name} was added")
        if user.second_factor:
            return request.redirect(SECURITY, done="passkey")
        codes = second_factor.new_codes()
        await self.context.users.set_recovery_codes(user.id, self.second.all_hashed(codes))
        await self.context.sessions.end_others(user.id, request.user_session.hash)
        return request.render("settings/codes.html", codes=codes, done="passkey")

    @page(app, f"{PASSKEYS}/<text>/name", "POST", access="member")
    async def rename(self, request: PageRequest, text: str) -> bytes:
        name = request.single_line("name")[:NAME]
        entry = request.own_audit_entry("passkey renamed", name)
        if not name:
            return request.redirect(SECURITY)
        if not await self.context.passkeys.rename(request.user_session.user_id, request.uuid(text, "passkey"), name, [entry]):
            raise not_found("passkey")
        return request.redirect(SECURITY, done="passkey-named")

    @page(app, f"{PASSKEYS}/<text>/remove", "POST", access="member", reauthenticate=True)
    async def remove(self, request: PageRequest, text: str) -> bytes:
        user, passkey_id = await person(self.context, request), request.uuid(text, "passkey")
        known = {one.id: one for one in await self.context.passkeys.of(user.id)}
        if passkey_id not in known:
            raise not_found("passkey")
        if len(known) == 1 and user.password is None and not await self.context.identities.of(user.id):
            return request.redirect(SECURITY, done="only")
        name = known[passkey_id].name
        await self.context.passkeys.remove(user.id, passkey_id, [request.own_audit_entry("passkey removed", name)])
        await self.authentication.send_notice(request, user.email, f"passkey {name} was removed")
        return request.redirect(SECURITY, done="passkey-off")


@attrs.define(eq=False)
class IdentityPages:
    """Disconnecting identity providers. signin/federation connects them."""

    app = section_app()
    context: PageContext
    authentication: Authentication

    @page(app, f"{IDENTITIES}/<text>/remove", "POST", access="member", reauthenticate=True)
    async def remove(self, request: PageRequest, text: str) -> bytes:
        user, identity_id = await person(self.context, request), request.uuid(text, "identity")
        known = {one.id: one for one in await self.context.identities.of(user.id)}
        if identity_id not in known:
            raise not_found("identity")
        if len(known) == 1 and user.password is None and not user.passkey:
            return request.redirect(SECURITY, done="only")
        one = known[identity_id]
        entry = request.own_audit_entry("identity disconnected", f"{one.provider}: {one.label}")
        await self.context.identities.remove(user.id, identity_id, [entry])
        await self.authentication.send_notice(request, user.email, f"sign-in with {one.provider} as {one.label} was disconnected")
        return request.redirect(SECURITY, done="disconnected")
