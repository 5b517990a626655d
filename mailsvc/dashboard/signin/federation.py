"""Signing in with an identity provider: the redirect there, the callback, and the user it belongs to.

An identity is an issuer and a subject. It is connected to a user who is signed in, or to a new user. A matching email address alone
never connects it.
"""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import attrs
from twisted.logger import Logger

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import REAUTHENTICATION_LIFETIME, SECURITY, SIGN_IN, PageError, PageRequest, not_found, page, section_app
from mailsvc.dashboard.safety import inside
from mailsvc.dashboard.signin.completion import Authentication, when_signed_in
from mailsvc.dashboard.signin.providers import Claims, Provider, ProviderError
from mailsvc.dashboard.signin.sign_up import INVITATION, SIGN_UP, EmailLinkPages

WITH = f"{SIGN_IN}/with"
STATE = "state"
log = Logger()


@attrs.define(eq=False)
class Federation:
    app = section_app()
    context: PageContext
    authentication: Authentication
    email_links: EmailLinkPages

    @page(app, f"{WITH}/<name>", "POST", access="public")
    async def go(self, request: PageRequest, name: str) -> bytes:
        """Redirect through a page with a refresh, since the CSP restricts forms to our own pages."""
        provider, why = self._provider(name), request.field("why")
        signed_in = request.session is not None and request.session.stage == "whole"
        if why in ("connect", "again") and not signed_in:
            return request.redirect(SIGN_IN)
        if why == "connect" and not request.reauthenticated:
            return request.ask_to_reauthenticate()
        if why == "again" and not provider.reports_sign_in_time:
            raise _unproved(provider)
        authorization = self.authentication.begin_state(
            request, STATE, _back(name), why == "again", provider=name, why=why, next=inside(request.field("next"))
        )
        try:
            to = await provider.page(authorization)
            return request.render("signin/leaving.html", to=to, title=provider.title)
        except ProviderError as error:
            raise _failed(error, name) from None

    @page(app, f"{WITH}/<name>/back", access="public")
    async def back(self, request: PageRequest, name: str) -> bytes:
        provider = self._provider(name)
        facts, authorization = await self.authentication.take_state(request, STATE, _back(name), provider=name)
        if request.query("error") or not request.query("code"):
            raise PageError(403, "Not signed in", f"{provider.title} didn’t confirm who you are. Sign in another way.")
        try:
            claimed = await provider.identify(authorization, request.query("code"), request.query("iss"))
        except ProviderError as error:
            raise _failed(error, name) from None
        signed_in = request.session is not None and request.session.stage == "whole"
        if facts["why"] == "connect":
            return await self._connect(request, provider, claimed) if signed_in else request.redirect(SIGN_IN)
        if facts["why"] == "again":
            return await self._again(request, provider, claimed, facts["next"]) if signed_in else request.redirect(SIGN_IN)
        return await self._enter(request, provider, claimed, facts["next"])

    async def _enter(self, request: PageRequest, provider: Provider, claimed: Claims, next_: str) -> bytes:
        user_id = await self.context.identities.use(claimed.identity)
        user = await self.context.users.get(user_id) if user_id is not None else None
        if user is not None:
            return await self.authentication.sign_in(request, user, next_, proof=provider.name, proved_at=when_signed_in(claimed))
        return await self._new(request, provider, claimed, next_)

    async def _new(self, request: PageRequest, provider: Provider, claimed: Claims, next_: str) -> bytes:
        """No user is connected yet: accept an invitation, sign up, or show what to do."""
        ticket = self.email_links.pending(request, claimed.identity, claimed.email, claimed.name)
        split = urlsplit(next_)
        if split.path == INVITATION:
            return request.redirect(INVITATION, link=parse_qs(split.query).get("link", [""])[0], ticket=ticket)
        if not claimed.email:
            message = f"{provider.title} hasn’t verified your email address. Sign in or sign up with it, then connect {{0}}."
        elif await self.context.users.named(claimed.email) is not None:
            message = f"{claimed.email} is already registered. Sign in as before, then connect {{0}} in Settings → Security."
        elif not self.context.sign_up:
            message = "No user is connected to this {0} sign-in. Ask an account admin to invite you."
        else:
            return request.redirect(f"{SIGN_UP}/finish", ticket=ticket)
        return request.render("signin/unknown.html", 403, message=message.format(provider.title))

    async def _connect(self, request: PageRequest, provider: Provider, claimed: Claims) -> bytes:
        who = request.user_session
        if await self.context.identities.owner(claimed.identity) not in (None, who.user_id):
            return request.redirect(SECURITY, done="taken")
        entry = request.own_audit_entry("identity connected", f"{provider.name}: {claimed.identity.label}")
        if await self.context.identities.add(who.user_id, claimed.identity, [entry]):
            await self.authentication.send_notice(
                request, who.email, f"sign-in with {provider.title} as {claimed.identity.label} was connected"
            )
        return request.redirect(SECURITY, done="connected")

    async def _again(self, request: PageRequest, provider: Provider, claimed: Claims, next_: str) -> bytes:
        if await self.context.identities.use(claimed.identity) != request.user_session.user_id:
            raise PageError(403, "Different user", "That sign-in belongs to a different user than the one signed in here.")
        at = when_signed_in(claimed)
        if self.context.now() - at > REAUTHENTICATION_LIFETIME:
            raise _unproved(provider)
        await request.mark_reauthenticated(claimed.identity.provider, at)
        return request.redirect(inside(next_))

    def _provider(self, name: str) -> Provider:
        provider = self.context.providers.get(name)
        if provider is None:
            raise not_found()
        return provider


def _back(name: str) -> str:
    return f"{WITH}/{name}/back"


def _unproved(provider: Provider) -> PageError:
    message = f"{provider.title} didn’t confirm that you just signed in there. Use your password, a passkey or a code instead."
    return PageError(403, "Confirm it’s you another way", message)


def _failed(error: ProviderError, name: str) -> PageError:
    log.warn("sign-in with {provider} failed: {reason}", provider=name, reason=error.detail)
    return PageError(502, "Sign-in failed", str(error))
