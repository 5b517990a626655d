"""Prints docs/data.md from the map of personal data: `python -m mailsvc.store.privacy.page`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from mailsvc.store.privacy import inventory
from mailsvc.store.privacy.inventory import Column, Erase, Table

_INTRODUCTION = """# Personal data

This page lists every place where mailsvc can hold personal data. It is generated from `mailsvc/store/privacy/personal_data.toml`, which
`mailsvc privacy` uses too; a test compares it with the columns of the database. How to find, export and erase a person's data:
[privacy.md](privacy.md).

**Whose** data it is: a *member* signs in to the dashboard, a *contact* is in an account's audience, a *recipient* gets its mail, and a
*visitor* opens one of its pages. **Where**: *cell* means with the other data of the account, in the cell and region that it lives
in; *installation* means one table for all accounts. `retention.…` is a [setting](operations.md#retention), which an account can shorten.
"""
_HOW: dict[Erase, str] = {
    "address": "replaced, with the name beside it",
    "text": "the address is replaced",
    "own": "blanked if nobody else received it, otherwise the address is replaced",
    "null": "removed",
    "row": "the row is deleted",
    "keep": "stays; reported, change it yourself",
    "contact": "deleted with the contact",
    "member": "deleted with the member",
    "suppression": "becomes a keyed hash",
    "message": "the message is deleted",
    "import": "overwritten",
    "audit": "removed, with its salt; the line stays in the chain",
    "keyed": "stays: it does not name the person",
}


def render() -> str:
    """The page."""
    tables = list(inventory.tables().values())
    return "\n".join([_INTRODUCTION, *_personal(tables), *_elsewhere(), *_none(tables)]) + "\n"


def _personal(tables: Sequence[Table]) -> Iterator[str]:
    yield "## Tables\n"
    for table in tables:
        if table.personal:
            yield f"### {table.name}\n"
            yield f"{table.what} Where: {table.where}. Kept: {table.kept}.\n"
            yield "| columns | whose | why | erased |\n|---|---|---|---|"
            for (whose, why, erase), columns in groupby(table.personal, _group):
                yield f"| {', '.join(f'`{column.name}`' for column in columns)} | {whose} | {why} | {_HOW[erase]} |"
            yield ""


def _group(column: Column) -> tuple[str, str, Erase]:
    return column.whose, column.why, column.erase


def _elsewhere() -> Iterator[str]:
    yield "## Files, log lines, metrics\n"
    yield "| what | where | holds | whose | kept | erased |\n|---|---|---|---|---|---|"
    for each in inventory.elsewhere():
        yield f"| {each.kind} | {each.name} | {each.holds} | {each.whose} | {each.kept} | {each.erase} |"
    yield ""


def _none(tables: Sequence[Table]) -> Iterator[str]:
    yield "## Tables without personal data\n"
    yield "IDs, figures, times, names of servers and domains, and secrets of the service.\n"
    yield "| table | holds | where | kept |\n|---|---|---|---|"
    for table in tables:
        if not table.personal:
            yield f"| `{table.name}` | {table.what} | {table.where} | {table.kept} |"


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201
