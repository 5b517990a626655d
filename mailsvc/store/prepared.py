"""Statements that a connection plans once: worth it where planning costs as much as doing, as it does for a short batch."""

from __future__ import annotations

import re

import attrs

_PARAMETER = re.compile(r"\$\d+")


@attrs.frozen
class Prepared:
    """`sql` with $1, $2, … of `types`. `before` runs ahead of each execution, in its transaction; a plan that is made anew obeys it."""

    name: str
    types: tuple[str, ...]
    sql: str
    before: str = ""

    @property
    def direct(self) -> bool:
        """Whether its parameters may go beside it: nothing else runs in its round trip."""
        return not self.before

    @property
    def prepare(self) -> str:
        return f"PREPARE {self.name} ({', '.join(self.types)}) AS {self.sql}"

    @property
    def execute(self) -> str:
        return f"{self.before}EXECUTE {self.name} ({', '.join(['%s'] * len(self.types))})"

    @property
    def plain(self) -> str:
        """The same as a statement for the middle of a transaction; its parameters have to stand in their order."""
        return _PARAMETER.sub("%s", self.sql)
