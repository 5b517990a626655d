"""`mailsvc account region` and `mailsvc domain region`."""

from __future__ import annotations

from pathlib import Path

import pytest
import pytest_twisted

from mailsvc.store.postgres.pool import Pool
from tests.cli.in_process import InProcess

EAST, WEST = "us-east-1", "eu-west-1"


@pytest_twisted.ensureDeferred
async def test_a_pinned_account_has_domains_in_its_region_only(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mailsvc = InProcess.of(pool, tmp_path, monkeypatch)

    async def printed(*words: str) -> str:
        return (await mailsvc.prints(*words)).output.strip()

    await printed("account", "create", "Shop")
    assert await printed("account", "region", "Shop") == "Shop: no home region"
    assert "Name the region" in await mailsvc.refuses("account", "region", "Shop", "--pin")
    assert "The regions are: us-east-1, eu-west-1" in await mailsvc.refuses("account", "region", "Shop", "mars", status=2)
    await printed("domain", "add", "east.example", "--account", "Shop")
    assert await printed("account", "region", "Shop", WEST) == "Shop: eu-west-1"
    await printed("domain", "add", "west.example", "--account", "Shop")
    listed = (await mailsvc.prints("domain", "list", "--json")).json
    assert {each["name"]: each["region"] for each in listed} == {"east.example": EAST, "west.example": WEST}, (
        "the home region is the default"
    )
    refused = await mailsvc.refuses("account", "region", "Shop", "--pin")
    assert "these domains are in another region: east.example." in refused
    assert await printed("account", "region", "Shop") == "Shop: eu-west-1", "nothing changed"
    moved = await printed("domain", "region", "east.example", WEST)
    assert "send.east.example. MX 10 out.eu.example.net." in moved
    assert 'send.east.example. TXT "v=spf1 a:out.eu.example.net ~all"' in moved
    assert await printed("account", "region", "Shop", "--pin") == "Shop: eu-west-1, pinned"
    assert "home region    eu-west-1, pinned" in await printed("account", "show", "Shop")
    for words in (("domain", "add", "new.example", "--account", "Shop", "--region", EAST), ("domain", "region", "east.example", EAST)):
        assert "The region must be eu-west-1: the data of this account stays in that region." in await mailsvc.refuses(*words)
    await printed("account", "region", "Shop", "--unpin")
    await printed("domain", "region", "east.example", EAST)
