"""Statements that a connection plans once: worth it where planning costs as much as doing, as it does for a short batch."""

from __future__ import annotations

import re

import attrs

_PARAMETER = re.compile(r"\$\d+")


@attrs.frozen
class Prepared:
    """`sql` with $1, $2, … of `types`. `first` is executed ahead of each execution, in its transaction, without parameters."""

    name: str
    types: tuple[str, ...]
    sql: str
    first: Prepared | None = None

    @property
    def prepare(self) -> str:
        types = f" ({', '.join(self.types)})" if self.types else ""
        return f"PREPARE {self.name}{types} AS {self.sql}"

    @property
    def execute(self) -> str:
        """For the driver, which writes the parameters into it."""
        params = f" ({', '.join(['%s'] * len(self.types))})" if self.types else ""
        return f"{self.first.execute + '; ' if self.first else ''}EXECUTE {self.name}{params}"

    @property
    def plain(self) -> str:
        """The same as a statement for the middle of a transaction; its parameters have to stand in their order."""
        return _PARAMETER.sub("%s", self.sql)
