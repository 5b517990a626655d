"""Sealed secrets open for their own row alone, with the right key."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import cast
from uuid import UUID

import pytest
import pytest_twisted
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import LogLevel, capturedLogs

from mailsvc.mail import return_path
from mailsvc.runtime.database import follow_keys
from mailsvc.store.encryption import key_file, rotation
from mailsvc.store.encryption.secrets import ENVIRONMENT, Encryption, EncryptionError, Keys
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.processes import Incarnation

ROW, OTHER = UUID(int=1), UUID(int=2)
ONE = f"1 {base64.b64encode(bytes(32)).decode()}\n"
TWO = f"2 {base64.b64encode(bytes([1] * 32)).decode()}\n"
SEAL = Encryption.read(ONE, "test")


@given(st.binary(max_size=5000))
def test_what_was_sealed_opens_for_its_row(secret: bytes) -> None:
    sealed = SEAL.seal(secret, ROW)
    assert SEAL.open(sealed, ROW) == secret
    assert SEAL.seal(secret, ROW) != sealed
    with pytest.raises(EncryptionError, match="does not open"):
        SEAL.open(sealed, OTHER)


@given(st.data())
def test_any_change_is_noticed(data: st.DataObject) -> None:
    sealed = bytearray(SEAL.seal(b"secret", ROW))
    place = data.draw(st.integers(0, len(sealed) - 1))
    sealed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(EncryptionError):
        SEAL.open(bytes(sealed), ROW)


@given(st.binary(max_size=40))
def test_rubbish_is_an_error_of_ours(rubbish: bytes) -> None:
    with pytest.raises(EncryptionError):
        SEAL.open(b"\x01" + rubbish, ROW)


def test_after_a_rotation_old_secrets_open_and_new_ones_use_the_new_key() -> None:
    sealed = SEAL.seal(b"secret", ROW)
    rotated = Encryption.read(f"# keys\n\n{ONE}{TWO}", "test")
    assert rotated.open(sealed, ROW) == b"secret"
    assert rotated.seal(b"secret", ROW)[0] == 2
    with pytest.raises(EncryptionError, match="key 2, which is not here"):
        SEAL.open(rotated.seal(b"secret", ROW), ROW)


@pytest.mark.parametrize("text", ["", "1", "0 " + ONE[2:], "256 " + ONE[2:], "1 AAAA", "1 ?", ONE + ONE])
def test_a_bad_key_is_told_without_showing_it(text: str) -> None:
    with pytest.raises(EncryptionError) as raised:
        Encryption.read(text, "the file")
    assert "the file" in str(raised.value)
    assert "AAA" not in str(raised.value)
    assert "AAA" not in repr(SEAL)


def test_the_file_is_made_once_and_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    path = tmp_path / "new" / "seal.key"
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: key_file.make(path), range(8)))
    assert made.count(True) == 1
    seals = [Encryption.load(path), Encryption.load(path)]
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
    sealed = seals[0].seal(b"secret", ROW)
    assert {seal.open(sealed, ROW) for seal in seals} == {b"secret"}


def test_the_environment_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, f"{ONE.strip()},{TWO.strip()}")
    assert Encryption.load(tmp_path / "seal.key").current == 2
    assert list(tmp_path.iterdir()) == []


def test_what_was_signed_before_a_rotation_is_accepted_after_it() -> None:
    rotated = Encryption.read(ONE + TWO, "test")
    [before] = SEAL.secrets_for("links")
    now, former = rotated.secrets_for("links")
    assert former == before != now
    assert rotated.secrets_for("return path")[0] != now
    address = return_path.make("send.example.com", 7, ROW, *SEAL.secrets_for("return path"))
    assert return_path.read(address, *rotated.secrets_for("return path")) == (7, ROW)
    assert return_path.read(address, rotated.secrets_for("return path")[0]) is None


def test_a_seal_follows_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    path = tmp_path / "seal.key"
    path.write_text(ONE)
    seal = Encryption.load(path)
    assert not seal.refresh()
    sealed, [before] = seal.seal(b"secret", ROW), seal.secrets_for("links")
    number = key_file.prepare(path)
    assert (number, key_file.prepare(path)) == (2, 2)  # called again it goes on with the same
    assert seal.refresh() and not seal.refresh()
    assert seal.current == 1 and seal.secrets_for("links")[0] == before
    key_file.promote(path, number)
    assert seal.refresh() and seal.current == 2
    assert seal.open(sealed, ROW) == b"secret" and before in seal.secrets_for("links")[1:]
    path.write_text("rubbish")
    with pytest.raises(EncryptionError):
        seal.refresh()
    assert seal.open(seal.seal(b"x", ROW), ROW) == b"x"
    assert not any("rubbish" in text for text in seal.keys.fingerprints)


@pytest_twisted.ensureDeferred
async def test_rows_are_sealed_again_in_lots(pool: Pool) -> None:
    rows = [UUID(int=n) for n in range(1, 8)]
    for row in rows:
        sealed = None if row.int == 7 else SEAL.seal(b"totp %d" % row.int, row)
        await pool.run("INSERT INTO users (id, email, totp, created_at) VALUES (%s, %s, %s, now())", (row, str(row), sealed))
    rotated = Encryption.read(ONE + TWO, "test")
    assert await rotation.count(pool) == {1: 6}
    assert await rotation.reseal(pool, rotated, lot=2) == 6
    assert await rotation.reseal(pool, rotated, lot=2) == 0
    assert await rotation.count(pool) == {2: 6}
    only = Encryption.read(TWO, "test")
    for row, sealed in await pool.rows("SELECT id, totp FROM users WHERE totp IS NOT NULL"):
        assert only.open(bytes(sealed), row) == b"totp %d" % row.int


async def users(pool: Pool, *sealed: bytes) -> list[UUID]:
    found = []
    for n, octets in enumerate(sealed, start=1):
        found.append(UUID(int=n))
        await pool.run("INSERT INTO users (id, email, totp, created_at) VALUES (%s, %s, %s, now())", (found[-1], str(n), octets))
    return found


@pytest_twisted.ensureDeferred
async def test_keys_are_compared_with_what_they_have_to_decrypt(pool: Pool) -> None:
    assert await rotation.unreadable(pool, SEAL.keys) == []
    await users(pool, *(SEAL.seal(b"totp", UUID(int=n)) for n in (1, 2, 3)))
    assert await rotation.unreadable(pool, Keys.read(ONE + TWO, "test")) == []
    other = Keys.read(f"1 {base64.b64encode(bytes([9] * 32)).decode()}", "test")
    [wrong] = await rotation.unreadable(pool, other)
    assert str(wrong) == "its key 1 does not open the secrets of authenticator apps"
    [missing] = await rotation.unreadable(pool, Keys.read(TWO, "test"))
    assert str(missing) == "it has no key 1 for the secrets of authenticator apps"


@pytest_twisted.ensureDeferred
async def test_each_key_number_is_looked_at(pool: Pool) -> None:
    rotated = Encryption.read(ONE + TWO, "test")
    await users(pool, SEAL.seal(b"totp", UUID(int=1)), *(rotated.seal(b"totp", UUID(int=n)) for n in (2, 3, 4)))
    assert [wrong.number for wrong in await rotation.unreadable(pool, Keys.read(TWO, "test"))] == [1]
    assert [wrong.number for wrong in await rotation.unreadable(pool, SEAL.keys)] == [2]


@pytest_twisted.ensureDeferred
async def test_a_damaged_row_is_no_wrong_key(pool: Pool) -> None:
    await users(pool, *(SEAL.seal(b"totp", UUID(int=n)) for n in (1, 2)), b"\x01rubbish")
    with capturedLogs() as logs:
        assert await rotation.unreadable(pool, SEAL.keys) == []
    assert [event["kind"] for event in logs if "kind" in event] == ["secrets of authenticator apps"]


@pytest_twisted.ensureDeferred
async def test_wrong_keys_in_a_changed_file_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    path = tmp_path / "seal.key"
    path.write_text(ONE)
    seal, known, wrong = Encryption.load(path), list[Sequence[str]](), "The setting does not fit."

    class Process:
        async def knows(self, fingerprints: Sequence[str]) -> None:
            known.append(fingerprints)

    asked: list[int] = []

    async def checked(keys: Keys) -> str | None:
        asked.append(keys.current)
        return wrong if keys.current == 2 else None

    follow = partial(follow_keys, seal, cast(Incarnation, Process()), checked)
    path.write_text(TWO)
    sealed = seal.seal(b"secret", ROW)
    with capturedLogs() as logs:
        await follow()
        await follow()  # not asked again before the file changes
    assert (asked, seal.rejected, seal.current) == ([2], wrong, 1)
    assert len([event for event in logs if event["log_level"] is LogLevel.error]) == 1
    assert seal.open(sealed, ROW) == b"secret" and known[-1] == SEAL.keys.fingerprints
    path.write_text(f"{TWO}{ONE}")
    await follow()
    assert seal.rejected is None and set(seal.keys.by_number) == {1, 2}
    path.write_text("rubbish")
    with pytest.raises(EncryptionError):
        await follow()
    path.write_text(f"{TWO}{ONE}\n")
    await follow()
    assert seal.rejected is None and set(seal.keys.by_number) == {1, 2}
