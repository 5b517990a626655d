"""API keys: creating one (shown once), the list, revoking."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import attrs

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import PageRequest, not_found, page, section_app
from mailsvc.dashboard.safety import HOME
from mailsvc.store.domains.domains import Domains
from mailsvc.store.domains.values import Domain
from mailsvc.store.people.api_keys import NAME_MAX, Keys, Permission, described, restrictable

KEYS = f"{HOME}/keys"
LIFETIMES: dict[str, tuple[str, timedelta | None]] = {
    "": ("Never", None),
    "30": ("In 30 days", timedelta(days=30)),
    "90": ("In 90 days", timedelta(days=90)),
    "365": ("In a year", timedelta(days=365)),
}
_DONE = {"demoted": "Role changed. Full-access keys they created still work. Revoke any they shouldn’t have."}


@attrs.define(eq=False)
class KeyPages:
    app = section_app()
    context: PageContext
    keys: Keys
    domains: Domains

    @page(app, KEYS, access="see_setup")
    async def list(self, request: PageRequest) -> bytes:
        return await self._listed(request)

    @page(app, KEYS, "POST", access="change_setup")
    async def create(self, request: PageRequest) -> bytes:
        """Full access requires an admin with a recent proof of identity, since such a key can read and change the whole account."""
        name, permission, limit = request.single_line("name"), request.field("permission"), request.field("domain")
        domains, _ = await self.domains.list(request.account_id)
        domain = next((d for d in domains if str(d.id) == limit), None)
        errors: dict[str, str] = {}
        if not name or len(name) > NAME_MAX:
            errors["name"] = f"Enter a name of 1 to {NAME_MAX} characters."
        if permission not in ("full_access", "sending_access"):
            errors["permission"] = "Choose a permission."
        if limit and domain is None:
            errors["domain"] = "This domain doesn’t exist. Choose one from the list."
        elif domain is not None and not restrictable(permission):
            errors["domain"] = "Only keys with sending access can be limited to a domain."
        if request.field("lifetime") not in LIFETIMES:
            errors["lifetime"] = "Choose when the key expires."
        if permission == "full_access" and not request.may("administer"):
            errors["permission"] = "Only admins can create keys with full access."
        if errors:
            return await self._listed(request, errors=errors)
        if permission == "full_access" and not request.reauthenticated:
            return request.ask_to_reauthenticate()
        lifetime = LIFETIMES[request.field("lifetime")][1]
        expires_at = None if lifetime is None else self.context.now() + lifetime
        entry = request.audit_entry("key created", described(name, cast(Permission, permission), domain, expires_at))
        _, secret = await self.keys.create(
            request.account_id,
            name,
            cast(Permission, permission),
            domain.id if domain else None,
            [entry],
            created_by=request.user_session.user_id,
            expires_at=expires_at,
        )
        return await self._listed(request, secret=secret, limit=domain)

    @page(app, f"{KEYS}/<text>/revoke", "POST", access="change_setup")
    async def revoke(self, request: PageRequest, text: str) -> bytes:
        key_id = request.uuid(text, "key")
        key = next((k for k in (await self.keys.list(request.account_id))[0] if k.id == key_id), None)
        if key is None:
            raise not_found("key")
        if not await self.keys.revoke(request.account_id, key_id, [request.audit_entry("key revoked", f"{key.name} ({key.hint}…)")]):
            raise not_found("key")
        return request.redirect(KEYS)

    async def _listed(
        self, request: PageRequest, secret: str = "", errors: dict[str, str] | None = None, limit: Domain | None = None
    ) -> bytes:
        """`limit`: the only domain that the new key can send from."""
        domains, _ = await self.domains.list(request.account_id)
        return request.render(
            "keys.html",
            422 if errors else 200,
            keys=(await self.keys.list(request.account_id))[0],
            domains={domain.id: domain for domain in domains},
            members={member.user_id for member in await self.context.users.members(request.account_id)},
            done=_DONE.get(request.query("done"), ""),
            secret=secret,
            code=self.context.samples.of([limit] if limit else domains, request.user_session.email, secret),
            errors=errors or {},
            lifetimes=LIFETIMES,
            name_max=NAME_MAX,
        )
