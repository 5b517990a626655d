"""Settings that differ for single cells: the tables [cells.NAME] of the file. A process of that cell uses them instead of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from mailsvc.settings import checks, reader
from mailsvc.settings.reader import SettingsError
from mailsvc.settings.schema import Settings

KEY = "cells"
CELL = reader.variable("database", "cell")  # the environment variable
EXAMPLE = (
    "",
    "# Settings that differ for one cell, for machines that serve several.",
    "# [cells.us_1.http]",
    '# listen = ["tcp:8101:interface=127.0.0.1"]',
)


def names(given: Mapping[str, Any]) -> list[str]:
    """The cells that have settings of their own. Raises SettingsError."""
    return list(_tables(given))


def applied(given: Mapping[str, Any], environ: Mapping[str, str]) -> Mapping[str, Any]:
    """What a file says for the cell of this process. Raises SettingsError, also for mistakes in the tables of other cells."""
    tables = _tables(given)
    database = given.get("database")
    cell = environ.get(CELL) or (database.get("cell") if isinstance(database, Mapping) else None)
    general = {key: value for key, value in given.items() if key != KEY}
    for section, value in tables.get(cell, {}).items() if isinstance(cell, str) else ():
        general[section] = _merged(general.get(section), value, _depth(section))
    return general


def refuse_shared(settings: Mapping[str, Settings]) -> None:
    """Raise a SettingsError if two cells of one machine would use the same port, socket or file."""
    owners: dict[str, tuple[str, str]] = {}
    for cell, each in settings.items():
        for name, value in _alone(each):
            other, theirs = owners.setdefault(value, (cell, name))
            if other != cell:
                where = name if theirs == name else f"{name} and {theirs}"
                raise SettingsError(f"The cells {other} and {cell} both have {value} ({where}). Set another one in [{KEY}.{cell}].")


def _tables(given: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    tables = given.get(KEY, {})
    if not isinstance(tables, Mapping) or not all(isinstance(each, Mapping) for each in tables.values()):
        raise SettingsError(f"The setting {KEY} is not valid; expected tables of settings, such as [{KEY}.us_1].")
    for cell, table in tables.items():
        if (wrong := checks.cell(cell)) is not None:
            raise SettingsError(f"The table [{KEY}.{cell}] has a wrong name; {wrong}.")
        database = table.get("database")
        if isinstance(database, Mapping) and "cell" in database:
            raise SettingsError(f"The setting {KEY}.{cell}.database.cell does not exist: the table is for {cell} already.")
        try:
            reader.build(Settings, table, {})
        except SettingsError as error:
            raise SettingsError(f"In [{KEY}.{cell}]: {error}") from None
    return tables


def _depth(section: str) -> int:
    """How many tables of names are inside each other: keys are replaced, tables of keys are not."""
    metadata = next(field.metadata for field in attrs.fields(Settings) if field.name == section)
    return 2 if "named" in metadata else 1 if "section" in metadata else 0


def _merged(general: Any, own: Any, depth: int) -> Any:
    if not depth or not isinstance(general, Mapping):
        return own
    return {**general, **{key: _merged(general.get(key), value, depth - 1) for key, value in own.items()}}


def _alone(settings: Settings) -> list[tuple[str, str]]:
    """What only one cell's processes can use, with the setting's name."""
    endpoints = {
        "http.listen": settings.http.listen,
        "smtp.listen": [one for value in settings.smtp.listen.values() for one in value.split()],
        "metrics.listen": settings.metrics.listen,
        "console.listen": settings.console.listen,
        "sandbox.listen": settings.sandbox.listen,
    }
    files = {
        "control.socket": settings.control.socket,
        "database.restore_marker": settings.database.restore_marker,
        "audit.anchor_file": settings.audit.anchor_file,
        "privacy.journal": settings.privacy.journal,
    }
    found = [(name, one.removeprefix("haproxy:")) for name, values in endpoints.items() for one in values]
    return found + [(name, str(value)) for name, value in files.items() if value is not None]
