"""Settings: somebody's passkeys, and the other services that they sign in at. Made, named, removed; connected, disconnected."""

from __future__ import annotations

import attrs
from twisted.logger import Logger

from mailsvc.dashboard.account.security import person
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PASSKEYS, SECURITY, Visit, area, not_found, page
from mailsvc.dashboard.safety import HOME
from mailsvc.dashboard.signin import authenticators, second_factor
from mailsvc.dashboard.signin.authenticators import Made, NotGood
from mailsvc.dashboard.signin.completion import Entrance
from mailsvc.dashboard.signin.passkeys import MAKE, PasskeyEntrance
from mailsvc.dashboard.signin.second_factor import SecondFactor
from mailsvc.dashboard.words import browser
from mailsvc.store.people.users import User

IDENTITIES = f"{HOME}/settings/identities"
MOST, NAME = 20, 60
log = Logger()


@attrs.define(eq=False)
class PasskeyPages:
    app = area()
    desk: PageContext
    entrance: Entrance
    passkeys: PasskeyEntrance
    second: SecondFactor

    @page(app, f"{PASSKEYS}/new", "GET", "POST", fresh=True)
    async def new(self, visit: Visit) -> bytes:
        user, site = await person(self.desk, visit), self.desk.site
        known = await self.desk.passkeys.of(user.id)
        if site is None or len(known) >= MOST:
            raise not_found()
        errors: dict[str, str] = {}
        if visit.form:
            try:
                _, answer = await self.passkeys.read(visit, MAKE)
                made = authenticators.made(site, answer)
            except NotGood as error:
                log.info("a new passkey was not taken: {reason}", reason=str(error))
                errors = {"name": "The browser didn’t provide a valid passkey. Try again."}
            else:
                return await self._made(visit, user, made)
        options = authenticators.to_make(site, user, self.passkeys.ticket(visit, MAKE), known)
        name = visit.words("name") or browser(visit.agent)
        return visit.render("settings/passkey.html", 422 if errors else 200, options=options, errors=errors, name=name)

    async def _made(self, visit: Visit, user: User, made: Made) -> bytes:
        """With the first second factor come recovery codes."""
        name = visit.words("name")[:NAME] or browser(visit.agent)
        line = visit.own_line("passkey added", name)
        if not await self.desk.passkeys.add(user.id, made.credential, made.public_key, made.sign_count, made.backed_up, name, [line]):
            return visit.redirect(SECURITY)
        await self.entrance.notice(visit, user.email, f"passkey {name} was added")
        if user.second_factor:
            return visit.redirect(SECURITY, done="passkey")
        codes = second_factor.new_codes()
        await self.desk.users.set_recovery_codes(user.id, self.second.all_hashed(codes))
        await self.desk.sessions.end_others(user.id, visit.who.hash)
        return visit.render("settings/codes.html", codes=codes, done="passkey")

    @page(app, f"{PASSKEYS}/<text>/name", "POST")
    async def rename(self, visit: Visit, text: str) -> bytes:
        name = visit.words("name")[:NAME]
        line = visit.own_line("passkey renamed", name)
        if name and not await self.desk.passkeys.rename(visit.who.user_id, visit.uuid(text, "passkey"), name, [line]):
            raise not_found("passkey")
        return visit.redirect(SECURITY, done="passkey-named")

    @page(app, f"{PASSKEYS}/<text>/remove", "POST", fresh=True)
    async def remove(self, visit: Visit, text: str) -> bytes:
        user, passkey_id = await person(self.desk, visit), visit.uuid(text, "passkey")
        known = {one.id: one for one in await self.desk.passkeys.of(user.id)}
        if passkey_id not in known:
            raise not_found("passkey")
        if len(known) == 1 and user.password is None and not await self.desk.identities.of(user.id):
            return visit.redirect(SECURITY, done="only")
        name = known[passkey_id].name
        await self.desk.passkeys.remove(user.id, passkey_id, [visit.own_line("passkey removed", name)])
        await self.entrance.notice(visit, user.email, f"passkey {name} was removed")
        return visit.redirect(SECURITY, done="passkey-off")


@attrs.define(eq=False)
class IdentityPages:
    """Connecting begins where signing in there does (signin/federation)."""

    app = area()
    desk: PageContext
    entrance: Entrance

    @page(app, f"{IDENTITIES}/<text>/remove", "POST", fresh=True)
    async def remove(self, visit: Visit, text: str) -> bytes:
        user, identity_id = await person(self.desk, visit), visit.uuid(text, "identity")
        known = {one.id: one for one in await self.desk.identities.of(user.id)}
        if identity_id not in known:
            raise not_found("identity")
        if len(known) == 1 and user.password is None and not user.passkey:
            return visit.redirect(SECURITY, done="only")
        one = known[identity_id]
        line = visit.own_line("identity disconnected", f"{one.provider}: {one.label}")
        await self.desk.identities.remove(user.id, identity_id, [line])
        await self.entrance.notice(visit, user.email, f"sign-in with {one.provider} as {one.label} was disconnected")
        return visit.redirect(SECURITY, done="disconnected")
