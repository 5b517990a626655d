"""Verifies the chains of the audit log: reads every line, recomputes its hash, and compares with the heads and with signed anchors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import attrs

from mailsvc.store.audit import chain
from mailsvc.store.audit.chain import Link
from mailsvc.store.postgres.pool import Pool

PAGE = 1000  # lines that are read at once
MOST = 100  # problems that are reported of an account

# Also accounts whose head or lines are gone.
ACCOUNTS = """
SELECT account_id FROM audit_heads UNION SELECT account_id FROM audit UNION SELECT account_id FROM audit_details ORDER BY 1
"""
HEAD = "SELECT seq, hash FROM audit_heads WHERE account_id = %s"
LINES = """
SELECT a.seq, a.hash, a.actor || a.address || a.subject, d.account_id IS NOT NULL,
       a.id, a.at, a.user_id, a.kind, a.action, a.actor_hash, a.address_hash, a.subject_hash,
       d.actor, d.actor_salt, d.address, d.address_salt, d.subject, d.subject_salt
FROM audit a LEFT JOIN audit_details d ON d.account_id = a.account_id AND d.id = a.id
WHERE a.account_id = %s AND a.seq > %s AND a.seq <= %s ORDER BY a.seq LIMIT %s
"""
BEYOND = """
SELECT count(*) FROM audit a
WHERE a.account_id = %s AND a.seq > coalesce((SELECT h.seq FROM audit_heads h WHERE h.account_id = a.account_id), 0)
"""
UNCHAINED = "SELECT count(*) FROM audit WHERE account_id = %s AND (hash IS NULL OR seq IS NULL OR seq < 1)"
ORPHANS = """
SELECT count(*) FROM audit_details d
WHERE d.account_id = %s AND NOT EXISTS (SELECT FROM audit a WHERE a.account_id = d.account_id AND a.id = d.id)
"""


@attrs.frozen
class Result:
    """Of one account. `erased`: lines of which a text was erased. `anchored`: the last line that an anchor confirms, 0: none."""

    account_id: UUID
    lines: int
    erased: int
    anchored: int
    problems: Sequence[str]


@attrs.define
class _State:
    """How far an account has been read."""

    account_id: UUID
    anchors: Mapping[int, Collection[bytes]]
    seq: int = 0
    hash: bytes = b""
    lines: int = 0
    erased: int = 0
    anchored: int = 0
    problems: list[str] = attrs.field(factory=list)

    def found(self, problem: str) -> None:
        if len(self.problems) < MOST:
            self.problems.append(problem)
        elif len(self.problems) == MOST:
            self.problems.append("There are more problems.")

    def read(self, row: Sequence[Any]) -> None:
        seq, hash, legacy, has_details, *columns = row
        *of_line, actor, actor_salt, address, address_salt, subject, subject_salt = columns
        if seq != self.seq + 1:
            self.found(_missing(self.seq + 1, seq - 1))
        self.lines += 1
        link = Link(self.account_id, *of_line) if None not in (of_line[3], *of_line[5:]) else None
        if link is None or legacy or hash is None:
            self.found(f"Line {seq} was changed: it is incomplete.")
        else:
            if seq == self.seq + 1 and chain.following(self.hash, link.digest()) != bytes(hash):
                self.found(f"Line {seq} was changed, added, or moved from another place.")
            self._read_texts(
                seq,
                has_details,
                {
                    "actor": (actor, actor_salt, link.actor_hash),
                    "address": (address, address_salt, link.address_hash),
                    "subject": (subject, subject_salt, link.subject_hash),
                },
            )
        self.seq, self.hash = seq, hash or b""
        self._compare(self.anchors.get(seq, ()))

    def _compare(self, anchored: Collection[bytes]) -> None:
        if any(each != self.hash for each in anchored):
            self.found(f"Line {self.seq} is not the one that was anchored: it or a line before it was changed, added or removed.")
        elif anchored:
            self.anchored = self.seq

    def _read_texts(self, seq: int, has_details: bool, texts: Mapping[str, tuple[str | None, bytes | None, bytes]]) -> None:
        if not has_details:
            self.found(f"The texts of line {seq} are missing.")
            return
        for name, (text, salt, hash) in texts.items():
            if (text is None) != (salt is None) or (text is not None and salt is not None and chain.commitment(salt, text) != hash):
                self.found(f"The {name} of line {seq} was changed.")
        self.erased += any(text is None for text, _, _ in texts.values())


def _missing(first: int, last: int) -> str:
    return f"Line {first} is missing." if first == last else f"Lines {first} to {last} are missing."


async def verify(pool: Pool, account_id: UUID, anchors: Mapping[int, Collection[bytes]]) -> Result:
    """Verify an account. `anchors`: the hashes that signed anchors have for its lines. Lines that are added meanwhile do not matter."""
    heads = await pool.rows(HEAD, (account_id,))
    last, hash = heads[0] if heads else (0, b"")
    state = _State(account_id, anchors, hash=chain.start(account_id))
    while rows := await pool.rows(LINES, (account_id, state.seq, last, PAGE)):
        for row in rows:
            state.read(row)
    if state.seq < last:
        state.found(_missing(state.seq + 1, last))
    elif last and state.hash != bytes(hash):
        state.found(f"The head of the chain is not line {last}: one of them was changed.")
    if cut := max((seq for seq in anchors if seq > last), default=0):
        state.found(f"The log ends with line {last}, but line {cut} was anchored: the lines after {last} were removed.")
    for sql, problem in (
        (BEYOND, "{count} lines were added after the end of the chain."),
        (UNCHAINED, "{count} lines are not in the chain: added without mailsvc, or by a process of an older release."),
        (ORPHANS, "{count} lines are missing of which the texts are still there."),
    ):
        [(count,)] = await pool.rows(sql, (account_id,))
        if count:
            state.found(problem.format(count=count))
    return Result(account_id, state.lines, state.erased, state.anchored, tuple(state.problems))


async def accounts(pool: Pool) -> AsyncIterator[UUID]:
    """All accounts that have an audit log."""
    for (account_id,) in await pool.rows(ACCOUNTS):
        yield account_id
