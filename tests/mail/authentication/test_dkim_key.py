"""DKIM key records and their tags (RFC 6376 §3.2, §3.6.1). Mistakes in real zones: tests/domains/test_mistakes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailsvc.mail.authentication import dkim_key, dmarc, tags
from mailsvc.mail.authentication.tags import TagError

WANTED = "v=DKIM1; k=ed25519; p=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="


def test_tags_are_parsed() -> None:
    assert tags.parse(" v = DKIM1 ; p= a b;") == {"v": "DKIM1", "p": "a b"}
    assert list(tags.parse("b=1;a=;c==")) == ["b", "a", "c"]


@pytest.mark.parametrize("text", ["", ";", "v", "v=1;v=2", "1=2", "=", "a=b;;c=d", "a b=c"])
def test_invalid_tags_are_refused(text: str) -> None:
    with pytest.raises(TagError):
        tags.parse(text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (WANTED, None),
        (WANTED + ";", None),
        (WANTED.replace("=; ", "= ; "), None),
        (WANTED.replace("k=ed25519", "K=ed25519"), "algorithm"),  # names have case: this one is unknown, and k= is rsa
        (WANTED.replace("p=11", "p=1 1"), None),
        (WANTED.replace("p=11", "p=12"), "other_key"),
        (WANTED.lower().replace("dkim1", "DKIM1"), "other_key"),
        (WANTED[:-5], "truncated"),
        (WANTED.replace("v=DKIM1; ", "") + "; v=DKIM1", "version"),
        ("v=DKIM1; k=ed25519", "unreadable"),
        ("v=DKIM1; k=ed25519; p=", "revoked"),
        (WANTED + "; t=y", "testing"),
        (WANTED + "; t=s", None),
        (WANTED + "; h=sha256", None),
        (WANTED + "; h=sha1", "hash"),
        (WANTED + "; s=*", None),
        (WANTED + "; s=other", "service"),
    ],
)
def test_keys_are_compared_with_records(text: str, fault: str | None) -> None:
    wrong = dkim_key.compare(text, WANTED)
    assert (wrong and wrong.fault) == fault


@settings(max_examples=200)
@given(st.text(st.sampled_from(list('vpkthsa=; :y1DKIM\\"\t')), max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    wrong = dkim_key.compare(text, WANTED)
    assert wrong is not None and wrong.why
    dmarc.parse(text)
