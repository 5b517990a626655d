"""Settings → Profile: a user's name, email address, time zone and keyboard shortcuts.

A new address takes effect once the user opens a link sent to it while signed in. So a mistyped address, or another person's, changes
nothing. Whether an address is already registered is not revealed.
"""

from __future__ import annotations

from datetime import timedelta

import attrs

from mailsvc.dashboard import zones
from mailsvc.dashboard.account.security import person
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.formatting import stamp
from mailsvc.dashboard.page import PageError, PageRequest, page, section_app
from mailsvc.dashboard.safety import HOME
from mailsvc.dashboard.signin import mails
from mailsvc.dashboard.signin.completion import Authentication, Refused, is_address
from mailsvc.dashboard.signin.throttle import Subject
from mailsvc.domains.names import typed_address
from mailsvc.store.people.addresses import Addresses
from mailsvc.store.people.users import User

PROFILE = f"{HOME}/settings/profile"
ADDRESS = f"{PROFILE}/address"
HOUR = timedelta(hours=1)
LONGEST = 100
EXPIRED_REASON = "It was already used, is no longer valid, or belongs to a different user."
NO_MAILS = "This installation can’t send emails, so it can’t confirm a new address."
EXPIRED = PageError(410, "This link has expired", EXPIRED_REASON)
_DONE = {
    "name": "Name saved.",
    "preferences": "Preferences saved.",
    "withdrawn": "Address change canceled.",
    "confirmed": "Email address confirmed.",
    "moved": "Email address changed. You’ve been signed out of all other sessions.",
}


@attrs.define(eq=False)
class Profile:
    app = section_app()
    context: PageContext
    authentication: Authentication
    addresses: Addresses

    @page(app, PROFILE, access="member")
    async def show(self, request: PageRequest) -> bytes:
        return await self._shown(request, await person(self.context, request))

    async def _shown(self, request: PageRequest, user: User, status: int = 200, **values: object) -> bytes:
        shown: dict[str, object] = {"errors": {}, "email": "", "name": user.name, "done": _DONE.get(request.query("done"), "")}
        pending = await self.addresses.wanted(user.id)
        areas = {"Other": ["UTC"], **zones.by_area()}
        return request.render("settings/profile.html", status, user=user, pending=pending, areas=areas, **shown | values)

    @page(app, f"{PROFILE}/name", "POST", access="member")
    async def name(self, request: PageRequest) -> bytes:
        user, name = await person(self.context, request), request.single_line("name")
        if not 0 < len(name) <= LONGEST:
            return await self._shown(request, user, 422, errors={"name": f"Enter a name of 1 to {LONGEST} characters."}, name=name)
        await self.context.users.rename(user.id, name, [request.own_audit_entry("name changed", name)])
        return request.redirect(PROFILE, done="name")

    @page(app, f"{PROFILE}/preferences", "POST", access="member")
    async def preferences(self, request: PageRequest) -> bytes:
        zone, shortcuts = request.field("time_zone"), request.field("shortcuts") == "on"
        if zone not in zones.names():
            return await self._shown(request, await person(self.context, request), 422, errors={"time_zone": "Choose a time zone."})
        entry = request.own_audit_entry("preferences changed", f"{zone}, shortcuts {'on' if shortcuts else 'off'}")
        await self.context.users.prefer(request.user_session.user_id, zone, shortcuts, [entry])
        return request.redirect(PROFILE, done="preferences")

    # The address

    @page(app, ADDRESS, "POST", access="member")
    async def propose(self, request: PageRequest) -> bytes:
        """Response, response time and audit entry are the same whether or not the address is registered."""
        user, email = await person(self.context, request), typed_address(request.field("email"))
        if not self.context.sends_email:
            raise PageError(404, "Contact the operator", NO_MAILS)
        if not is_address(email):
            return await self._shown(request, user, 422, errors={"email": "Enter a valid email address."}, email=email)
        if email == user.email and request.user_session.verified:
            return await self._shown(request, user, 422, errors={"email": "This is already your address."}, email=email)
        leaves = await self._leaves_provider(user, email)
        if leaves is not None:
            return await self._shown(request, user, 422, errors={"email": leaves}, email=email)
        if user.password is None and not request.reauthenticated:
            return request.ask_to_reauthenticate()
        wrong = await self._wrong(request, user, email)
        if wrong is not None:
            field, refused = wrong
            return await self._shown(request, user, refused.status, errors={field: refused.message}, email=email)
        entry = request.own_audit_entry("address change requested", email)
        secret = await self.addresses.propose(user.id, email, HOUR, [entry])
        link = self.authentication.link(f"{ADDRESS}/confirm", secret)
        self.context.later("confirming an address", self._write(email, link, user))
        return request.redirect(PROFILE)

    async def _leaves_provider(self, user: User, email: str) -> str | None:
        """Why an address cannot be theirs: with one at another domain, they would no longer have to use their account's provider."""
        required = await self.context.single_sign_ons.required_of(user.id)
        if required is None or required.covers(email):
            return None
        return f"Your account requires single sign-on, so your address must be at {' or '.join(required.claimed)}."

    async def _wrong(self, request: PageRequest, user: User, email: str) -> tuple[str, Refused] | None:
        """The field with an error, or None. Attempts are also counted by user, who could otherwise have emails sent to many strangers."""
        if user.password is not None:
            refused = await self.authentication.check_password(request, user, request.form.get("password", ""), "Incorrect password.")
            if refused is not None:
                return "password", refused
        subjects: list[Subject] = [("new address", str(user.id)), ("mail", email), ("mail address", request.address)]
        refused = await self.authentication.throttled(subjects)
        if refused is not None:
            return "email", refused
        await self.authentication.throttle.failed(subjects)
        return None

    async def _write(self, email: str, link: str, user: User) -> None:
        other = await self.context.users.named(email)
        there = other is not None and other.id != user.id
        self.authentication.send_later(email, mails.address_taken() if there else mails.confirm_address(link, new=other is None))

    @page(app, f"{ADDRESS}/withdraw", "POST", access="member")
    async def withdraw(self, request: PageRequest) -> bytes:
        await self.addresses.withdraw(request.user_session.user_id, [request.own_audit_entry("address change canceled")])
        return request.redirect(PROFILE, done="withdrawn")

    # With the link, signed in as the user who requested it

    @page(app, f"{ADDRESS}/confirm", "GET", "POST", access="user")
    async def confirm(self, request: PageRequest) -> bytes:
        user, secret = await person(self.context, request), request.field("link") or request.query("link")
        email = await self.addresses.find(user.id, secret)
        if email is None:
            raise EXPIRED
        leaves = await self._leaves_provider(user, email)  # since the request
        if leaves is not None:
            raise PageError(403, "Not allowed", leaves)
        if not request.form:
            return request.render("settings/address.html", user=user, email=email, link=secret)
        same = email == user.email
        entry = request.own_audit_entry("address confirmed" if same else "address changed", email if same else f"{user.email} to {email}")
        old = await self.addresses.confirm(user.id, secret, request.user_session.hash, [entry])
        if old is None:
            raise EXPIRED
        self.authentication.remember_browser(request, email)
        if same:
            return request.redirect(PROFILE, done="confirmed")
        if self.context.sends_email:
            self.authentication.send_later(old, mails.address_changed(email, stamp(request.now, request.now), request.address))
        return request.redirect(PROFILE, done="moved")
