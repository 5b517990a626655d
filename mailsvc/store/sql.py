"""Long SQL statements, each in a `.sql` file beside the module that uses it; and lists of columns.

Statements of up to 12 lines stay in their module. A missing file or part fails when the module is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import attrs


def statement(package: str, name: str, **parts: object) -> str:
    """The statement in `<name>.sql` of a package, without its comment lines and with `{part}` replaced by each of `parts`."""
    lines = (resources.files(package) / f"{name}.sql").read_text("utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("--"))
    for part, value in parts.items():
        if f"{{{part}}}" not in text:
            raise LookupError(f"{name}.sql of {package} has no part {{{part}}}.")
        text = text.replace(f"{{{part}}}", str(value))
    return text


@attrs.frozen
class Columns:
    """A SELECT list by field name: one place for the expressions and for reading the rows."""

    expressions: Mapping[str, str]

    @classmethod
    def of(cls, **expressions: str) -> Columns:
        return cls(expressions)

    @classmethod
    def named(cls, *names: str) -> Columns:
        """Columns that are called like the fields."""
        return cls({name: name for name in names})

    @classmethod
    def of_class(cls, view: type, alias: str, **expressions: str) -> Columns:
        """A column for each field of an attrs class: of the same name in the table, unless there is an expression for it."""
        return cls({field.name: expressions.get(field.name, f"{alias}.{field.name}") for field in attrs.fields(view)})

    def of_table(self, alias: str) -> Columns:
        """The same columns of one table among several."""
        return Columns({name: f"{alias}.{column}" for name, column in self.expressions.items()})

    def __str__(self) -> str:
        return ", ".join(self.expressions.values())

    def read(self, row: Sequence[Any]) -> dict[str, Any]:
        """The values of a row by field name."""
        return dict(zip(self.expressions, row, strict=True))
