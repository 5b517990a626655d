"""Signing in at another service: the way there, the way back, and who that is here.

Who somebody is there is an issuer and a subject. They are connected to somebody here by who is signed in here, or when they are new;
an address alone connects nobody.
"""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import attrs
from twisted.logger import Logger

from mailsvc.clock import unix
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import FRESH, NEVER, SECURITY, SIGN_IN, Stop, Visit, area, not_found, page
from mailsvc.dashboard.safety import inside
from mailsvc.dashboard.signin import tickets
from mailsvc.dashboard.signin.completion import Entrance
from mailsvc.dashboard.signin.providers import Ask, Claimed, NoIdentity, Provider
from mailsvc.dashboard.signin.sign_up import INVITATION, SIGN_UP, Joining

WITH = f"{SIGN_IN}/with"
STATE = "state"
STRAY = Stop(400, "Sign-in expired", "This sign-in was started in another browser, was already used, or took longer than 10 minutes.")
log = Logger()


@attrs.define(eq=False)
class Federation:
    app = area()
    desk: PageContext
    entrance: Entrance
    joining: Joining

    @page(app, f"{WITH}/<name>", "POST", who="anybody")
    async def go(self, visit: Visit, name: str) -> bytes:
        """By a page of ours that goes on by itself: a form of ours leads to our pages alone."""
        provider, why = self._provider(name), visit.field("why")
        signed_in = visit.session is not None and visit.session.stage == "whole"
        if why in ("connect", "again") and not signed_in:
            return visit.redirect(SIGN_IN)
        if why == "connect" and not visit.fresh:
            return visit.prove_again()
        if why == "again" and not provider.tells_when:
            raise _unproved(provider)
        now = unix(self.desk.clock)
        next_ = inside(visit.field("next"))
        secret = self.desk.secrets()[0]
        state = tickets.issue(secret, visit.anchor, STATE, now, provider=name, why=why, next=next_)
        try:
            to = await provider.page(self._ask(name, state, secret, why == "again"))
            return visit.render("signin/leaving.html", to=to, title=provider.title)
        except NoIdentity as error:
            raise _told(error, name) from None

    @page(app, f"{WITH}/<name>/back", who="anybody")
    async def back(self, visit: Visit, name: str) -> bytes:
        provider, state, now = self._provider(name), visit.query("state"), unix(self.desk.clock)
        secrets = self.desk.secrets()
        facts, secret = tickets.read(secrets, visit.anchor, STATE, state, now), tickets.signer(secrets, visit.anchor, STATE, state)
        if facts is None or secret is None or facts["provider"] != name:
            raise STRAY
        if not await self.entrance.attempts.spend(state, datetime.fromtimestamp(now + tickets.LIFE, UTC)):
            raise STRAY
        if visit.query("error") or not visit.query("code"):
            raise Stop(403, "Not signed in", f"{provider.title} didn’t confirm who you are. Sign in another way.")
        try:
            claimed = await provider.identify(self._ask(name, state, secret), visit.query("code"), visit.query("iss"))
        except NoIdentity as error:
            raise _told(error, name) from None
        signed_in = visit.session is not None and visit.session.stage == "whole"
        if facts["why"] == "connect":
            return await self._connect(visit, provider, claimed) if signed_in else visit.redirect(SIGN_IN)
        if facts["why"] == "again":
            return await self._again(visit, provider, claimed, facts["next"]) if signed_in else visit.redirect(SIGN_IN)
        return await self._enter(visit, provider, claimed, facts["next"])

    async def _enter(self, visit: Visit, provider: Provider, claimed: Claimed, next_: str) -> bytes:
        user_id = await self.desk.identities.use(claimed.identity)
        user = await self.desk.users.get(user_id) if user_id is not None else None
        if user is not None:
            at = NEVER if claimed.signed_in_at is None else datetime.fromtimestamp(claimed.signed_in_at, UTC)
            return await self.entrance.enter(visit, user, next_, proof=provider.name, proved_at=at)
        return await self._new(visit, provider, claimed, next_)

    async def _new(self, visit: Visit, provider: Provider, claimed: Claimed, next_: str) -> bytes:
        """Nobody here yet: they were invited, they sign up, or they are told what to do."""
        ticket = self.joining.coming(visit, claimed.identity, claimed.email, claimed.name)
        split = urlsplit(next_)
        if split.path == INVITATION:
            return visit.redirect(INVITATION, link=parse_qs(split.query).get("link", [""])[0], ticket=ticket)
        if not claimed.email:
            sentence = f"{provider.title} hasn’t verified your email address. Sign in or sign up with it, then connect {{0}}."
        elif await self.desk.users.named(claimed.email) is not None:
            sentence = f"{claimed.email} is already registered. Sign in as before, then connect {{0}} in Settings → Security."
        elif not self.desk.sign_up:
            sentence = "No user is connected to this {0} sign-in. Ask an account admin to invite you."
        else:
            return visit.redirect(f"{SIGN_UP}/finish", ticket=ticket)
        return visit.render("signin/unknown.html", 403, sentence=sentence.format(provider.title))

    async def _connect(self, visit: Visit, provider: Provider, claimed: Claimed) -> bytes:
        who = visit.who
        if await self.desk.identities.owner(claimed.identity) not in (None, who.user_id):
            return visit.redirect(SECURITY, done="taken")
        line = visit.own_line("identity connected", f"{provider.name}: {claimed.identity.label}")
        if await self.desk.identities.add(who.user_id, claimed.identity, [line]):
            await self.entrance.notice(visit, who.email, f"sign-in with {provider.title} as {claimed.identity.label} was connected")
        return visit.redirect(SECURITY, done="connected")

    async def _again(self, visit: Visit, provider: Provider, claimed: Claimed, next_: str) -> bytes:
        if await self.desk.identities.use(claimed.identity) != visit.who.user_id:
            raise Stop(403, "Different user", "That sign-in belongs to a different user than the one signed in here.")
        at = NEVER if claimed.signed_in_at is None else datetime.fromtimestamp(claimed.signed_in_at, UTC)
        if self.desk.now() - at > FRESH:
            raise _unproved(provider)
        await visit.proved(claimed.identity.provider, at)
        return visit.redirect(inside(next_))

    def _provider(self, name: str) -> Provider:
        provider = self.desk.providers.get(name)
        if provider is None:
            raise not_found()
        return provider

    def _ask(self, name: str, state: str, secret: bytes, again: bool = False) -> Ask:
        nonce, verifier = (tickets.derived(secret, state, what) for what in ("nonce", "verifier"))
        return Ask(f"{self.desk.base_url}{WITH}/{name}/back", state, nonce, verifier, again)


def _unproved(provider: Provider) -> Stop:
    sentence = f"{provider.title} didn’t confirm that you just signed in there. Use your password, a passkey or a code instead."
    return Stop(403, "Confirm it’s you another way", sentence)


def _told(error: NoIdentity, name: str) -> Stop:
    log.warn("sign-in with {provider} failed: {reason}", provider=name, reason=error.detail)
    return Stop(502, "Sign-in failed", str(error))
