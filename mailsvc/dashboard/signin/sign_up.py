"""Signing up, choosing a new password, and accepting an invitation: all begin with a link that proves an address.

Who comes from another service has a ticket instead (federation): it says who they are there, and of a new account the address too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs

from mailsvc.clock import unix
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import SIGN_IN, Stop, Visit, area, page
from mailsvc.dashboard.safety import HOME
from mailsvc.dashboard.signin import mails, tickets
from mailsvc.dashboard.signin.completion import Entrance, line, plausible
from mailsvc.store.people.audit import Line
from mailsvc.store.people.identities import Identity
from mailsvc.store.people.sessions import LinkView, Purpose
from mailsvc.store.people.users import NewUser, User

HOUR = timedelta(hours=1)
SIGN_UP, RESET, INVITATION = f"{HOME}/sign-up", f"{HOME}/reset", f"{HOME}/invitation"
COMING = "coming from elsewhere"  # the purpose of a ticket
OVER = Stop(410, "This link has expired", "It was already used or is no longer valid. Request a new one.")


@attrs.frozen
class Coming:
    """Somebody whom another service knows, who is nobody here yet. `email`: proven by that service, or empty."""

    identity: Identity
    email: str
    name: str
    ticket: str


@attrs.define(eq=False)
class Joining:
    """`new_account` makes an account of that name and gives its id."""

    app = area()
    desk: PageContext
    entrance: Entrance
    new_account: Callable[[str], Awaitable[Any]]

    @page(app, SIGN_UP, "GET", "POST", who="anybody")
    async def sign_up(self, visit: Visit) -> bytes:
        if not self.desk.sign_up or not self.desk.mails:
            raise Stop(404, "Invitation required", "Sign-up is by invitation only. Ask an account admin to invite you.")
        return await self._asked_for(visit, "signin/signup.html", self._invite_up)

    @page(app, RESET, "GET", "POST", who="anybody")
    async def reset(self, visit: Visit) -> bytes:
        if not self.desk.mails:
            raise Stop(404, "Contact the operator", "This installation can’t send emails. Ask its operator for a sign-in link.")
        return await self._asked_for(visit, "signin/reset.html", self._offer_reset)

    async def _asked_for(self, visit: Visit, template: str, offer: Callable[[Visit, str], Awaitable[None]]) -> bytes:
        """The answer is the same whether anybody has the address, and so is the time that it takes."""
        email = visit.field("email").lower()
        if not visit.form:
            return visit.render(template, email="", errors={}, sent=False)
        if not plausible(email):
            return visit.render(template, 422, email=email, errors={"email": "Enter a valid email address."}, sent=False)
        subjects = [("mail", email), ("mail address", visit.address)]
        if await self.entrance.attempt(subjects) is None:
            await self.entrance.throttle.failed(subjects)
            self.desk.later("offering a link", _awaited(offer(visit, email)))
        return visit.render(template, email=email, errors={}, sent=True)

    async def _invite_up(self, visit: Visit, email: str) -> None:
        if await self.desk.users.named(email) is not None:
            self.entrance.write(email, mails.already_there(f"{self.desk.base_url}{SIGN_IN}"))
            return
        secret = await self.desk.sessions.make_link("sign-up", email, HOUR)
        self.entrance.write(email, mails.sign_up(self.entrance.link(f"{SIGN_UP}/finish", secret)))

    async def _offer_reset(self, visit: Visit, email: str) -> None:
        user = await self.desk.users.named(email)
        if user is not None:
            told = attrs.evolve(line(visit, user, "password reset requested"), user_id=None)  # nobody knows by whom
            secret = await self.desk.sessions.make_link("reset", email, HOUR, lines=[told])
            self.entrance.write(email, mails.reset(self.entrance.link(f"{RESET}/finish", secret)))

    # With the link

    @page(app, f"{SIGN_UP}/finish", "GET", "POST", who="anybody")
    async def finish_sign_up(self, visit: Visit) -> bytes:
        coming = self._coming(visit)
        link = LinkView("sign-up", coming.email, None, None) if coming else await self._link(visit, "sign-up")
        if coming is not None and (not self.desk.sign_up or not coming.email or await self.desk.users.named(coming.email) is not None):
            raise OVER
        fields = {name: visit.words(name) for name in ("name", "account")}
        errors = await self._wrong(visit, link, ("name", "account"), coming) if visit.form else {}
        if not visit.form or errors:
            return self._finish(visit, link, fields, errors, coming, **_SIGN_UP)
        new = await self._new(visit, coming)
        if coming is None and await self.desk.sessions.take_link(_secret(visit), "sign-up") is None:
            raise OVER
        user = await self.desk.users.add(link.email, new)
        if user is None:
            raise OVER
        account_id = await self.new_account(fields["account"][:100])
        told = Line(account_id, None, user.id, user.email, visit.address, "account created", fields["account"])
        await self.desk.users.join(account_id, user.id, "admin", [told])
        return await self.entrance.enter(visit, user, HOME, proof=coming.identity.provider if coming else "sign-up link")

    @page(app, f"{RESET}/finish", "GET", "POST", who="anybody")
    async def finish_reset(self, visit: Visit) -> bytes:
        link = await self._link(visit, "reset")
        errors = await self._wrong(visit, link, ()) if visit.form else {}
        if not visit.form or errors:
            return self._finish(visit, link, {}, errors, None, **_RESET)
        hashed = await self.entrance.passwords.hash(visit.form["password"])
        user = await self.desk.users.named(link.email)
        if user is None:
            raise OVER
        told = line(visit, user, "password changed", "reset link")
        if not await self.desk.sessions.reset(_secret(visit), user.id, hashed, [told]):
            raise OVER
        await self.entrance.notice(visit, user.email, "password was changed")
        return await self.entrance.enter(visit, user, HOME, proof="reset link")  # a second factor is still asked for

    @page(app, INVITATION, "GET", "POST", who="anybody")
    async def invitation(self, visit: Visit) -> bytes:
        """A new user chooses how to sign in. An existing user has to be signed in: an invitation changes nothing about them."""
        link, coming = await self._link(visit, "invite"), self._coming(visit)
        there = await self.desk.users.named(link.email)
        if there is not None:
            return await self._join(visit, link, there)
        fields = {"name": visit.words("name")}
        errors = await self._wrong(visit, link, ("name",), coming) if visit.form else {}
        if not visit.form or errors:
            return self._finish(visit, link, fields, errors, coming, **_INVITED)
        user = await self._accepted(visit, await self._new(visit, coming))
        return await self.entrance.enter(visit, user, HOME, proof="invitation")

    def _finish(
        self, visit: Visit, link: LinkView, fields: dict[str, str], errors: dict[str, str], coming: Coming | None, **page: object
    ) -> bytes:
        status = 422 if errors else 200
        title = self.desk.providers[coming.identity.provider].title if coming else ""
        return visit.render(
            "signin/finish.html", status, email=link.email, fields=fields, errors=errors, coming=coming, other=title, link=link, **page
        )

    async def _join(self, visit: Visit, link: LinkView, user: User) -> bytes:
        signed_in = visit.session is not None and visit.session.user_id == user.id and visit.session.stage == "whole"
        if not visit.form or not signed_in:
            back = f"{INVITATION}?link={_secret(visit)}"
            return visit.render("signin/join.html", email=link.email, signed_in=signed_in, link=_secret(visit), back=back)
        await self._accepted(visit, user)
        assert link.account_id is not None
        await self.desk.sessions.show(visit.who.hash, link.account_id)
        return visit.redirect(HOME)

    async def _accepted(self, visit: Visit, who: User | NewUser) -> User:
        def told(link: LinkView, user: User) -> Line:
            return Line(link.account_id, None, user.id, user.email, visit.address, "invitation accepted", link.role or "")

        user = await self.desk.sessions.accept(_secret(visit), who, told)
        if user is None:
            raise OVER
        return user

    async def _link(self, visit: Visit, purpose: Purpose) -> LinkView:
        link = await self.desk.sessions.find_link(_secret(visit), purpose)
        if link is None:
            raise OVER
        return link

    async def _wrong(self, visit: Visit, link: LinkView, needed: tuple[str, ...], coming: Coming | None = None) -> dict[str, str]:
        errors = {name: "This field is required." for name in needed if not visit.words(name)}
        if coming is not None:
            return errors
        chosen, known = visit.form.get("password", ""), (link.email, visit.words("name"), visit.words("account"))
        wrong = await self.entrance.unfit(_secret(visit), chosen, *known)
        return errors | ({"password": wrong} if wrong else {})

    async def _new(self, visit: Visit, coming: Coming | None) -> NewUser:
        """The user that the form asks for: with a password, or with a ticket from another service, which is used up."""
        name = visit.words("name")[:100]
        if coming is None:
            return NewUser(name, await self.entrance.passwords.hash(visit.form["password"]))
        ends = datetime.fromtimestamp(unix(self.desk.clock) + tickets.LIFE, UTC)
        if not await self.entrance.attempts.spend(coming.ticket, ends):
            raise OVER
        return NewUser(name, None, coming.identity)

    # From another service

    def coming(self, visit: Visit, identity: Identity, email: str, name: str) -> str:
        """The ticket of somebody who is nobody here yet, for this browser."""
        facts = {"issuer": identity.issuer, "subject": identity.subject, "provider": identity.provider, "label": identity.label}
        return tickets.issue(self.desk.secrets()[0], visit.anchor, COMING, unix(self.desk.clock), **facts, email=email, name=name)

    def _coming(self, visit: Visit) -> Coming | None:
        text = visit.field("ticket") or visit.query("ticket")
        if not text:
            return None
        facts = tickets.read(self.desk.secrets(), visit.anchor, COMING, text, unix(self.desk.clock))
        if facts is None or facts["provider"] not in self.desk.providers:
            raise OVER
        identity = Identity(facts["issuer"], facts["subject"], facts["provider"], facts["label"])
        return Coming(identity, facts["email"], facts["name"], text)


_SIGN_UP = {"title": "Create your account", "button": "Create account", "asks": ("name", "account")}
_RESET = {"title": "Set a new password", "button": "Set password", "asks": ()}
_INVITED = {"title": "Accept your invitation", "button": "Join", "asks": ("name",)}


def _secret(visit: Visit) -> str:
    return visit.field("link") or visit.query("link")


async def _awaited(work: Awaitable[None]) -> None:
    await work
