"""What can be sent, decided from facts alone."""

from __future__ import annotations

from uuid import UUID

import attrs
import pytest

from mailsvc import policy
from mailsvc.policy import Limits


@attrs.frozen
class Owned:
    """A domain of the account."""

    name: str = "example.test"
    may_send: bool = True
    id: UUID = UUID(int=7)
    missing: str | None = None


def test_verified_domain_can_send() -> None:
    assert policy.domain_refusal("example.test", Owned(), None) is None
    assert policy.domain_refusal("example.test", Owned(), UUID(int=7)) is None


@pytest.mark.parametrize("domain", [None, Owned(may_send=False)])
def test_unknown_or_unverified_domain_is_refused_by_name(domain: Owned | None) -> None:
    refusal = policy.domain_refusal("example.test", domain, None)
    assert refusal is not None
    assert (refusal.kind, refusal.field) == ("domain", "from")
    assert "`example.test`" in refusal.message


def test_refusal_names_what_the_domain_lacks() -> None:
    refusal = policy.domain_refusal(
        "example.test", Owned(may_send=False, missing="Missing or incorrect DNS records: SPF (MX send.example.test)."), None
    )
    assert refusal is not None
    assert refusal.message.startswith("The `example.test` domain is not verified.") and "SPF (MX send.example.test)" in refusal.message


def test_key_for_one_domain_sends_for_that_one_only() -> None:
    refusal = policy.domain_refusal("example.test", Owned(), UUID(int=8))
    assert refusal is not None
    assert refusal.kind == "key"


def fields(**given: list[str]) -> dict[str, list[str]]:
    return {"to": ["a@b.test"], "cc": [], "bcc": [], **given}


def test_email_needs_a_recipient() -> None:
    refusal = policy.recipients_refusal(fields(to=[]), Limits())
    assert refusal is not None
    assert refusal.field == "to"


@pytest.mark.parametrize("field", ["to", "cc", "bcc", "reply_to"])
def test_field_has_at_most_fifty_recipients(field: str) -> None:
    assert policy.recipients_refusal(fields(**{field: ["a@b.test"] * 50}), Limits()) is None
    refusal = policy.recipients_refusal(fields(**{field: ["a@b.test"] * 51}), Limits())
    assert refusal is not None
    assert refusal.field == field
    assert "50" in refusal.message


def test_message_has_at_most_forty_megabytes() -> None:
    assert policy.size_refusal(41_943_040, Limits()) is None
    refusal = policy.size_refusal(41_943_041, Limits())
    assert refusal is not None
    assert refusal.kind == "size"


@pytest.mark.parametrize("name", ["setup.exe", "Invoice.PDF.Scr", "a.exe. .", ".bat", "ü.js"])
def test_blocked_attachment_is_refused_by_its_place(name: str) -> None:
    refusal = policy.attachments_refusal(["a.pdf", name], Limits())
    assert refusal is not None
    assert (refusal.kind, refusal.field) == ("attachment", "attachments[1].filename")
    assert refusal.field in refusal.message
    assert policy.attachments_refusal(["a.pdf", name], Limits(blocked_endings=frozenset())) is None


@pytest.mark.parametrize("name", [None, "", "exe", "a.exe.zip", "report.pdf", "a.", "tar.gz"])
def test_other_attachments_are_accepted(name: str | None) -> None:
    assert policy.attachments_refusal([name], Limits()) is None
