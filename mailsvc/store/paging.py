"""Keyset paging: the rows next to a row that the client names, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar
from uuid import UUID

import attrs

T = TypeVar("T")


@attrs.frozen
class Page:
    """`limit` rows older than `after` or newer than `before`. Without a limit: all of them."""

    limit: int | None = None
    after: UUID | None = None
    before: UUID | None = None

    def where(self, column: str) -> tuple[str, tuple[object, ...]]:
        """The end of a statement that already has a WHERE clause, and its parameters. `column` is never input."""
        edge = self.before or self.after
        condition = "" if edge is None else f" AND {column} {'<' if self.before is None else '>'} %s"
        order = f" ORDER BY {column} {'DESC' if self.before is None else 'ASC'}"
        bound = "" if self.limit is None else " LIMIT %s"
        return condition + order + bound, (*([edge] if edge else []), *([self.limit + 1] if self.limit is not None else []))

    def cut(self, rows: Sequence[T]) -> tuple[list[T], bool]:
        """The page, newest first, and whether there are more rows in its direction."""
        found = list(rows if self.limit is None else rows[: self.limit])
        return (found if self.before is None else found[::-1]), len(rows) > len(found)


ALL = Page()
