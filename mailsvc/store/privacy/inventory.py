"""The map of personal data: reads personal_data.toml. Pure. What is done with it: search, rows."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

import attrs

Whose = Literal["member", "contact", "recipient", "visitor"]
Where = Literal["cell", "installation"]
Erase = Literal[
    "address", "text", "own", "null", "row", "keep", "contact", "member", "suppression", "message", "import", "audit", "keyed"
]  # fmt: skip
BY_STEPS = frozenset({"contact", "member", "suppression", "message", "import"})


@attrs.frozen
class Column:
    """A column that can hold personal data."""

    name: str
    whose: Whose
    why: str
    erase: Erase


@attrs.frozen
class Table:
    name: str
    what: str
    where: Where
    kept: str
    plain: tuple[str, ...]
    personal: tuple[Column, ...]


@attrs.frozen
class Elsewhere:
    """Personal data in a file, a log line or a metric."""

    kind: Literal["file", "log line", "metric"]
    name: str
    holds: str
    whose: str
    kept: str
    erase: str


@cache
def tables() -> Mapping[str, Table]:
    """Every table, by name."""
    return {name: _table(name, values) for name, values in _data().items() if name != "elsewhere"}


def elsewhere() -> Sequence[Elsewhere]:
    return [Elsewhere(**values) for values in _data()["elsewhere"]]


def purpose(place: str) -> str:
    """Whose data a column has and why, by its table and name."""
    table, _, name = place.partition(".")
    return next((f"{each.whose}: {each.why}" for each in tables()[table].personal if each.name == name), "")


@cache
def _data() -> Mapping[str, Any]:
    return tomllib.loads((resources.files("mailsvc.store.privacy") / "personal_data.toml").read_text("utf-8"))


def _table(name: str, values: Mapping[str, Any]) -> Table:
    known = {"what", "where", "kept", "plain", "personal"}
    if not known - {"personal"} <= values.keys() <= known or values["where"] not in get_args(Where):
        raise ValueError(f"personal_data.toml: the table {name} needs {', '.join(sorted(known))}.")
    personal = tuple(column for group in values.get("personal", ()) for column in _columns(name, group))
    return Table(name, values["what"], values["where"], values["kept"], tuple(values["plain"].split()), personal)


def _columns(table: str, group: Mapping[str, Any]) -> Sequence[Column]:
    if group["whose"] not in get_args(Whose) or group["erase"] not in get_args(Erase):
        raise ValueError(f"personal_data.toml: {table}.{group['columns']} has an unknown `whose` or `erase`.")
    return [Column(name, group["whose"], group["why"], group["erase"]) for name in group["columns"].split()]
