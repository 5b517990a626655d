"""Signing up, resetting a password, accepting an invitation: each starts with an emailed link that proves the address.

Users coming from an identity provider have a ticket instead (federation.py), which holds their identity there and, for a new account,
the verified address.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import attrs

from mailsvc.clock import unix
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import SIGN_IN, PageError, PageRequest, page, section_app
from mailsvc.dashboard.safety import HOME
from mailsvc.dashboard.signin import mails, tickets
from mailsvc.dashboard.signin.completion import Authentication, audit_entry, is_address
from mailsvc.domains.names import typed_address
from mailsvc.store.people.audit import Line
from mailsvc.store.people.identities import Identity
from mailsvc.store.people.sessions import LinkView, Purpose
from mailsvc.store.people.users import NewUser, User

HOUR = timedelta(hours=1)
SIGN_UP, RESET, INVITATION = f"{HOME}/sign-up", f"{HOME}/reset", f"{HOME}/invitation"
COMING = "coming from elsewhere"  # purpose of a ticket
EXPIRED = PageError(410, "This link has expired", "It was already used or is no longer valid. Request a new one.")


@attrs.frozen
class PendingIdentity:
    """An identity that belongs to no user yet. `email`: verified by the provider, or empty."""

    identity: Identity
    email: str
    name: str
    ticket: str


@attrs.define(eq=False)
class EmailLinkPages:
    """`ramp`: recipients per day of an account that somebody creates; None: not limited."""

    app = section_app()
    context: PageContext
    authentication: Authentication
    ramp: int | None

    @page(app, SIGN_UP, "GET", "POST", access="public")
    async def sign_up(self, request: PageRequest) -> bytes:
        if not self.context.sign_up or not self.context.sends_email:
            raise PageError(404, "Invitation required", "Sign-up is by invitation only. Ask an account admin to invite you.")
        return await self._request_link(request, "signin/signup.html", self._invite_up)

    @page(app, RESET, "GET", "POST", access="public")
    async def reset(self, request: PageRequest) -> bytes:
        if not self.context.sends_email:
            raise PageError(404, "Contact the operator", "This installation can’t send emails. Ask its operator for a sign-in link.")
        return await self._request_link(request, "signin/reset.html", self._offer_reset)

    async def _request_link(self, request: PageRequest, template: str, offer: Callable[[PageRequest, str], Awaitable[None]]) -> bytes:
        """The response and its time are the same whether or not the address is registered."""
        email = typed_address(request.field("email"))
        if not request.form:
            return request.render(template, email="", errors={}, sent=False)
        if not is_address(email):
            return request.render(template, 422, email=email, errors={"email": "Enter a valid email address."}, sent=False)
        subjects = [("mail", email), ("mail address", request.address)]
        if await self.authentication.throttled(subjects) is None:
            await self.authentication.throttle.failed(subjects)
            self.context.later("offering a link", _awaited(offer(request, email)))
        return request.render(template, email=email, errors={}, sent=True)

    async def _invite_up(self, request: PageRequest, email: str) -> None:
        if await self.context.users.named(email) is not None:
            self.authentication.send_later(email, mails.already_registered(f"{self.context.base_url}{SIGN_IN}"))
            return
        secret = await self.context.sessions.make_link("sign-up", email, HOUR)
        self.authentication.send_later(email, mails.sign_up(self.authentication.link(f"{SIGN_UP}/finish", secret)))

    async def _offer_reset(self, request: PageRequest, email: str) -> None:
        user = await self.context.users.named(email)
        if user is not None:
            entry = attrs.evolve(audit_entry(request, user, "password reset requested"), user_id=None)  # requested by an unknown person
            secret = await self.context.sessions.make_link("reset", email, HOUR, lines=[entry])
            self.authentication.send_later(email, mails.reset(self.authentication.link(f"{RESET}/finish", secret)))

    # With the link

    @page(app, f"{SIGN_UP}/finish", "GET", "POST", access="public")
    async def finish_sign_up(self, request: PageRequest) -> bytes:
        pending = self._pending(request)
        link = LinkView("sign-up", pending.email, None, None) if pending else await self._link(request, "sign-up")
        if pending is not None and (
            not self.context.sign_up or not pending.email or await self.context.users.named(pending.email) is not None
        ):
            raise EXPIRED
        fields = {name: request.single_line(name) for name in ("name", "account")}
        errors = await self._wrong(request, link, ("name", "account"), pending) if request.form else {}
        if not request.form or errors:
            return self._finish(request, link, fields, errors, pending, **_SIGN_UP)
        new = attrs.evolve(await self._new(request, pending), verified=True)  # by the link, or by the provider

        def audit(account_id: UUID, user: User) -> Line:
            return Line(account_id, None, user.id, user.email, request.address, "account created", fields["account"])

        secret, name = None if pending else _secret(request), fields["account"][:100]
        user = await self.context.sessions.sign_up(secret, link.email, new, name, self.ramp, audit)
        if user is None:
            raise EXPIRED
        return await self.authentication.sign_in(request, user, HOME, proof=pending.identity.provider if pending else "sign-up link")

    @page(app, f"{RESET}/finish", "GET", "POST", access="public")
    async def finish_reset(self, request: PageRequest) -> bytes:
        link = await self._link(request, "reset")
        errors = await self._wrong(request, link, ()) if request.form else {}
        if not request.form or errors:
            return self._finish(request, link, {}, errors, None, **_RESET)
        hashed = await self.authentication.passwords.hash(request.form["password"])
        user = await self.context.users.named(link.email)
        if user is None:
            raise EXPIRED
        entry = audit_entry(request, user, "password changed", "reset link")
        if not await self.context.sessions.reset(_secret(request), user.id, hashed, [entry]):
            raise EXPIRED
        user = attrs.evolve(user, password=hashed)
        await self.authentication.send_notice(request, user.email, "password was changed")
        return await self.authentication.sign_in(request, user, HOME, proof="reset link")  # a second factor is still required

    @page(app, INVITATION, "GET", "POST", access="public")
    async def invitation(self, request: PageRequest) -> bytes:
        """A new user chooses how to sign in. An existing user must be signed in, since an invitation cannot change how they do."""
        link, pending = await self._link(request, "invite"), self._pending(request)
        there = await self.context.users.named(link.email)
        if there is not None:
            return await self._join(request, link, there)
        fields = {"name": request.single_line("name")}
        errors = await self._wrong(request, link, ("name",), pending) if request.form else {}
        if not request.form or errors:
            return self._finish(request, link, fields, errors, pending, **_INVITED)
        new = attrs.evolve(await self._new(request, pending), verified=self.context.sends_email)  # otherwise the link was not mailed
        user = await self._accepted(request, new)
        return await self.authentication.sign_in(request, user, HOME, proof="invitation")

    def _finish(
        self,
        request: PageRequest,
        link: LinkView,
        fields: dict[str, str],
        errors: dict[str, str],
        pending: PendingIdentity | None,
        **page: object,
    ) -> bytes:
        status = 422 if errors else 200
        title = self.context.providers[pending.identity.provider].title if pending else ""
        return request.render(
            "signin/finish.html", status, email=link.email, fields=fields, errors=errors, pending=pending, other=title, link=link, **page
        )

    async def _join(self, request: PageRequest, link: LinkView, user: User) -> bytes:
        signed_in = request.session is not None and request.session.user_id == user.id and request.session.stage == "whole"
        if not request.form or not signed_in:
            back = f"{INVITATION}?link={_secret(request)}"
            return request.render("signin/join.html", email=link.email, signed_in=signed_in, link=_secret(request), back=back)
        await self._accepted(request, user)
        assert link.account_id is not None
        await self.context.sessions.show(request.user_session.hash, link.account_id)
        return request.redirect(HOME)

    async def _accepted(self, request: PageRequest, who: User | NewUser) -> User:
        def audit(link: LinkView, user: User) -> Line:
            return Line(link.account_id, None, user.id, user.email, request.address, "invitation accepted", link.role or "")

        user = await self.context.sessions.accept(_secret(request), who, audit)
        if user is None:
            raise EXPIRED
        return user

    async def _link(self, request: PageRequest, purpose: Purpose) -> LinkView:
        link = await self.context.sessions.find_link(_secret(request), purpose)
        if link is None:
            raise EXPIRED
        return link

    async def _wrong(
        self, request: PageRequest, link: LinkView, needed: tuple[str, ...], pending: PendingIdentity | None = None
    ) -> dict[str, str]:
        errors = {name: "This field is required." for name in needed if not request.single_line(name)}
        if pending is not None:
            return errors
        chosen, known = request.form.get("password", ""), (link.email, request.single_line("name"), request.single_line("account"))
        wrong = await self.authentication.password_problem(_secret(request), chosen, *known)
        return errors | ({"password": wrong} if wrong else {})

    async def _new(self, request: PageRequest, pending: PendingIdentity | None) -> NewUser:
        """The new user: with a password, or with the identity of a ticket."""
        name = request.single_line("name")[:100]
        if pending is None:
            return NewUser(name, await self.authentication.passwords.hash(request.form["password"]))
        ends = datetime.fromtimestamp(unix(self.context.clock) + tickets.LIFE, UTC)
        return NewUser(name, None, pending.identity, ticket=(pending.ticket, ends))

    # From an identity provider

    def pending(self, request: PageRequest, identity: Identity, email: str, name: str) -> str:
        """A ticket with an identity that belongs to no user yet, for this browser."""
        facts = {"issuer": identity.issuer, "subject": identity.subject, "provider": identity.provider, "label": identity.label}
        return tickets.issue(self.context.secrets()[0], request.binding, COMING, unix(self.context.clock), **facts, email=email, name=name)

    def _pending(self, request: PageRequest) -> PendingIdentity | None:
        text = request.field("ticket") or request.query("ticket")
        if not text:
            return None
        facts = tickets.read(self.context.secrets(), request.binding, COMING, text, unix(self.context.clock))
        if facts is None or facts["provider"] not in self.context.providers:
            raise EXPIRED
        identity = Identity(facts["issuer"], facts["subject"], facts["provider"], facts["label"])
        return PendingIdentity(identity, facts["email"], facts["name"], text)


_SIGN_UP = {"title": "Create your account", "button": "Create account", "asks": ("name", "account")}
_RESET = {"title": "Set a new password", "button": "Set password", "asks": ()}
_INVITED = {"title": "Accept your invitation", "button": "Join", "asks": ("name",)}


def _secret(request: PageRequest) -> str:
    return request.field("link") or request.query("link")


async def _awaited(work: Awaitable[None]) -> None:
    await work
