"""Settings → Single sign-on: the account's OpenID Connect provider, its email domains, and whether members must use it. For admins.

Signing in with it is signin/single_sign_on.py.
"""

from __future__ import annotations

import attrs

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import REAUTHENTICATION_LIFETIME, PageRequest, not_found, page, section_app
from mailsvc.dashboard.safety import HOME
from mailsvc.dashboard.signin.account_providers import AccountProviders
from mailsvc.dashboard.signin.providers import ProviderError
from mailsvc.dashboard.signin.single_sign_on import callback
from mailsvc.domains import names
from mailsvc.domains.names import NotADomain
from mailsvc.net.urls import BadUrl
from mailsvc.store.people.single_sign_on import DomainRefused, Provider, SingleSignOn
from mailsvc.store.postgres.errors import Conflict

SSO = f"{HOME}/settings/sso"
MOST = 50  # domains
LONGEST = {"issuer": 500, "client": 500, "secret": 1000}
NAMES = {"issuer": "issuer URL", "client": "client ID", "secret": "client secret"}
_DONE = {
    "saved": "Saved. Sign in with your provider to see that it works.",
    "changed": "Settings saved.",
    "optional": "Saved. Single sign-on is optional until you have signed in with the changed provider and require it again.",
    "on": "Single sign-on is required now. Sessions of members who signed in another way have ended.",
    "off": "Single sign-on is optional now.",
    "removed": "Single sign-on removed.",
}
NOT_PROVEN = "Sign in with your provider first. You can require it for 15 minutes after that."


@attrs.frozen
class Entered:
    """The form as it was filled in."""

    issuer: str = ""
    client: str = ""
    secret: str = attrs.field(default="", repr=False)
    domains: str = ""
    new_members: bool = False
    vouches: bool = False

    @classmethod
    def of(cls, request: PageRequest) -> Entered:
        texts = {name: request.field(name) for name in ("issuer", "client", "secret", "domains")}
        return cls(**texts, new_members=request.field("new_members") == "on", vouches=request.field("vouches") == "on")

    @classmethod
    def stored(cls, found: SingleSignOn) -> Entered:
        return cls(found.issuer, found.client, "", "\n".join(found.domains), found.new_members, found.vouches)


@attrs.define(eq=False)
class SingleSignOnSettings:
    app = section_app()
    context: PageContext
    providers: AccountProviders

    @page(app, SSO, access="administer")
    async def show(self, request: PageRequest) -> bytes:
        return await self._shown(request)

    @page(app, SSO, "POST", access="administer", reauthenticate=True)
    async def save(self, request: PageRequest) -> bytes:
        entered, found = Entered.of(request), await self._found(request)
        errors, domains = self._wrong(entered, found)
        if not errors and (found is None or found.issuer != entered.issuer):
            try:
                await self.providers.check(entered.issuer)
            except ProviderError as error:
                errors["issuer"] = f"This provider can’t be used. {error.detail}"
        if not errors:
            try:
                await self._save(request, entered, domains, found)
            except DomainRefused as refused:
                errors["domains"] = str(refused)
            except Conflict:
                errors["domains"] = "One of these domains is used for single sign-on by another account."
        if errors:
            return await self._shown(request, 422, entered, errors)
        now = await self._found(request)
        ended = found is not None and found.required and now is not None and not now.required
        return request.redirect(SSO, done="saved" if found is None else "optional" if ended else "changed")

    async def _save(self, request: PageRequest, entered: Entered, domains: list[str], found: SingleSignOn | None) -> None:
        given = Provider(entered.issuer, entered.client, entered.secret, domains, entered.new_members, entered.vouches)
        said = [given.issuer, f"client {given.client}", *domains]
        said += ["client secret changed"] if found is not None and given.secret else []
        said += ["new people become members"] if given.new_members else []
        said += ["addresses without email_verified are trusted"] if given.vouches else []
        action = "single sign-on set up" if found is None else "single sign-on changed"
        await self.context.single_sign_ons.save(request.account_id, given, [request.audit_entry(action, ", ".join(said))])

    def _wrong(self, entered: Entered, found: SingleSignOn | None) -> tuple[dict[str, str], list[str]]:
        """What is wrong, by field, and the domains."""
        errors = {name: f"Enter the {NAMES[name]}." for name in ("issuer", "client") if not getattr(entered, name)}
        errors |= {
            name: f"Use at most {most} characters." for name, most in LONGEST.items() if len(getattr(entered, name)) > most
        }  # fmt: skip
        if not entered.secret and found is None:
            errors["secret"] = "Enter the client secret."
        elif not entered.secret and found is not None and (found.issuer, found.client) != (entered.issuer, entered.client):
            errors["secret"] = (
                "Enter the client secret again, since the issuer or the client ID changes."  # or else it could be sent elsewhere
            )
        if "issuer" not in errors:
            try:
                self.providers.check_url(entered.issuer)
                if "?" in entered.issuer:
                    raise BadUrl("must not have a query")
            except BadUrl as error:
                errors["issuer"] = f"The issuer URL {error}."
        domains = _domains(entered.domains, errors)
        return errors, domains

    @page(app, f"{SSO}/require", "POST", access="administer", reauthenticate=True)
    async def require(self, request: PageRequest) -> bytes:
        found, required = await self._existing(request), request.field("required") == "on"
        if required and not self._proven(request, found):
            return await self._shown(request, 422, errors={"required": NOT_PROVEN})
        entry = request.audit_entry("single sign-on required" if required else "single sign-on made optional")
        await self.context.single_sign_ons.require(request.account_id, required, [entry])
        return request.redirect(SSO, done="on" if required else "off")

    @page(app, f"{SSO}/remove", "POST", access="administer", reauthenticate=True)
    async def remove(self, request: PageRequest) -> bytes:
        await self.context.single_sign_ons.remove(request.account_id, [request.audit_entry("single sign-on removed")])
        return request.redirect(SSO, done="removed")

    def _proven(self, request: PageRequest, found: SingleSignOn) -> bool:
        """Whether this admin has just signed in with the provider as it is now, so that requiring it does not lock everybody out."""
        session = request.user_session
        recent = self.context.now() - session.created_at <= REAUTHENTICATION_LIFETIME
        return session.single_sign_on == request.account_id and recent and session.created_at > found.changed_at

    async def _shown(
        self, request: PageRequest, status: int = 200, entered: Entered | None = None, errors: dict[str, str] | None = None
    ) -> bytes:
        found = await self._found(request)
        return request.render(
            "settings/sso.html", status, found=found, errors=errors or {}, done=_DONE.get(request.query("done"), ""),
            given=entered or (Entered() if found is None else Entered.stored(found)),
            lost=[] if found is None else [domain for domain in found.domains if domain not in found.claimed],
            ready=found is not None and self._proven(request, found),
            callback=f"{self.context.base_url}{callback(request.account_id)}",
        )  # fmt: skip

    async def _found(self, request: PageRequest) -> SingleSignOn | None:
        return await self.context.single_sign_ons.of_account(request.account_id)

    async def _existing(self, request: PageRequest) -> SingleSignOn:
        found = await self._found(request)
        if found is None:
            raise not_found("single sign-on")
        return found


def _domains(text: str, errors: dict[str, str]) -> list[str]:
    """The domains as A-labels. What is wrong with them is added to `errors`."""
    found: dict[str, None] = {}
    try:
        for line in text.split():
            found[names.parse(line).ascii] = None
    except NotADomain as error:
        errors["domains"] = f"{line[:100]}: {error}"
    if not found and "domains" not in errors:
        errors["domains"] = "Enter at least one domain."
    if len(found) > MOST:
        errors["domains"] = f"Enter at most {MOST} domains."
    return list(found)
