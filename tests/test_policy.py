"""What may be sent, decided from facts alone."""

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


def test_a_proved_domain_may_send() -> None:
    assert policy.domain_refusal("example.test", Owned(), None) is None
    assert policy.domain_refusal("example.test", Owned(), UUID(int=7)) is None


@pytest.mark.parametrize("domain", [None, Owned(may_send=False)])
def test_a_domain_that_is_unknown_or_unproved_is_refused_by_name(domain: Owned | None) -> None:
    refusal = policy.domain_refusal("example.test", domain, None)
    assert refusal is not None
    assert (refusal.kind, refusal.field) == ("domain", "from")
    assert "`example.test`" in refusal.message


def test_what_a_domain_lacks_is_told() -> None:
    refusal = policy.domain_refusal(
        "example.test", Owned(may_send=False, missing="Missing or incorrect DNS records: SPF (MX send.example.test)."), None
    )
    assert refusal is not None
    assert refusal.message.startswith("The `example.test` domain is not verified.") and "SPF (MX send.example.test)" in refusal.message


def test_a_key_for_one_domain_sends_for_that_one_only() -> None:
    refusal = policy.domain_refusal("example.test", Owned(), UUID(int=8))
    assert refusal is not None
    assert refusal.kind == "key"


def fields(**given: list[str]) -> dict[str, list[str]]:
    return {"to": ["a@b.test"], "cc": [], "bcc": [], **given}


def test_somebody_must_be_written_to() -> None:
    refusal = policy.recipients_refusal(fields(to=[]), Limits())
    assert refusal is not None
    assert refusal.field == "to"


@pytest.mark.parametrize("field", ["to", "cc", "bcc", "reply_to"])
def test_fifty_recipients_a_field_and_no_more(field: str) -> None:
    assert policy.recipients_refusal(fields(**{field: ["a@b.test"] * 50}), Limits()) is None
    refusal = policy.recipients_refusal(fields(**{field: ["a@b.test"] * 51}), Limits())
    assert refusal is not None
    assert refusal.field == field
    assert "50" in refusal.message


def test_forty_megabytes_as_it_goes_out() -> None:
    assert policy.size_refusal(41_943_040, Limits()) is None
    refusal = policy.size_refusal(41_943_041, Limits())
    assert refusal is not None
    assert refusal.kind == "size"


@pytest.mark.parametrize("name", ["setup.exe", "Invoice.PDF.Scr", "a.exe. .", ".bat", "ü.js"])
def test_an_attachment_that_receivers_refuse_is_refused_by_its_place(name: str) -> None:
    refusal = policy.attachments_refusal(["a.pdf", name], Limits())
    assert refusal is not None
    assert (refusal.kind, refusal.field) == ("attachment", "attachments[1].filename")
    assert refusal.field in refusal.message
    assert policy.attachments_refusal(["a.pdf", name], Limits(blocked_endings=frozenset())) is None


@pytest.mark.parametrize("name", [None, "", "exe", "a.exe.zip", "report.pdf", "a.", "tar.gz"])
def test_other_attachments_are_not(name: str | None) -> None:
    assert policy.attachments_refusal([name], Limits()) is None
