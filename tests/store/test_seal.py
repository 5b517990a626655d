"""Sealed secrets open for their own row alone, with the right key."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailsvc.store.seal import ENVIRONMENT, Seal, SealError

ROW, OTHER = UUID(int=1), UUID(int=2)
ONE = f"1 {base64.b64encode(bytes(32)).decode()}\n"
TWO = f"2 {base64.b64encode(bytes([1] * 32)).decode()}\n"
SEAL = Seal.read(ONE, "test")


@given(st.binary(max_size=5000))
def test_what_was_sealed_opens_for_its_row(secret: bytes) -> None:
    sealed = SEAL.seal(secret, ROW)
    assert SEAL.open(sealed, ROW) == secret
    assert SEAL.seal(secret, ROW) != sealed
    with pytest.raises(SealError, match="does not open"):
        SEAL.open(sealed, OTHER)


@given(st.data())
def test_any_change_is_noticed(data: st.DataObject) -> None:
    sealed = bytearray(SEAL.seal(b"secret", ROW))
    place = data.draw(st.integers(0, len(sealed) - 1))
    sealed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SealError):
        SEAL.open(bytes(sealed), ROW)


@given(st.binary(max_size=40))
def test_rubbish_is_an_error_of_ours(rubbish: bytes) -> None:
    with pytest.raises(SealError):
        SEAL.open(b"\x01" + rubbish, ROW)


def test_after_a_rotation_old_secrets_open_and_new_ones_use_the_new_key() -> None:
    sealed = SEAL.seal(b"secret", ROW)
    rotated = Seal.read(f"# keys\n\n{ONE}{TWO}", "test")
    assert rotated.open(sealed, ROW) == b"secret"
    assert rotated.seal(b"secret", ROW)[0] == 2
    with pytest.raises(SealError, match="key 2, which is not here"):
        SEAL.open(rotated.seal(b"secret", ROW), ROW)


@pytest.mark.parametrize("text", ["", "1", "0 " + ONE[2:], "256 " + ONE[2:], "1 AAAA", "1 ?", ONE + ONE])
def test_a_bad_key_is_told_without_showing_it(text: str) -> None:
    with pytest.raises(SealError) as raised:
        Seal.read(text, "the file")
    assert "the file" in str(raised.value)
    assert "AAA" not in str(raised.value)
    assert "AAA" not in repr(SEAL)


def test_the_file_is_made_once_and_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    path = tmp_path / "new" / "seal.key"
    with ThreadPoolExecutor(8) as threads:
        seals = list(threads.map(lambda _: Seal.load(path), range(8)))
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
    sealed = seals[0].seal(b"secret", ROW)
    assert {seal.open(sealed, ROW) for seal in seals} == {b"secret"}


def test_the_environment_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, f"{ONE.strip()},{TWO.strip()}")
    assert Seal.load(tmp_path / "seal.key").current == 2
    assert list(tmp_path.iterdir()) == []
