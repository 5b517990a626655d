"""Statements that a connection plans once: worth it where planning costs as much as doing, as it does for a short batch."""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

_PARAMETER = re.compile(r"\$\d+")


@attrs.frozen
class Prepared:
    """`sql` with $1, $2, … of `types`. `first` is executed ahead of each execution, in its transaction, without parameters."""

    name: str
    types: tuple[str, ...]
    sql: str
    first: Prepared | None = None

    @classmethod
    def named(cls, name: str, types: Mapping[str, str], sql: str, first: Prepared | None = None) -> Prepared:
        """Of a statement that has its parameters by name; they are given in the order of `types`."""
        numbered = {parameter: f"${number}" for number, parameter in enumerate(types, start=1)}
        return cls(name, tuple(types.values()), sql % numbered, first)

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
