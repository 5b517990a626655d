"""API keys: made and shown once, seen again by their first characters, revoked at once."""

from __future__ import annotations

from typing import cast

import attrs

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.page import Visit, area, not_found, page
from mailsvc.dashboard.safety import HOME
from mailsvc.store.domains.domains import Domains
from mailsvc.store.people.api_keys import Keys, Permission

KEYS = f"{HOME}/keys"
LONGEST = 50
_DONE = {"demoted": "Role changed. Full-access keys they created still work. Revoke any they shouldn’t have."}


@attrs.define(eq=False)
class KeyPages:
    app = area()
    desk: PageContext
    keys: Keys
    domains: Domains

    @page(app, KEYS)
    async def list(self, visit: Visit) -> bytes:
        return await self._listed(visit)

    @page(app, KEYS, "POST")
    async def create(self, visit: Visit) -> bytes:
        """Full access is for admins who have just proved who they are: such a key can read and change everything of the account."""
        name, permission, limit = visit.words("name"), visit.field("permission"), visit.field("domain")
        domains, _ = await self.domains.list(visit.account_id)
        domain = next((d for d in domains if str(d.id) == limit), None)
        errors: dict[str, str] = {}
        if not name or len(name) > LONGEST:
            errors["name"] = f"Enter a name of 1 to {LONGEST} characters."
        if permission not in ("full_access", "sending_access"):
            errors["permission"] = "Choose a permission."
        if limit and domain is None:
            errors["domain"] = "This domain doesn’t exist. Choose one from the list."
        elif domain is not None and permission != "sending_access":
            errors["domain"] = "Only keys with sending access can be limited to a domain."
        if permission == "full_access" and not visit.admin:
            errors["permission"] = "Only admins can create keys with full access."
        if errors:
            return await self._listed(visit, errors=errors)
        if permission == "full_access" and not visit.fresh:
            return visit.prove_again()
        line = visit.line("key created", f"{name} ({permission}{', ' + domain.name if domain else ''})")
        _, secret = await self.keys.create(
            visit.account_id, name, cast(Permission, permission), domain.id if domain else None, [line], created_by=visit.who.user_id
        )
        return await self._listed(visit, secret=secret)

    @page(app, f"{KEYS}/<text>/revoke", "POST")
    async def revoke(self, visit: Visit, text: str) -> bytes:
        key_id = visit.uuid(text, "key")
        key = next((k for k in (await self.keys.list(visit.account_id))[0] if k.id == key_id), None)
        if key is None:
            raise not_found("key")
        if not await self.keys.revoke(visit.account_id, key_id, [visit.line("key revoked", f"{key.name} ({key.hint}…)")]):
            raise not_found("key")
        return visit.redirect(KEYS)

    async def _listed(self, visit: Visit, secret: str = "", errors: dict[str, str] | None = None) -> bytes:
        domains, _ = await self.domains.list(visit.account_id)
        return visit.render(
            "keys.html",
            422 if errors else 200,
            keys=(await self.keys.list(visit.account_id))[0],
            domains={domain.id: domain for domain in domains},
            members={member.user_id for member in await self.desk.users.members(visit.account_id)},
            done=_DONE.get(visit.query("done"), ""),
            secret=secret,
            errors=errors or {},
        )
