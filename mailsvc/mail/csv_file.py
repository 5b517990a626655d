"""CSV files for spreadsheets, in pieces. No cell is read as a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four are full-width forms


def plain(value: str) -> str:
    """The value, with an apostrophe before each part that a spreadsheet would read as a formula.

    Where decimals have a comma, spreadsheets take a semicolon for the end of a cell.
    """
    return ";".join(f"'{part}" if _is_formula(part) else part for part in value.split(";"))


def _is_formula(cell: str) -> bool:
    return cell[:1] in _FORMULA or cell.lstrip(" \u00a0\ufeff")[:1] in _FORMULA


def lines(rows: Iterable[Iterable[object]]) -> bytes:
    """4180 §2, in UTF-8."""
    out = io.StringIO()
    csv.writer(out).writerows([plain("" if cell is None else str(cell)) for cell in row] for row in rows)
    return out.getvalue().encode("utf-8", "replace")
