"""Anchors: signed, numbered, and each with the hash of the one before it; in the database and in a file."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import attrs
import pytest
import pytest_twisted

from mailsvc.audit.service import write_anchors
from mailsvc.audit.signing import Anchored, AnchorFile, BadKey, SigningKey, create_key
from mailsvc.store.audit import anchors
from mailsvc.store.audit.anchors import Anchor
from mailsvc.store.people.audit import by_operator, write
from mailsvc.store.postgres.pool import Pool

AT = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
ACCOUNT, OTHER = UUID(int=1), UUID(int=2)


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    create_key(tmp_path / "key.pem")
    return SigningKey.read(tmp_path / "key.pem")


async def act(pool: Pool, *accounts: UUID) -> None:
    await pool.transact(lambda tx: write(tx, [by_operator(account, "changed") for account in accounts], AT.timestamp()))


async def created(pool: Pool, key: SigningKey, hours: int) -> int:
    return await anchors.make(pool, AT + hours * HOUR, HOUR, key.sign)


def said(key: SigningKey, found: list[Anchor]) -> Anchored:
    anchored = Anchored(key, "here")
    for anchor in found:
        anchored.add(anchor)
    return anchored


@pytest_twisted.ensureDeferred
async def test_anchors_cover_the_chains_that_have_grown(pool: Pool, key: SigningKey) -> None:
    await act(pool, ACCOUNT, ACCOUNT, OTHER)
    assert await created(pool, key, 0) == 1
    assert await created(pool, key, 5) == 0  # nothing new
    await act(pool, OTHER)
    assert await anchors.make(pool, AT + HOUR / 2, HOUR, key.sign) == 0  # too soon
    assert await created(pool, key, 1) == 1
    found = said(key, await anchors.after(pool, 0))
    assert found.problems == []
    hashes = await pool.rows("SELECT account_id, seq, hash FROM audit")
    assert {(account, seq): {hash} for account, seq, hash in hashes if (account, seq) != (ACCOUNT, 1)} == {
        (account, seq): each for account, by_line in found.hashes.items() for seq, each in by_line.items()
    }


@pytest_twisted.ensureDeferred
async def test_many_chains_are_anchored_in_several_anchors(pool: Pool, key: SigningKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "MOST", 2)
    await act(pool, *(UUID(int=number) for number in range(5)))
    assert await created(pool, key, 0) == 3
    found = said(key, await anchors.after(pool, 0))
    assert (len(found.hashes), found.problems) == (5, [])


@pytest_twisted.ensureDeferred
async def test_changed_missing_and_foreign_anchors_are_found(pool: Pool, key: SigningKey, tmp_path: Path) -> None:
    for hour in range(3):
        await act(pool, ACCOUNT)
        assert await created(pool, key, hour) == 1
    one, two, three = await anchors.after(pool, 0)
    changed = attrs.evolve(two, body=two.body.replace(str(ACCOUNT), str(OTHER)))
    assert said(key, [one, changed, three]).problems == ["Anchor 2 of here is not signed with this key, or was changed."]
    assert OTHER not in said(key, [one, changed, three]).hashes
    assert said(key, [one, three]).problems == ["Anchor 2 of here is missing."]
    assert said(key, [one, attrs.evolve(three, number=2)]).problems == ["Anchor 2 of here does not follow from the one before it."]
    create_key(tmp_path / "other.pem")
    other = SigningKey.read(tmp_path / "other.pem")
    assert len(said(other, [one, two, three]).problems) == 3
    both = SigningKey(other.private, [*other.public, *key.public])  # after the key was replaced
    assert said(both, [one, two, three]).problems == []


@pytest_twisted.ensureDeferred
async def test_the_file_gets_each_anchor_once_and_survives_a_cut_write(pool: Pool, key: SigningKey, tmp_path: Path) -> None:
    file = AnchorFile(tmp_path / "anchors.jsonl")

    async def in_thread(call):
        return call()

    await act(pool, ACCOUNT)
    await created(pool, key, 0)
    await write_anchors(pool, file, in_thread)
    await write_anchors(pool, file, in_thread)
    assert len(file.path.read_bytes().splitlines()) == 1
    file.path.write_bytes(file.path.read_bytes() + b'{"type": "anch')
    for hour in (1, 2):
        await act(pool, ACCOUNT)
        await created(pool, key, hour)
    await write_anchors(pool, file, in_thread)
    assert said(key, list(file.read())) == said(key, await anchors.after(pool, 0))
    assert [anchor.number for anchor in file.read()] == [1, 2, 3]


def test_key_files_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    public = create_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        create_key(path)
    (tmp_path / "public.pem").write_text(public)
    assert SigningKey.read(tmp_path / "public.pem").private is None
    for text in ("", "x", "-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n"):
        path.write_text(text)
        with pytest.raises(BadKey):
            SigningKey.read(path)
    with pytest.raises(BadKey, match="cannot be read"):
        SigningKey.read(tmp_path / "none.pem")
