"""The format of encrypted messages: what goes in comes out, and nowhere else."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.store.encryption.body_cipher import OVERHEAD, BodyCipher
from mailsvc.store.encryption.body_key_files import BodyKeyError

KEYS = st.binary(min_size=32, max_size=32)
IDS = st.uuids()
PIECES = st.integers(0, 32767)


@given(KEYS, IDS, IDS, PIECES, st.binary(max_size=2000))
def test_what_is_encrypted_comes_out_again_and_grows_by_a_constant(key: bytes, account: UUID, email: UUID, piece: int, text: bytes) -> None:
    encrypted = BodyCipher(account, key).encrypt(email, piece, text)
    assert len(encrypted) == len(text) + OVERHEAD
    assert BodyCipher(account, key).decrypt(email, piece, encrypted) == text
    assert len(text) < 8 or text not in encrypted


@given(KEYS, IDS, IDS, PIECES, st.binary(max_size=200), st.data())
def test_a_piece_cannot_be_put_anywhere_else_or_be_changed(
    key: bytes, account: UUID, email: UUID, piece: int, text: bytes, data: st.DataObject
) -> None:
    encrypted = BodyCipher(account, key).encrypt(email, piece, text)
    others = (
        (data.draw(IDS.filter(lambda id_: id_ != account)), key, email, piece),
        (account, data.draw(KEYS.filter(lambda other: other != key)), email, piece),
        (account, key, data.draw(IDS.filter(lambda id_: id_ != email)), piece),
        (account, key, email, data.draw(PIECES.filter(lambda number: number != piece))),
    )
    for account_id, other_key, email_id, number in others:
        with pytest.raises(BodyKeyError):
            BodyCipher(account_id, other_key).decrypt(email_id, number, encrypted)
    at, bit = data.draw(st.integers(0, len(encrypted) - 1)), data.draw(st.integers(0, 7))
    changed = bytearray(encrypted)
    changed[at] ^= 1 << bit
    for damaged in (bytes(changed), encrypted[:-1], encrypted + b"x", encrypted[: OVERHEAD - 1], b""):
        with pytest.raises(BodyKeyError):
            BodyCipher(account, key).decrypt(email, piece, damaged)


def test_the_same_text_is_never_encrypted_the_same_way() -> None:
    cipher, email = BodyCipher(UUID(int=1), b"k" * 32), UUID(int=2)
    assert len({cipher.encrypt(email, 0, b"text") for _ in range(100)}) == 100


def test_the_key_is_not_in_what_python_shows() -> None:
    assert "kkk" not in repr(BodyCipher(UUID(int=1), b"k" * 32))
