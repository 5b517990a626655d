"""DMARC policies, and the tree walk (RFC 9989 §4.7, §4.10)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.mail.authentication import dmarc


@pytest.mark.parametrize(
    ("text", "yes"),
    [
        ("v=DMARC1; p=none", True),
        ("v=DMARC1", True),
        ("v = DMARC1 ; p=none", True),
        ("v=dmarc1; p=none", False),
        ("p=none; v=DMARC1", False),
        ("", False),
    ],
)
def test_policy_records_are_recognized(text: str, yes: bool) -> None:
    assert dmarc.is_dmarc(text) is yes


def test_tags_are_parsed() -> None:
    record = dmarc.parse("v=DMARC1; p=Reject; sp=quarantine; np=none; adkim=s; aspf=r; t=y; psd=n; rua=mailto:a@x.test, mailto:b@x.test;")
    assert record is not None
    assert (record.policy, record.subdomains, record.absent) == ("reject", "quarantine", "none")
    assert (record.strict_dkim, record.strict_spf, record.testing, record.psd) == (True, False, True, "n")
    assert record.reports == ("mailto:a@x.test", "mailto:b@x.test") and record.notes == ()


def test_removed_tags_are_ignored_and_reported() -> None:
    record = dmarc.parse("v=DMARC1; p=quarantine; pct=10; rf=afrf; ri=1; unknown=1")
    assert record is not None and record.policy == "quarantine"
    assert [note.split("=")[0] for note in record.notes] == ["pct", "rf", "ri"]


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("v=DMARC1", "none"),  # p= is no must any more
        ("v=DMARC1; rua=mailto:a@x.example", "none"),
        ("v=DMARC1; p=sometimes; rua=mailto:a@x.example", "none"),
        ("v=DMARC1; p=sometimes", None),
        ("v=DMARC1; p=none; p=reject", None),
        ("v=DMARC1; reject", None),
        ("v=DMARC1; p=reject;; rua=mailto:a@x.example;;", "reject"),
        ("v=DMARC1; p=reject; strict; =x; rua=mailto:a@x.example", "reject"),
    ],
)
def test_faulty_policies_are_reported(text: str, policy: str | None) -> None:
    record = dmarc.parse(text)
    assert (record and record.policy) == policy


def test_what_is_not_a_tag_is_noted() -> None:
    record = dmarc.parse("v=DMARC1; p=reject;; strict; rua=mailto:a@x.example")
    assert record is not None and record.reports == ("mailto:a@x.example",)
    assert record.notes == ("'strict' is not a tag, so receivers ignore it",)


def test_several_policies_invalidate_each_other() -> None:
    assert dmarc.only(["v=DMARC1; p=none", "v=DMARC1; p=reject"]) is None
    assert dmarc.only(["x", "v=DMARC1; p=reject"]) is not None
    assert dmarc.only([]) is None


@pytest.mark.parametrize(
    ("domain", "names"),
    [
        ("example.com", ["example.com", "com"]),
        ("a.b.example.com", ["a.b.example.com", "b.example.com", "example.com", "com"]),
        (
            "a.b.c.d.e.f.g.h.i.j.mail.example.com",
            [
                "a.b.c.d.e.f.g.h.i.j.mail.example.com",
                "g.h.i.j.mail.example.com",
                "h.i.j.mail.example.com",
                "i.j.mail.example.com",
                "j.mail.example.com",
                "mail.example.com",
                "example.com",
                "com",
            ],
        ),
    ],
)
def test_the_tree_walk_lists_parent_domains(domain: str, names: list[str]) -> None:
    assert list(dmarc.walk(domain)) == names


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=100))
def test_the_tree_walk_has_at_most_eight_lookups(labels: list[str]) -> None:
    names = list(dmarc.walk(".".join(labels)))
    assert len(names) <= 8 and names[-1] == labels[-1] and len(set(names)) == len(names)
