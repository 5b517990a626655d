"""`mailsvc account region` and `mailsvc domain region`."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_cli import Command, mailsvc

__all__ = ["mailsvc"]

EAST, WEST = "us-east-1", "eu-west-1"


@pytest.mark.usefixtures("database")
def test_a_pinned_account_has_domains_in_its_region_only(mailsvc: Command) -> None:
    mailsvc.prints("account", "create", "Shop")
    assert mailsvc.prints("account", "region", "Shop") == "Shop: no home region"
    assert "Name the region" in mailsvc.refuses("account", "region", "Shop", "--pin")
    assert "The regions are: us-east-1, eu-west-1" in mailsvc.refuses("account", "region", "Shop", "mars", status=2)
    mailsvc.prints("domain", "add", "east.example", "--account", "Shop")
    assert mailsvc.prints("account", "region", "Shop", WEST) == "Shop: eu-west-1"
    mailsvc.prints("domain", "add", "west.example", "--account", "Shop")
    listed = json.loads(mailsvc.prints("domain", "list", "--json"))
    assert {each["name"]: each["region"] for each in listed} == {"east.example": EAST, "west.example": WEST}, (
        "the home region is the default"
    )
    refused = mailsvc.refuses("account", "region", "Shop", "--pin")
    assert "these domains are in another region: east.example." in refused
    assert mailsvc.prints("account", "region", "Shop") == "Shop: eu-west-1", "nothing changed"
    moved = mailsvc.prints("domain", "region", "east.example", WEST)
    assert "send.east.example. MX 10 out.eu.example.net." in moved
    assert 'send.east.example. TXT "v=spf1 a:out.eu.example.net ~all"' in moved
    assert mailsvc.prints("account", "region", "Shop", "--pin") == "Shop: eu-west-1, pinned"
    assert "home region    eu-west-1, pinned" in mailsvc.prints("account", "show", "Shop")
    for words in (("domain", "add", "new.example", "--account", "Shop", "--region", EAST), ("domain", "region", "east.example", EAST)):
        assert "The region must be eu-west-1: the data of this account stays in that region." in mailsvc.refuses(*words)
    mailsvc.prints("account", "region", "Shop", "--unpin")
    mailsvc.prints("domain", "region", "east.example", EAST)
