"""Prepared statements, planned once per connection. Worth it where planning costs as much as running, as for short batches."""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

_PARAMETER = re.compile(r"\$\d+")


@attrs.frozen
class Prepared:
    """`sql` with parameters $1, $2, … of `types`. `first`, without parameters, is executed before it in the same transaction."""

    name: str
    types: tuple[str, ...]
    sql: str
    first: Prepared | None = None

    @classmethod
    def named(cls, name: str, types: Mapping[str, str], sql: str, first: Prepared | None = None) -> Prepared:
        """From a statement with named parameters, which are passed in the order of `types`."""
        numbered = {parameter: f"${number}" for number, parameter in enumerate(types, start=1)}
        return cls(name, tuple(types.values()), sql % numbered, first)

    @property
    def prepare(self) -> str:
        types = f" ({', '.join(self.types)})" if self.types else ""
        return f"PREPARE {self.name}{types} AS {self.sql}"

    @property
    def execute(self) -> str:
        """For the driver, which inserts the parameters."""
        params = f" ({', '.join(['%s'] * len(self.types))})" if self.types else ""
        return f"{self.first.execute + '; ' if self.first else ''}EXECUTE {self.name}{params}"

    @property
    def plain(self) -> str:
        """The same as an ordinary statement, for use inside a transaction. Its parameters must appear in their order."""
        return _PARAMETER.sub("%s", self.sql)
