"""API keys: made, listed, renamed, deleted. The key itself is in the answer to its making, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import attrs

from mailsvc.http import parameters
from mailsvc.http.answer import audited, collection, ok
from mailsvc.http.describe import ID, PAGING, TEXT, TIME, acknowledged, const, listed, maybe, obj, told
from mailsvc.http.fields import Choice, Id, Record, Text
from mailsvc.http.problem import invalid, not_found
from mailsvc.http.reading import Reader
from mailsvc.http.request import Request
from mailsvc.http.resources.email_views import time, time_or_none
from mailsvc.store.domains.values import Domain
from mailsvc.store.paging import Page
from mailsvc.store.people.audit import Line

CREATE = Record(
    {
        "name": Text(most=50),
        "permission": Choice(("full_access", "sending_access"), wrong="invalid_access", about="`full_access` when left out."),
        "domain_id": Id("The only domain that the key may send from; with `sending_access` alone."),
    },
    required=["name"],
)
RENAME = Record({"name": Text(most=50)}, required=["name"])
KEY = obj(
    {
        "id": ID,
        "name": TEXT,
        "created_at": TIME,
        "last_used_at": maybe(TIME),
        "permission": {"enum": ["full_access", "sending_access"]},
        "domain_id": maybe(ID),
        "hint": {"type": "string", "description": "How the key begins."},
    }
)


class KeyView(Protocol):
    """store/people/api_keys.KeyView"""

    @property
    def id(self) -> UUID: ...
    @property
    def name(self) -> str: ...
    @property
    def hint(self) -> str: ...
    @property
    def permission(self) -> str: ...
    @property
    def domain_id(self) -> UUID | None: ...
    @property
    def created_at(self) -> datetime: ...
    @property
    def last_used_at(self) -> datetime | None: ...


class Keys(Protocol):
    """store/people/api_keys"""

    async def create(
        self, account_id: UUID, name: str, permission: Any, domain_id: UUID | None = None, lines: Sequence[Line] = (),
        *, created_with: UUID | None = None,
    ) -> tuple[UUID, str]: ...  # fmt: skip
    async def get(self, account_id: UUID, key_id: UUID) -> KeyView | None: ...
    async def revoke(self, account_id: UUID, key_id: UUID, lines: Sequence[Line] = ()) -> bool: ...
    async def rename(self, account_id: UUID, key_id: UUID, name: str, lines: Sequence[Line] = ()) -> bool: ...
    async def list(self, account_id: UUID, page: Page = ...) -> tuple[Sequence[KeyView], bool]: ...


class Domains(Protocol):
    """store/domains/domains"""

    async def own(self, account_id: UUID, domain_id: UUID) -> Domain | None: ...


@attrs.define(eq=False)
class ApiKeys:
    app = collection()
    keys: Keys
    domains: Domains
    reader: Reader

    @app.route("/api-keys", methods=["POST"])
    @told("Make an API key.", obj({"id": ID, "token": TEXT}), status=201, body=CREATE.schema, errors=[404])
    async def create(self, request: Request) -> bytes:
        return await request.detached(self._create(request))

    async def _create(self, request: Request) -> bytes:
        asked = await self.reader.read(request, lambda value, rules: CREATE.read(value))
        account_id, permission, domain_id = request.caller.account_id, asked["permission"] or "full_access", asked["domain_id"]
        if domain_id is not None and permission != "sending_access":
            raise invalid("The `domain_id` field goes with the permission `sending_access` alone.")
        domain = await self.domains.own(account_id, domain_id) if domain_id is not None else None
        if domain_id is not None and domain is None:
            raise not_found("Domain")
        line = audited(request, "key created", f"{asked['name']} ({permission}{f', {domain.name}' if domain else ''})")
        created_with = request.caller.key_id
        key_id, token = await self.keys.create(account_id, asked["name"], permission, domain_id, [line], created_with=created_with)
        return ok(request, {"id": str(key_id), "token": token}, 201)

    @app.route("/api-keys", methods=["GET"])
    @told("The API keys in force.", listed(KEY), parameters=PAGING, about="All of them when no parameter is given.")
    async def list(self, request: Request) -> bytes:
        page = parameters.page(request, default=None)
        keys, has_more = await request.detached(self.keys.list(request.caller.account_id, page))
        return ok(request, {"object": "list", "has_more": has_more, "data": [_listed(key) for key in keys]})

    @app.route("/api-keys/<id>", methods=["PATCH"])
    @told("Give an API key another name.", acknowledged("api_key"), body=RENAME.schema)
    async def rename(self, request: Request, id: str) -> bytes:
        return await request.detached(self._rename(request, parameters.uuid(id, "id")))

    async def _rename(self, request: Request, key_id: UUID) -> bytes:
        asked = await self.reader.read(request, lambda value, rules: RENAME.read(value))
        key = await self._key(request, key_id)
        line = audited(request, "key renamed", f"{key.name} ({key.hint}…) to {asked['name']}")
        if not await self.keys.rename(request.caller.account_id, key_id, asked["name"], [line]):
            raise not_found("API key")
        return ok(request, {"object": "api_key", "id": str(key_id)})

    @app.route("/api-keys/<id>", methods=["DELETE"])
    @told("Delete an API key; it opens nothing from now on.", acknowledged("api_key", deleted=const(True)))
    async def delete(self, request: Request, id: str) -> bytes:
        return await request.detached(self._delete(request, parameters.uuid(id, "id")))

    async def _delete(self, request: Request, key_id: UUID) -> bytes:
        key = await self._key(request, key_id)
        line = audited(request, "key revoked", f"{key.name} ({key.hint}…)")
        if not await self.keys.revoke(request.caller.account_id, key_id, [line]):
            raise not_found("API key")
        return ok(request, {"object": "api_key", "id": str(key_id), "deleted": True})

    async def _key(self, request: Request, key_id: UUID) -> KeyView:
        key = await self.keys.get(request.caller.account_id, key_id)
        if key is None:
            raise not_found("API key")
        return key


def _listed(key: KeyView) -> dict[str, object]:
    return {
        "id": str(key.id),
        "name": key.name,
        "created_at": time(key.created_at),
        "last_used_at": time_or_none(key.last_used_at),
        "permission": key.permission,
        "domain_id": None if key.domain_id is None else str(key.domain_id),
        "hint": key.hint,
    }
