"""Signing in with the provider of an account: the domain of an address leads there, and the callback to a member of the account.

A member is recognised by the verified address at the first sign-in, and by issuer and subject from then on. Each account has a callback URL
of its own, so that one provider cannot have us send it a code of another (9700 §4.4). The page for admins is account/single_sign_on.py.
"""

from __future__ import annotations

import attrs
from twisted.logger import Logger

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import REAUTHENTICATION_LIFETIME, SIGN_IN, PageError, PageRequest, not_found, page, section_app
from mailsvc.dashboard.safety import inside
from mailsvc.dashboard.signin.account_providers import NAME, AccountProviders
from mailsvc.dashboard.signin.completion import Authentication, is_address, when_signed_in
from mailsvc.dashboard.signin.pages import SignIn
from mailsvc.dashboard.signin.providers import Claims, ProviderError
from mailsvc.domains.names import typed_address
from mailsvc.store.people.audit import Line
from mailsvc.store.people.identities import Identity
from mailsvc.store.people.single_sign_on import SingleSignOn
from mailsvc.store.people.users import User

SSO = f"{SIGN_IN}/sso"
UNKNOWN = "No account uses single sign-on for this address. Sign in another way."
NOT_A_MEMBER = "You’re not a member of the account that uses this single sign-on. Ask one of its admins to invite you."
log = Logger()


def callback(account_id: object) -> str:
    """The path that a provider sends people back to. Registered there, so it cannot change."""
    return f"{SSO}/{account_id}/back"


class NotAdmitted(Exception):
    """The provider identified somebody who may not sign in. The message is for them."""


@attrs.define(eq=False)
class SingleSignOnPages:
    app = section_app()
    context: PageContext
    authentication: Authentication
    providers: AccountProviders
    form: SignIn

    @page(app, SSO, "POST", access="public")
    async def go(self, request: PageRequest) -> bytes:
        """Leads to the provider of an address, whether or not the address belongs to a user.

        `why`: `again` to confirm the identity, `fresh` to sign in without an old session at the provider.
        """
        why, next_ = request.field("why"), inside(request.field("next"))
        again = why == "again"
        if again and not _signed_in(request):
            return request.redirect(SIGN_IN)
        email = request.user_session.email if again else typed_address(request.field("email"))
        if not is_address(email):
            return await self.form.shown(request, next_, email, {"email": "Enter your email address."}, 422)
        subjects = self.authentication.throttle_subjects(request, email, NAME)
        refused = await self.authentication.throttled(subjects)
        if refused is not None:
            return await self.form.shown(request, next_, email, {"email": refused.message}, refused.status)
        found = await self.context.single_sign_ons.of_address(email)
        if found is None:
            await self.authentication.throttle.failed(subjects)
            return await self.form.shown(request, next_, email, {"email": UNKNOWN}, 422)
        provider, account = self.providers.of(found), str(found.account_id)
        authorization = self.authentication.begin_state(
            request, NAME, callback(account), why in ("again", "fresh"), email, account=account, email=email, why=why, next=next_
        )
        try:
            to = await provider.page(authorization)
        except ProviderError as error:
            return await self._failed(request, found, email, next_, error)
        return request.render("signin/leaving.html", to=to, title=provider.title)

    @page(app, f"{SSO}/<account>/back", access="public")
    async def back(self, request: PageRequest, account: str) -> bytes:
        account_id = request.uuid(account)
        facts, authorization = await self.authentication.take_state(request, NAME, callback(account), account=account)
        found = await self.context.single_sign_ons.of_account(account_id)
        if found is None:
            raise not_found()
        email, next_, provider = facts["email"], inside(facts["next"]), self.providers.of(found)
        try:
            if request.query("error") or not request.query("code"):
                said = f"{provider.title} didn’t confirm who you are. Try again, or ask an admin of your account."
                raise ProviderError(said, f"error {request.query('error')[:100]!r}")
            claimed = await provider.identify(authorization, request.query("code"), request.query("iss"))
        except ProviderError as error:
            return await self._failed(request, found, email, next_, error)
        if facts["why"] == "again":
            return await self._again(request, found, claimed, next_)
        return await self._enter(request, found, claimed, email, next_)

    async def _enter(self, request: PageRequest, found: SingleSignOn, claimed: Claims, email: str, next_: str) -> bytes:
        try:
            user = await self._user(request, found, claimed)
        except NotAdmitted as refused:
            # Without an address the label is a name that the person chose. As the actor, it could be "the operator".
            known_as = f"{NAME} as {claimed.identity.label}"
            line = _line(request, found, claimed.email or email, "sign-in refused", f"{known_as}: {refused}")
            await self.context.audit.write(line)
            await self.authentication.throttle.failed(self.authentication.throttle_subjects(request, email, NAME))
            return await self.form.shown(request, next_, email, {"single_sign_on": str(refused)}, 403)
        await self.authentication.throttle.passed(self.authentication.throttle_subjects(request, email, NAME))
        # The provider answers for its own account. Members of other accounts enter their second factor for those.
        elsewhere = len(await self.context.users.accounts(user.id)) > 1
        return await self.authentication.sign_in(
            request, user, next_, proof=NAME, both=not elsewhere, proved_at=when_signed_in(claimed), single_sign_on=found.account_id
        )

    async def _user(self, request: PageRequest, found: SingleSignOn, claimed: Claims) -> User:
        """The member that the provider identified. Raises NotAdmitted."""
        known = await self.context.single_sign_ons.member(found.account_id, claimed.identity)
        user = await self.context.users.get(known) if known is not None else None
        if user is not None:
            if not found.covers(user.email):  # they changed it here
                raise NotAdmitted(f"This account uses single sign-on only for addresses at {', '.join(found.claimed)}.")
            return user
        if not claimed.email:
            raise NotAdmitted(f"{_title(found)} didn’t confirm that your email address is verified. Ask an admin of your account.")
        if not found.covers(claimed.email) or not is_address(claimed.email):
            raise NotAdmitted(f"This account uses single sign-on only for addresses at {', '.join(found.claimed)}.")
        user = await self.context.users.named(claimed.email)
        return await (self._connected(request, found, claimed.identity, user) if user is not None else self._new(request, found, claimed))

    async def _connected(self, request: PageRequest, found: SingleSignOn, identity: Identity, user: User) -> User:
        """The member with a verified address, from now on recognised by their identity at the provider."""
        if found.account_id not in [account.account_id for account in await self.context.users.accounts(user.id)]:
            raise NotAdmitted(NOT_A_MEMBER)
        entry = Line(found.account_id, None, user.id, user.email, request.address, "single sign-on connected", identity.label)
        if not await self.context.single_sign_ons.bind(found.account_id, user.id, identity, [entry]):
            taken = f"{user.email} belongs to a different user at {_title(found)}."
            raise NotAdmitted(f"{taken} Ask an admin to remove you from the account and invite you again.")
        await self.authentication.send_notice(request, user.email, f"sign-in with {_title(found)} was connected")
        return user

    async def _new(self, request: PageRequest, found: SingleSignOn, claimed: Claims) -> User:
        if not found.new_members:
            raise NotAdmitted(NOT_A_MEMBER)
        user = await self.context.single_sign_ons.add_member(
            found.account_id, claimed.email, claimed.name, claimed.identity, request.address
        )
        if user is None:  # another sign-in was faster
            raise NotAdmitted("Your sign-in ran twice at the same time. Try again.")
        return user

    async def _again(self, request: PageRequest, found: SingleSignOn, claimed: Claims, next_: str) -> bytes:
        if not _signed_in(request):
            return request.redirect(SIGN_IN)
        if await self.context.single_sign_ons.member(found.account_id, claimed.identity) != request.user_session.user_id:
            raise PageError(403, "Different user", "That sign-in belongs to a different user than the one signed in here.")
        at = when_signed_in(claimed)
        if self.context.now() - at > REAUTHENTICATION_LIFETIME:
            message = f"{_title(found)} didn’t confirm that you just signed in there. Use your password, a passkey or a code instead."
            raise PageError(403, "Confirm it’s you another way", message)
        await request.mark_reauthenticated(NAME, at)
        return request.redirect(next_)

    async def _failed(self, request: PageRequest, found: SingleSignOn, email: str, next_: str, error: ProviderError) -> bytes:
        log.warn("single sign-on of {account} failed: {reason}", account=str(found.account_id), reason=error.detail)
        await self.authentication.throttle.failed(self.authentication.throttle_subjects(request, email, NAME))
        await self.context.audit.write(_line(request, found, email, "sign-in failed", f"{NAME}: {error.detail}"))
        return await self.form.shown(request, next_, email, {"single_sign_on": str(error)}, 502)


def _line(request: PageRequest, found: SingleSignOn, who: str, action: str, subject: str) -> Line:
    """An entry about somebody who is not signed in, in the log of the account whose provider they used."""
    return Line(found.account_id, None, None, who, request.address, action, subject)


def _signed_in(request: PageRequest) -> bool:
    return request.session is not None and request.session.stage == "whole"


def _title(found: SingleSignOn) -> str:
    return found.issuer.partition("://")[2].partition("/")[0]
