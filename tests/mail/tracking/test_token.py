"""Tokens of tracked links: the same values give the same token, and only our own tokens are accepted."""

from __future__ import annotations

from uuid import UUID

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.mail.tracking import token
from mailsvc.mail.tracking.token import MAX_URL, Key, Tracked

KEY = Key(3, b"k" * 32)
SECRETS = {KEY.number: KEY.secret}
ACCOUNT, EMAIL, BROADCAST, CONTACT = (UUID(int=n) for n in range(1, 5))
CLICK = Tracked(ACCOUNT, EMAIL, 20_500, 2, "https://example.com/a?b=c#d", BROADCAST, CONTACT)
ascii_text = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=MAX_URL)
contacts = st.none() | st.tuples(st.uuids(), st.uuids())


@given(st.uuids(), st.uuids(), st.integers(0, 65_535), st.integers(0, 65_535), st.none() | ascii_text, contacts, st.integers(1, 255))
def test_a_token_is_read_back(
    account: UUID, email: UUID, day: int, link: int, url: str | None, contact: tuple[UUID, UUID] | None, number: int
) -> None:
    tracked = Tracked(account, email, day, link, url, *(contact or ()))
    created = token.make(tracked, Key(number, b"s" * 32))
    assert created == token.make(tracked, Key(number, b"s" * 32))
    assert created.replace("-", "").replace("_", "").isalnum() and created.isascii()
    assert token.read(created, {1: b"o" * 32} | {number: b"s" * 32}) == tracked


def test_any_changed_character_invalidates_a_token() -> None:
    created = token.make(CLICK, KEY)
    for at, char in enumerate(created):
        for other in "A", "B", "-", "é":
            assert other == char or token.read(created[:at] + other + created[at + 1 :], SECRETS) is None


@given(st.text(max_size=400))
def test_other_text_is_not_a_token(text: str) -> None:
    assert token.read(text, SECRETS) is None


def test_a_token_cut_short_or_longer_than_any_is_not_accepted() -> None:
    created = token.make(CLICK, KEY)
    for cut in range(len(created)):
        assert token.read(created[:cut], SECRETS) is None
    for more in "=", "A", "AAAA", "\n", "A" * 100_000:
        assert token.read(created + more, SECRETS) is None


def test_a_token_reveals_neither_the_link_nor_the_ids() -> None:
    other = attrs.evolve(CLICK, url="https://example.com/a?b=c#e")
    assert token.make(CLICK, KEY)[4:24] != token.make(other, KEY)[4:24]
    assert b"example" not in token.base64.urlsafe_b64decode(token.make(CLICK, KEY) + "==")


def test_a_former_key_is_accepted_as_long_as_it_is_given() -> None:
    created = token.make(CLICK, KEY)
    assert token.read(created, {4: b"n" * 32, 3: KEY.secret}) == CLICK
    assert token.read(created, {4: KEY.secret}) is None
    assert token.read(created, {3: b"n" * 32}) is None


def test_the_longest_link_has_a_token_and_a_longer_one_has_none() -> None:
    longest = attrs.evolve(CLICK, url="https://example.com/".ljust(MAX_URL, "a"))
    assert token.read(token.make(longest, KEY), SECRETS) == longest
    for url in "https://example.com/".ljust(MAX_URL + 1, "a"), "https://example.com/é":
        with pytest.raises(ValueError):
            token.make(attrs.evolve(CLICK, url=url), KEY)


def test_tokens_in_mail_that_was_sent_work_after_an_upgrade() -> None:
    sent = (
        "AQOynyF_Jfc7EbjhyE0q-hqK-_q_Rg-7uOPWNMafvj9PBwxSmbIJk7puRk1HWsjHGhQPs8efCHJM9-bIhH1FL9HKq7SwtqhPe8Lns7Bmpo0zBN4PbehIQTVX-3fnXuwS"
        "bWxqxx8ZqzZT5rHYCsxAmwkr"
    )
    assert token.read(sent, SECRETS) == CLICK


def test_the_day_of_a_time() -> None:
    assert [token.day_of(each) for each in (0, 86_399.9, 86_400, 1_790_000_000.5)] == [0, 0, 1, 20_717]
