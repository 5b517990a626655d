"""HMAC-SHA256 with a prefix is that of the standard library."""

from __future__ import annotations

import hmac

from hypothesis import given
from hypothesis import strategies as st

from mailsvc.mail.hmac_sha256 import HmacSha256


@given(st.binary(max_size=200), st.binary(max_size=100), st.lists(st.binary(max_size=300), max_size=3))
def test_each_message_has_its_own_hash(key: bytes, prefix: bytes, messages: list[bytes]) -> None:
    keyed = HmacSha256(key, prefix)
    assert [keyed.digest(each) for each in messages] == [hmac.digest(key, prefix + each, "sha256") for each in messages]
