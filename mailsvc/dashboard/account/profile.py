"""Settings: what somebody is called, and the address that they are known by.

A new address is theirs once they follow a link that was sent there, signed in as themselves: an address that was typed wrongly, or is
somebody else's, takes nothing and gives nothing. Whether somebody has it is not told.
"""

from __future__ import annotations

from datetime import timedelta

import attrs

from mailsvc.dashboard.account.security import person
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import Stop, Visit, area, page
from mailsvc.dashboard.safety import HOME
from mailsvc.dashboard.signin import mails
from mailsvc.dashboard.signin.completion import Entrance, Refused, plausible
from mailsvc.dashboard.signin.throttle import Subject
from mailsvc.dashboard.words import stamp
from mailsvc.store.people.addresses import Addresses
from mailsvc.store.people.users import User

PROFILE = f"{HOME}/settings/profile"
ADDRESS = f"{PROFILE}/address"
HOUR = timedelta(hours=1)
LONGEST = 100
ENDED = "It was already used, is no longer valid, or belongs to a different user."
NO_MAILS = "This installation can’t send emails, so it can’t confirm a new address."
OVER = Stop(410, "This link has expired", ENDED)
_DONE = {
    "name": "Name saved.",
    "withdrawn": "Address change canceled.",
    "moved": "Email address changed. You’ve been signed out of all other sessions.",
}


@attrs.define(eq=False)
class Profile:
    app = area()
    desk: PageContext
    entrance: Entrance
    addresses: Addresses

    @page(app, PROFILE)
    async def show(self, visit: Visit) -> bytes:
        return await self._shown(visit, await person(self.desk, visit))

    async def _shown(self, visit: Visit, user: User, status: int = 200, **values: object) -> bytes:
        shown: dict[str, object] = {"errors": {}, "email": "", "name": user.name, "done": _DONE.get(visit.query("done"), "")}
        wanted = await self.addresses.wanted(user.id)
        return visit.render("settings/profile.html", status, user=user, wanted=wanted, **shown | values)

    @page(app, f"{PROFILE}/name", "POST")
    async def name(self, visit: Visit) -> bytes:
        user, name = await person(self.desk, visit), visit.words("name")
        if not 0 < len(name) <= LONGEST:
            return await self._shown(visit, user, 422, errors={"name": f"Enter a name of 1 to {LONGEST} characters."}, name=name)
        await self.desk.users.rename(user.id, name, [visit.own_line("name changed", name)])
        return visit.redirect(PROFILE, done="name")

    # The address

    @page(app, ADDRESS, "POST")
    async def ask(self, visit: Visit) -> bytes:
        """The answer, the time it takes and what is written down are the same whether anybody has the address."""
        user, email = await person(self.desk, visit), visit.field("email").lower()
        if not self.desk.mails:
            raise Stop(404, "Contact the operator", NO_MAILS)
        if not plausible(email):
            return await self._shown(visit, user, 422, errors={"email": "Enter a valid email address."}, email=email)
        if email == user.email:
            return await self._shown(visit, user, 422, errors={"email": "This is already your address."}, email=email)
        if user.password is None and not visit.fresh:
            return visit.prove_again()
        wrong = await self._wrong(visit, user, email)
        if wrong is not None:
            field, refused = wrong
            return await self._shown(visit, user, refused.status, errors={field: refused.sentence}, email=email)
        line = visit.own_line("address change requested", email)
        secret = await self.addresses.propose(user.id, email, HOUR, [line])
        self.desk.later("confirming an address", self._write(email, self.entrance.link(f"{ADDRESS}/confirm", secret)))
        return visit.redirect(PROFILE)

    async def _wrong(self, visit: Visit, user: User, email: str) -> tuple[str, Refused] | None:
        """The field, and why it will not do. Counted by the person too, who could have many strangers written to."""
        if user.password is not None:
            refused = await self.entrance.checked(visit, user, visit.form.get("password", ""), "Incorrect password.")
            if refused is not None:
                return "password", refused
        subjects: list[Subject] = [("new address", str(user.id)), ("mail", email), ("mail address", visit.address)]
        refused = await self.entrance.attempt(subjects)
        if refused is not None:
            return "email", refused
        await self.entrance.throttle.failed(subjects)
        return None

    async def _write(self, email: str, link: str) -> None:
        there = await self.desk.users.named(email) is not None
        self.entrance.write(email, mails.address_taken() if there else mails.address(link))

    @page(app, f"{ADDRESS}/withdraw", "POST")
    async def withdraw(self, visit: Visit) -> bytes:
        await self.addresses.withdraw(visit.who.user_id, [visit.own_line("address change canceled")])
        return visit.redirect(PROFILE, done="withdrawn")

    # With the link, by who is signed in as the one who asked

    @page(app, f"{ADDRESS}/confirm", "GET", "POST", who="person")
    async def confirm(self, visit: Visit) -> bytes:
        user, secret = await person(self.desk, visit), visit.field("link") or visit.query("link")
        email = await self.addresses.find(user.id, secret)
        if email is None:
            raise OVER
        if not visit.form:
            return visit.render("settings/address.html", user=user, email=email, link=secret)
        line = visit.own_line("address changed", f"{user.email} to {email}")
        old = await self.addresses.confirm(user.id, secret, visit.who.hash, [line])
        if old is None:
            raise OVER
        self.entrance.remember(visit, email)
        if self.desk.mails:
            self.entrance.write(old, mails.moved(email, stamp(self.desk.now()), visit.address))
        return visit.redirect(PROFILE, done="moved")
