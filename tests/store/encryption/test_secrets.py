"""Secrets are decrypted only for their own row and with the right key; keys rotate and are reloaded."""

from __future__ import annotations

import base64
import resource
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
from mailsvc.store.encryption.rotation import Reencrypted
from mailsvc.store.encryption.secrets import ENVIRONMENT, Encryption, EncryptionError, Keys
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.processes import ProcessRegistration

ROW, OTHER = UUID(int=1), UUID(int=2)
ONE = f"1 {base64.b64encode(bytes(32)).decode()}\n"
TWO = f"2 {base64.b64encode(bytes([1] * 32)).decode()}\n"
ENCRYPTION = Encryption.read(ONE, "test")


@given(st.binary(max_size=5000))
def test_a_secret_is_decrypted_only_for_its_row(secret: bytes) -> None:
    encrypted = ENCRYPTION.encrypt(secret, ROW)
    assert ENCRYPTION.decrypt(encrypted, ROW) == secret
    assert ENCRYPTION.encrypt(secret, ROW) != encrypted
    with pytest.raises(EncryptionError, match="cannot be decrypted with"):
        ENCRYPTION.decrypt(encrypted, OTHER)


@given(st.data())
def test_any_change_to_an_encrypted_secret_is_noticed(data: st.DataObject) -> None:
    encrypted = bytearray(ENCRYPTION.encrypt(b"secret", ROW))
    place = data.draw(st.integers(0, len(encrypted) - 1))
    encrypted[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(EncryptionError):
        ENCRYPTION.decrypt(bytes(encrypted), ROW)


@given(st.binary(max_size=40))
def test_random_bytes_raise_an_encryption_error(rubbish: bytes) -> None:
    with pytest.raises(EncryptionError):
        ENCRYPTION.decrypt(b"\x01" + rubbish, ROW)


def test_after_a_rotation_old_secrets_are_decrypted_and_new_ones_use_the_new_key() -> None:
    encrypted = ENCRYPTION.encrypt(b"secret", ROW)
    rotated = Encryption.read(f"# keys\n\n{ONE}{TWO}", "test")
    assert rotated.decrypt(encrypted, ROW) == b"secret"
    assert rotated.encrypt(b"secret", ROW)[0] == 2
    with pytest.raises(EncryptionError, match="key 2, which is missing"):
        ENCRYPTION.decrypt(rotated.encrypt(b"secret", ROW), ROW)


@pytest.mark.parametrize("text", ["", "1", "0 " + ONE[2:], "256 " + ONE[2:], "1 AAAA", "1 ?", ONE + ONE])
def test_a_bad_key_is_reported_without_being_shown(text: str) -> None:
    with pytest.raises(EncryptionError) as raised:
        Encryption.read(text, "the file")
    assert "the file" in str(raised.value)
    assert "AAA" not in str(raised.value)
    assert "AAA" not in repr(ENCRYPTION)


def test_the_key_file_is_created_once_and_readable_by_its_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    path = tmp_path / "new" / "secret.key"
    with ThreadPoolExecutor(8) as threads:
        created = list(threads.map(lambda _: key_file.make(path), range(8)))
    assert created.count(True) == 1
    loaded = [Encryption.load(path), Encryption.load(path)]
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
    encrypted = loaded[0].encrypt(b"secret", ROW)
    assert {encryption.decrypt(encrypted, ROW) for encryption in loaded} == {b"secret"}


def test_a_key_that_does_not_fit_on_the_disk_leaves_the_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    path.write_text(ONE)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            key_file.prepare(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == ONE and list(tmp_path.iterdir()) == [path]


def test_the_environment_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, f"{ONE.strip()},{TWO.strip()}")
    assert Encryption.load(tmp_path / "secret.key").current == 2
    assert list(tmp_path.iterdir()) == []


def test_signatures_from_before_a_rotation_stay_valid() -> None:
    rotated = Encryption.read(ONE + TWO, "test")
    [before] = ENCRYPTION.secrets_for("links")
    now, former = rotated.secrets_for("links")
    assert former == before != now
    assert rotated.secrets_for("return path")[0] != now
    address = return_path.make("send.example.com", 7, ROW, *ENCRYPTION.secrets_for("return path"))
    assert return_path.read(address, *rotated.secrets_for("return path")) == (7, ROW)
    assert return_path.read(address, rotated.secrets_for("return path")[0]) is None


def test_encryption_follows_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    path = tmp_path / "secret.key"
    path.write_text(ONE)
    encryption = Encryption.load(path)
    assert not encryption.refresh()
    encrypted, [before] = encryption.encrypt(b"secret", ROW), encryption.secrets_for("links")
    number = key_file.prepare(path)
    assert (number, key_file.prepare(path)) == (2, 2)  # a second call returns the same key
    assert encryption.refresh() and not encryption.refresh()
    assert encryption.current == 1 and encryption.secrets_for("links")[0] == before
    key_file.promote(path, number)
    assert encryption.refresh() and encryption.current == 2
    assert encryption.decrypt(encrypted, ROW) == b"secret" and before in encryption.secrets_for("links")[1:]
    path.write_text("rubbish")
    with pytest.raises(EncryptionError):
        encryption.refresh()
    assert encryption.decrypt(encryption.encrypt(b"x", ROW), ROW) == b"x"
    assert not any("rubbish" in text for text in encryption.keys.fingerprints)


@pytest_twisted.ensureDeferred
async def test_rows_are_encrypted_again_in_batches(pool: Pool) -> None:
    rows = [UUID(int=n) for n in range(1, 8)]
    for row in rows:
        encrypted = None if row.int == 7 else ENCRYPTION.encrypt(b"totp %d" % row.int, row)
        await pool.run("INSERT INTO users (id, email, totp, created_at) VALUES (%s, %s, %s, now())", (row, str(row), encrypted))
    rotated = Encryption.read(ONE + TWO, "test")
    assert await rotation.count(pool) == {1: 6}
    assert await rotation.unfinished(pool, rotated)
    assert await rotation.reencrypt(pool, rotated, batch=2) == Reencrypted(6, {})
    assert await rotation.reencrypt(pool, rotated, batch=2) == Reencrypted(0, {})
    assert not await rotation.unfinished(pool, rotated)
    assert await rotation.count(pool) == {2: 6}
    only = Encryption.read(TWO, "test")
    for row, encrypted in await pool.rows("SELECT id, totp FROM users WHERE totp IS NOT NULL"):
        assert only.decrypt(bytes(encrypted), row) == b"totp %d" % row.int


@pytest_twisted.ensureDeferred
async def test_damaged_secrets_do_not_keep_the_others_from_a_new_key(pool: Pool) -> None:
    good, lost = (Encryption.read(text, "test") for text in (ONE, "9 " + TWO[2:]))
    ids = [UUID(int=n) for n in range(1, 7)]
    damaged = good.encrypt(b"totp", ids[0])[:-1] + b"?"
    first, *others = [good.encrypt(b"totp", each) for each in (ids[1], *ids[3:])]
    found = await users(pool, damaged, first, lost.encrypt(b"totp", ids[2]), *others)
    rotated = Encryption.read(ONE + TWO, "test")
    assert await rotation.reencrypt(pool, rotated, batch=2) == Reencrypted(4, {"authenticator secrets": 2})
    assert await rotation.count(pool) == {1: 1, 2: 4, 9: 1}
    assert await pool.rows("SELECT totp FROM users WHERE id = %s", (found[0],)) == [(damaged,)]
    assert not await rotation.unfinished(pool, rotated)  # so that the next rotation gets a key of its own
    assert await rotation.reencrypt(pool, rotated, batch=2) == Reencrypted(0, {"authenticator secrets": 2})


async def users(pool: Pool, *encrypted: bytes) -> list[UUID]:
    found = []
    for n, secret in enumerate(encrypted, start=1):
        found.append(UUID(int=n))
        await pool.run("INSERT INTO users (id, email, totp, created_at) VALUES (%s, %s, %s, now())", (found[-1], str(n), secret))
    return found


@pytest_twisted.ensureDeferred
async def test_keys_that_do_not_decrypt_the_stored_secrets_are_reported(pool: Pool) -> None:
    assert await rotation.unreadable(pool, ENCRYPTION.keys) == []
    await users(pool, *(ENCRYPTION.encrypt(b"totp", UUID(int=n)) for n in (1, 2, 3)))
    assert await rotation.unreadable(pool, Keys.read(ONE + TWO, "test")) == []
    other = Keys.read(f"1 {base64.b64encode(bytes([9] * 32)).decode()}", "test")
    [wrong] = await rotation.unreadable(pool, other)
    assert str(wrong) == "its key 1 does not decrypt the authenticator secrets"
    [missing] = await rotation.unreadable(pool, Keys.read(TWO, "test"))
    assert str(missing) == "it has no key 1 for the authenticator secrets"


@pytest_twisted.ensureDeferred
async def test_every_key_number_is_checked(pool: Pool) -> None:
    rotated = Encryption.read(ONE + TWO, "test")
    await users(pool, ENCRYPTION.encrypt(b"totp", UUID(int=1)), *(rotated.encrypt(b"totp", UUID(int=n)) for n in (2, 3, 4)))
    assert [wrong.number for wrong in await rotation.unreadable(pool, Keys.read(TWO, "test"))] == [1]
    assert [wrong.number for wrong in await rotation.unreadable(pool, ENCRYPTION.keys)] == [2]


@pytest_twisted.ensureDeferred
async def test_a_damaged_row_does_not_make_a_key_wrong(pool: Pool) -> None:
    await users(pool, *(ENCRYPTION.encrypt(b"totp", UUID(int=n)) for n in (1, 2)), b"\x01rubbish")
    with capturedLogs() as logs:
        assert await rotation.unreadable(pool, ENCRYPTION.keys) == []
    assert [event["kind"] for event in logs if "kind" in event] == ["authenticator secrets"]


@pytest_twisted.ensureDeferred
async def test_wrong_keys_in_a_changed_file_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    path = tmp_path / "secret.key"
    path.write_text(ONE)
    encryption, known, wrong = Encryption.load(path), list[Sequence[str]](), "The setting does not fit."

    class Process:
        async def announce_keys(self, fingerprints: Sequence[str]) -> None:
            known.append(fingerprints)

    reloads: list[int] = []

    async def checked(keys: Keys) -> str | None:
        reloads.append(keys.current)
        return wrong if keys.current == 2 else None

    follow = partial(follow_keys, encryption, cast(ProcessRegistration, Process()), checked)
    path.write_text(TWO)
    encrypted = encryption.encrypt(b"secret", ROW)
    with capturedLogs() as logs:
        await follow()
        await follow()  # not checked again before the file changes
    assert (reloads, encryption.rejected, encryption.current) == ([2], wrong, 1)
    assert len([event for event in logs if event["log_level"] is LogLevel.error]) == 1
    assert encryption.decrypt(encrypted, ROW) == b"secret" and known[-1] == ENCRYPTION.keys.fingerprints
    path.write_text(f"{TWO}{ONE}")
    await follow()
    assert encryption.rejected is None and set(encryption.keys.by_number) == {1, 2}
    path.write_text("rubbish")
    with pytest.raises(EncryptionError):
        await follow()
    path.write_text(f"{TWO}{ONE}\n")
    await follow()
    assert encryption.rejected is None and set(encryption.keys.by_number) == {1, 2}
