"""Signing up, choosing a new password, and accepting an invitation: all begin with a link that proves an address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import attrs

from mailsvc.dashboard.desk import Desk
from mailsvc.dashboard.page import SIGN_IN, Stop, Visit, area, page
from mailsvc.dashboard.safety import HOME
from mailsvc.dashboard.signin import mails
from mailsvc.dashboard.signin.entrance import Entrance
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.store.sessions import LinkView, Purpose
from mailsvc.store.users import User

HOUR = timedelta(hours=1)
SIGN_UP, RESET, INVITATION = f"{HOME}/sign-up", f"{HOME}/reset", f"{HOME}/invitation"
OVER = Stop(410, "This link has ended", "It was used already, or its time is over. Ask for a new one.")


@attrs.define(eq=False)
class Joining:
    """`new_account` makes an account of that name and gives its id."""

    app = area()
    desk: Desk
    entrance: Entrance
    new_account: Callable[[str], Awaitable[Any]]

    @page(app, SIGN_UP, "GET", "POST", who="anybody")
    async def sign_up(self, visit: Visit) -> bytes:
        if not self.desk.sign_up or not self.desk.mails:
            raise Stop(404, "By invitation", "Nobody can sign up by themselves here. Ask an admin of your account to invite you.")
        return await self._asked_for(visit, "signin/signup.html", self._invite_up)

    @page(app, RESET, "GET", "POST", who="anybody")
    async def reset(self, visit: Visit) -> bytes:
        if not self.desk.mails:
            raise Stop(404, "Ask the operator", "This service sends no mails of its own. Its operator can give you a link to sign in.")
        return await self._asked_for(visit, "signin/reset.html", self._offer_reset)

    async def _asked_for(self, visit: Visit, template: str, offer: Callable[[str], Awaitable[None]]) -> bytes:
        """The answer is the same whether anybody has the address, and so is the time that it takes."""
        email = visit.field("email").lower()
        if not visit.form:
            return visit.render(template, email="", errors={}, sent=False)
        if not _plausible(email):
            return visit.render(template, 422, email=email, errors={"email": "This is no email address."}, sent=False)
        subjects = [("mail", email), ("address", visit.address)]
        if not self.entrance.throttle.wait(subjects):
            self.entrance.throttle.failed(subjects)
            self.desk.later("offering a link", _awaited(offer(email)))
        return visit.render(template, email=email, errors={}, sent=True)

    async def _invite_up(self, email: str) -> None:
        if await self.desk.users.named(email) is not None:
            self.entrance.write(email, mails.already_there(f"{self.desk.base_url}{SIGN_IN}"))
            return
        secret = await self.desk.sessions.make_link("sign-up", email, HOUR)
        self.entrance.write(email, mails.sign_up(self.entrance.link(f"{SIGN_UP}/finish", secret)))

    async def _offer_reset(self, email: str) -> None:
        if await self.desk.users.named(email) is not None:
            secret = await self.desk.sessions.make_link("reset", email, HOUR)
            self.entrance.write(email, mails.reset(self.entrance.link(f"{RESET}/finish", secret)))

    # With the link

    @page(app, f"{SIGN_UP}/finish", "GET", "POST", who="anybody")
    async def finish_sign_up(self, visit: Visit) -> bytes:
        link = await self._link(visit, "sign-up")
        fields = {name: visit.field(name) for name in ("name", "account")}
        errors = await self._wrong(visit, link, ("name", "account")) if visit.form else {}
        if not visit.form or errors:
            return visit.render("signin/finish.html", 422 if errors else 200, email=link.email, fields=fields, errors=errors, **_SIGN_UP)
        user = await self._taken(visit, "sign-up", fields["name"])
        account_id = await self.new_account(fields["account"][:100])
        await self.desk.users.join(account_id, user.id, "admin")
        await self.desk.audit.add(account_id, user.id, user.email, visit.address, "account created", fields["account"])
        return await self.entrance.enter(visit, user, HOME, proof="sign-up link")

    @page(app, f"{RESET}/finish", "GET", "POST", who="anybody")
    async def finish_reset(self, visit: Visit) -> bytes:
        link = await self._link(visit, "reset")
        errors = await self._wrong(visit, link, ()) if visit.form else {}
        if not visit.form or errors:
            return visit.render("signin/finish.html", 422 if errors else 200, email=link.email, fields={}, errors=errors, **_RESET)
        user = await self._taken(visit, "reset", "")
        await self.desk.users.set_password(user.id, await self.entrance.passwords.hash(visit.form["password"]))
        await self.desk.sessions.end_others(user.id)
        await self.entrance.notice(visit, user.email, "password was changed")
        return await self.entrance.enter(visit, user, HOME, proof="reset link")  # a second factor is still asked for

    @page(app, INVITATION, "GET", "POST", who="anybody")
    async def invitation(self, visit: Visit) -> bytes:
        link = await self._link(visit, "invite")
        there = await self.desk.users.named(link.email)
        if there is not None and there.password is not None:
            return await self._join(visit, link, there)
        fields = {"name": visit.field("name")}
        errors = await self._wrong(visit, link, ("name",)) if visit.form else {}
        if not visit.form or errors:
            return visit.render("signin/finish.html", 422 if errors else 200, email=link.email, fields=fields, errors=errors, **_INVITED)
        user = await self._taken(visit, "invite", fields["name"])
        await self._joined(visit, link, user)
        return await self.entrance.enter(visit, user, HOME, proof="invitation")

    async def _join(self, visit: Visit, link: LinkView, user: User) -> bytes:
        """Somebody with a password has to be signed in: an invitation does not replace it."""
        signed_in = visit.session is not None and visit.session.user_id == user.id and visit.session.stage == "whole"
        if not visit.form or not signed_in:
            back = f"{INVITATION}?link={_secret(visit)}"
            return visit.render("signin/join.html", email=link.email, signed_in=signed_in, link=_secret(visit), back=back)
        if await self.desk.sessions.take_link(_secret(visit), "invite") is None:
            raise OVER
        await self._joined(visit, link, user)
        assert link.account_id is not None
        await self.desk.sessions.show(visit.who.hash, link.account_id)
        return visit.redirect(HOME)

    async def _joined(self, visit: Visit, link: LinkView, user: User) -> None:
        assert link.account_id is not None and link.role is not None
        await self.desk.users.join(link.account_id, user.id, link.role)
        await self.desk.audit.add(link.account_id, user.id, user.email, visit.address, "invitation accepted", link.role)

    async def _link(self, visit: Visit, purpose: Purpose) -> LinkView:
        link = await self.desk.sessions.find_link(_secret(visit), purpose)
        if link is None:
            raise OVER
        return link

    async def _wrong(self, visit: Visit, link: LinkView, needed: tuple[str, ...]) -> dict[str, str]:
        errors = {name: "This is needed." for name in needed if not visit.field(name)}
        wrong = await self.entrance.passwords.wrong(visit.form.get("password", ""), link.email, visit.field("name"))
        return errors | ({"password": wrong} if wrong else {})

    async def _taken(self, visit: Visit, purpose: Purpose, name: str) -> User:
        """The link is used up; the person has the password that was chosen with it."""
        hashed = await self.entrance.passwords.hash(visit.form["password"])
        link = await self.desk.sessions.take_link(_secret(visit), purpose)
        if link is None:
            raise OVER
        user = await self.desk.users.create(link.email, name[:100], hashed)
        if user.password is None:
            await self.desk.users.set_password(user.id, hashed)
        return user


_SIGN_UP = {"title": "Create your account", "button": "Create account", "asks": ("name", "account")}
_RESET = {"title": "Choose a new password", "button": "Set password", "asks": ()}
_INVITED = {"title": "Accept your invitation", "button": "Join", "asks": ("name",)}


def _secret(visit: Visit) -> str:
    return visit.field("link") or visit.query("link")


def _plausible(email: str) -> bool:
    try:
        return parse_mailbox(email).address.lower() == email
    except AddressError:
        return False


async def _awaited(work: Awaitable[None]) -> None:
    await work
