"""Who objected to tracking, for many emails at once."""

from __future__ import annotations

from uuid import UUID

import pytest_twisted

from mailsvc.store.audience.keys import AudienceKeys
from mailsvc.store.audience.objections import Objections
from tests.http.api_rig import ApiRig
from tests.store.encryption.test_secrets import ENCRYPTION


@pytest_twisted.ensureDeferred
async def test_contacts_who_objected_also_after_they_were_deleted(rig: ApiRig) -> None:
    objections = Objections(AudienceKeys(rig.pool, ENCRYPTION))
    people = [(rig.account_id, f"{name}@example.net") for name in ("ada", "Bob", "eve", "stranger")]
    people += [(UUID(int=7), "ada@example.net")]
    assert await objections.among(people) == frozenset()  # the account has no contacts
    ids = {}
    for name, fields in (("ada", {"untracked": True}), ("bob", {"untracked": True}), ("eve", {})):
        ids[name] = (await rig.request("POST", "/contacts", {"email": f"{name}@example.net", **fields})).json["id"]
    await rig.request("DELETE", f"/contacts/{ids['bob']}")
    assert await objections.among(people) == {people[0], people[1]}
    assert await objections.among(()) == frozenset()
    await rig.request("PATCH", f"/contacts/{ids['ada']}", {"untracked": False})
    assert await objections.among(people) == {people[1]}
