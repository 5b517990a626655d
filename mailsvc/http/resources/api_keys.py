"""API keys: create, list, rename, delete. The key itself is in the response to its creation, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.http import parameters
from mailsvc.http.answer import audited, collection, created, ok, page
from mailsvc.http.fields import Choice, Id, Moment, OneOrMany, Record, Text, Unsupported, Wrong
from mailsvc.http.operations import PAGING, operation
from mailsvc.http.problem import invalid, not_found
from mailsvc.http.reading import Reader
from mailsvc.http.request import Request
from mailsvc.http.views import Listing, View, acknowledged, choice, const, maybe, text, texts, time, uuid
from mailsvc.net import allow_list
from mailsvc.store.domains.domains import Domains
from mailsvc.store.people.api_keys import NAME_MAX, Keys, KeyView, Permission, TooManyKeys, described, restrictable

PERMISSIONS = ("full_access", "sending_access")
_NAME = Text("A name that says where the key is used.", "Shop (production)", most=NAME_MAX, required=True, blank=False)


def _network(text: str) -> str:
    try:
        return allow_list.read(text)
    except ValueError as wrong:
        raise Wrong(str(wrong)) from None


CREATE = Record(
    title="CreateApiKey",
    fields={
        "name": _NAME,
        "permission": Choice(
            "`full_access` (default), or `sending_access`: can only send emails.",
            "full_access",
            words=PERMISSIONS,
            error="invalid_access",
            blank=False,
        ),
        "domain_id": Id("The only domain that the key can send from. Requires `sending_access`."),
        "networks": OneOrMany(
            "Addresses and networks from which the key can be used. By default from any.",
            ["192.0.2.0/24", "2001:db8::/48"],
            item=Text("", "192.0.2.0/24", parse=_network, most=50, blank=False),
            most=allow_list.MOST,
            noun="networks",
        ),
        "expires_at": Moment("When the key stops working: ISO 8601 with a UTC offset, in the future. By default never."),
    },
    example={"name": "Shop (production)", "permission": "sending_access"},
)
_FIXED = Unsupported("Only the `name` of a key can be changed. Create another key and delete this one.")  # ignored, it would seem to apply
RENAME = Record(title="RenameApiKey", fields={"name": _NAME, **{name: _FIXED for name in CREATE.fields if name != "name"}})

KEY = View(
    "ApiKeyRow",
    {
        "id": uuid("The key's ID."),
        "name": text("The name.", "Shop (production)"),
        "created_at": time("When it was created."),
        "last_used_at": maybe(time("When it was last used, to about a minute.")),
        "permission": choice("What the key can do.", PERMISSIONS),
        "domain_id": maybe(uuid("The only domain that the key can send from.")),
        "expires_at": maybe(time("When it stops working; null: never.")),
        "networks": texts("Addresses and networks from which it can be used; empty: from any.", ["192.0.2.0/24"]),
        "hint": text("The beginning of the key.", "ms_4f1c9a"),
    },
)
CREATED = View("CreatedApiKey", {"id": uuid("The key's ID."), "token": text("The key. It is never shown again.", "ms_4f1c9a…")})
RENAMED = acknowledged("api_key", "RenamedApiKey", "The key's ID.")
DELETED = acknowledged("api_key", "DeletedApiKey", "The key's ID.", deleted=const(True, "Always true."))


@attrs.define(eq=False)
class ApiKeys:
    app = collection()
    keys: Keys
    domains: Domains
    reader: Reader
    clock: Any

    @app.route("/api-keys", methods=["POST"])
    @operation(
        "Create an API key", "The key itself is in the response, and is never shown again.", CREATED, status=201, body=CREATE, errors=[404]
    )
    async def create(self, request: Request) -> bytes:
        return await request.detached(self._create(request))

    async def _create(self, request: Request) -> bytes:
        given = await self.reader.record(request, CREATE)
        account_id, domain_id = request.caller.account_id, given["domain_id"]
        permission: Permission = given["permission"] or "full_access"
        if domain_id is not None and not restrictable(permission):
            raise invalid("The `domain_id` field requires the permission `sending_access`.")
        domain = await self.domains.own(account_id, domain_id) if domain_id is not None else None
        if domain_id is not None and domain is None:
            raise not_found("Domain")
        expires_at: datetime | None = given["expires_at"]
        if expires_at is not None and expires_at <= utc(self.clock):
            raise invalid("The `expires_at` field must be in the future.")
        networks: Sequence[str] = given["networks"] or ()
        line = audited(request, "key created", described(given["name"], permission, domain, expires_at, networks))
        try:
            key_id, token = await self.keys.create(
                account_id,
                given["name"],
                permission,
                domain_id,
                [line],
                created_with=request.caller.key_id,
                expires_at=expires_at,
                networks=networks,
            )
        except TooManyKeys as wrong:
            raise invalid(str(wrong)) from None
        return created(request, CREATED.show(id=key_id, token=token))

    @app.route("/api-keys", methods=["GET"])
    @operation("List API keys", "The keys of the account, newest first; all of them without parameters.", Listing(KEY), parameters=PAGING)
    async def list(self, request: Request) -> bytes:
        keys, has_more = await request.detached(self.keys.list(request.caller.account_id, parameters.page(request, default=None)))
        return page(request, KEY, keys, has_more)

    @app.route("/api-keys/<id>", methods=["PATCH"])
    @operation("Rename an API key", "Changes the name of a key.", RENAMED, body=RENAME)
    async def rename(self, request: Request, id: str) -> bytes:
        return await request.detached(self._rename(request, parameters.uuid(id, "id")))

    async def _rename(self, request: Request, key_id: UUID) -> bytes:
        given = await self.reader.record(request, RENAME)
        key = await self._key(request, key_id)
        line = audited(request, "key renamed", f"{key.name} ({key.hint}…) to {given['name']}")
        if not await self.keys.rename(request.caller.account_id, key_id, given["name"], [line]):
            raise not_found("API key")
        return ok(request, RENAMED.show(id=key_id))

    @app.route("/api-keys/<id>", methods=["DELETE"])
    @operation("Delete an API key", "The key stops working within two seconds.", DELETED)
    async def delete(self, request: Request, id: str) -> bytes:
        return await request.detached(self._delete(request, parameters.uuid(id, "id")))

    async def _delete(self, request: Request, key_id: UUID) -> bytes:
        key = await self._key(request, key_id)
        line = audited(request, "key revoked", f"{key.name} ({key.hint}…)")
        if not await self.keys.revoke(request.caller.account_id, key_id, [line]):
            raise not_found("API key")
        return ok(request, DELETED.show(id=key_id))

    async def _key(self, request: Request, key_id: UUID) -> KeyView:
        key = await self.keys.get(request.caller.account_id, key_id)
        if key is None:
            raise not_found("API key")
        return key
