"""API keys: made and shown once, seen again by their first characters, revoked at once."""

from __future__ import annotations

from typing import cast

import attrs

from mailsvc.dashboard.desk import Desk
from mailsvc.dashboard.page import Visit, area, not_found, page
from mailsvc.dashboard.safety import HOME
from mailsvc.store.domains import Domains
from mailsvc.store.keys import Keys, Permission

KEYS = f"{HOME}/keys"
LONGEST = 50


@attrs.define(eq=False)
class KeyPages:
    app = area()
    desk: Desk
    keys: Keys
    domains: Domains

    @page(app, KEYS)
    async def list(self, visit: Visit) -> bytes:
        return await self._listed(visit)

    @page(app, KEYS, "POST")
    async def create(self, visit: Visit) -> bytes:
        name, permission, limit = visit.field("name"), visit.field("permission"), visit.field("domain")
        domains, _ = await self.domains.list(visit.account_id)
        domain = next((d for d in domains if str(d.id) == limit), None)
        errors: dict[str, str] = {}
        if not name or len(name) > LONGEST:
            errors["name"] = f"A name has 1 to {LONGEST} characters."
        if permission not in ("full_access", "sending_access"):
            errors["permission"] = "Choose one."
        if domain is not None and permission != "sending_access":
            errors["domain"] = "Only a key for sending can be held to one domain."
        if errors:
            return await self._listed(visit, errors=errors)
        line = visit.line("key created", f"{name} ({permission}{', ' + domain.name if domain else ''})")
        _, secret = await self.keys.create(visit.account_id, name, cast(Permission, permission), domain.id if domain else None, [line])
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
            secret=secret,
            errors=errors or {},
        )
