"""Recipients of old broadcasts are deleted, even if those of another broadcast cannot be."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from twisted.internet.defer import Deferred

from mailsvc.store.broadcasts.retention import BroadcastRetention
from mailsvc.store.postgres.errors import TimedOut

BROKEN, OTHER = UUID(int=1), UUID(int=2)


class Database:
    """Two old broadcasts with a recipient each."""

    def __init__(self) -> None:
        self.deleted: list[UUID] = []

    async def rows(self, sql: str, given: Any) -> list[tuple[UUID, UUID]]:
        return [(UUID(int=9), id_) for id_ in (BROKEN, OTHER)]

    async def run(self, sql: str, given: Any) -> int:
        _, id_, *size = given
        if id_ == BROKEN:
            raise TimedOut("canceling statement due to statement timeout")
        if not size or id_ in self.deleted:
            return 0
        self.deleted.append(id_)
        return 1


def test_a_broadcast_that_fails_does_not_hold_up_the_others() -> None:
    database, failed = Database(), list[Any]()
    sweep = BroadcastRetention(database).sweep(datetime(2026, 1, 2, tzinfo=UTC))  # type: ignore[arg-type]
    Deferred.fromCoroutine(sweep).addErrback(failed.append)
    [failure] = failed
    with pytest.raises(TimedOut):
        failure.raiseException()
    assert database.deleted == [OTHER]
