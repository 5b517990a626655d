"""Which policy receivers find, and what its owner sees; it is never more than advice."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import pytest
import pytest_twisted

from mailsvc.domains import dmarc_check, records
from mailsvc.net.dns import NxDomain, Records, Temporary
from mailsvc.store.domains.values import RecordState
from tests.domains.rig import Rig


@attrs.define
class Names:
    texts: Mapping[str, list[str]]
    queried: list[str] = attrs.field(factory=list)

    async def txt(self, name: str) -> Records[str] | NxDomain | Temporary:
        self.queried.append(name)
        found = self.texts.get(name.removeprefix("_dmarc."))
        if found == ["broken"]:
            return Temporary("the server is silent")
        return NxDomain(name) if found is None else Records(name, tuple(found))


async def advice(texts: Mapping[str, list[str]], domain: str = "a.mail.example.com") -> tuple[RecordState, dmarc_check.Found]:
    found = await dmarc_check.walk(Names(texts), domain)
    return dmarc_check.advice(domain, found, records.dmarc(domain)), found


REJECT, NONE = "v=DMARC1; p=reject", "v=DMARC1; p=none"


@pytest.mark.parametrize(
    ("texts", "at", "organization"),
    [
        ({}, None, "a.mail.example.com"),
        ({"a.mail.example.com": [REJECT]}, "a.mail.example.com", "a.mail.example.com"),
        ({"example.com": [REJECT]}, "example.com", "example.com"),
        ({"mail.example.com": [NONE], "example.com": [REJECT]}, "example.com", "example.com"),  # the fewest labels
        ({"mail.example.com": [f"{NONE}; psd=n"], "example.com": [REJECT]}, "mail.example.com", "mail.example.com"),
        ({"example.com": [NONE], "com": [f"{REJECT}; psd=y"]}, "example.com", "example.com"),
        ({"com": [f"{REJECT}; psd=y"]}, "com", "example.com"),
        ({"a.mail.example.com": [f"{NONE}; psd=y"], "example.com": [REJECT]}, "a.mail.example.com", "a.mail.example.com"),
        ({"a.mail.example.com": [NONE, REJECT], "example.com": [REJECT]}, "example.com", "example.com"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_which_policy_applies(texts: Mapping[str, list[str]], at: str | None, organization: str) -> None:
    _, found = await advice(texts)
    assert (found.at, found.organization) == (at, organization)


@pytest.mark.parametrize(
    ("texts", "problem", "words"),
    [
        ({}, "missing", "no DMARC policy"),
        ({"a.mail.example.com": [NONE]}, None, "rua= to receive reports"),
        ({"a.mail.example.com": [f"{NONE}; rua=mailto:x@example.com"]}, None, "later p=reject"),
        ({"a.mail.example.com": [f"{REJECT}; t=y"]}, None, "one step"),
        ({"a.mail.example.com": [REJECT]}, None, "reject"),
        ({"example.com": [f"{REJECT}; sp=none"]}, None, "The policy of example.com applies: none. It has no effect on delivery"),
        ({"example.com": [f"{REJECT}; aspf=s"]}, None, "strict alignment"),
        ({"a.mail.example.com": [f"{REJECT}; pct=5"]}, None, "Pct= is no longer a DMARC tag"),
        ({"a.mail.example.com": [NONE, REJECT]}, "several", "2 policies"),
        ({"a.mail.example.com": ["v=DMARC1; p=none; p=none"]}, "unreadable", "is invalid, so receivers ignore it. Replace it"),
        ({"a.mail.example.com": ["v=DMARC1; p=none; p=none"], "example.com": [REJECT]}, None, "_dmarc.a.mail.example.com is invalid"),
        ({"mail.example.com": ["broken"]}, "unanswered", "the server is silent"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_advice(texts: Mapping[str, list[str]], problem: str | None, words: str) -> None:
    state, _ = await advice(texts)
    assert state.problem == problem and words in (state.message or "")
    assert (state.name, state.required) == ("_dmarc.a.mail.example.com", False)
    published = texts.get("a.mail.example.com", []) if problem is None and "invalid" not in words else []
    assert state.expected in published or (not published and state.expected.startswith("v=DMARC1; p="))


@pytest_twisted.ensureDeferred
async def test_the_text_of_the_policy_that_applies_is_found() -> None:
    """Insights read from it whether the policy is enforced."""
    own, _ = await advice({"a.mail.example.com": [NONE, "other"], "example.com": [REJECT]})
    inherited, _ = await advice({"a.mail.example.com": ["other"], "example.com": [REJECT, "other"]})
    assert (own.found, inherited.found, inherited.where) == ((NONE,), (REJECT,), "_dmarc.example.com")


@pytest_twisted.ensureDeferred
async def test_the_recommended_record_is_rated_as_correct() -> None:
    missing, _ = await advice({})
    state, _ = await advice({"a.mail.example.com": [missing.expected]})
    assert (missing.status, state.status, state.problem) == ("pending", "verified", None)


@pytest.mark.parametrize("texts", [[], ['"v=DMARC1; p=none"', '"v=DMARC1; p=reject"'], ['"rubbish"']])
@pytest_twisted.ensureDeferred
async def test_a_missing_policy_does_not_prevent_sending(rig: Rig, texts: list[str]) -> None:
    domain = await rig.add()
    rig.set("_dmarc.example.com", "TXT", *texts)
    domain = await rig.verified(domain)
    assert domain.may_send and domain.advice[0].problem is not None
