"""Prints etc/mailsvc.toml from the schema: `python -m mailsvc.settings.example`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from mailsvc.settings import cells, reader
from mailsvc.settings.schema import Settings


def render() -> str:
    """Returns the file: every setting with its description and default, or as a comment if it has no default."""
    lines = [
        "# Every setting of mailsvc with its default. Settings that are commented out have no default; they show an example.",
        "# Environment variables override this file: MAILSVC_BASE_URL, MAILSVC_DATABASE__URL, …",
        "# Relative paths start from the working directory.",
    ]
    titles = {field.name: field.metadata["help"] for field in attrs.fields(Settings)}
    table = ""
    for place, key, field in reader.keys(Settings):
        if place != table:
            lines += ["", f"# {titles[place]}", f"[{place}]"]
            table = place
        missing = field.default is None
        lines += [
            "",
            f"# {field.metadata['help']}",
            f"{'# ' if missing else ''}{key} = {written(field.metadata['example'] if missing else field.default)}",
        ]
    for field in attrs.fields(Settings):
        if "named" in field.metadata:
            lines += _named(field)
    lines += cells.EXAMPLE
    return "\n".join(lines) + "\n"


def _named(field: attrs.Attribute[Any]) -> list[str]:
    """A table as an example, in comments: its name is the operator's choice."""
    lines = ["", f"# {field.metadata['help']}", f"# [{field.name}.NAME]"]
    for _, key, leaf in reader.keys(field.metadata["named"]):
        value = leaf.metadata["example"] if leaf.default is None else leaf.default
        lines += ["#", f"# {leaf.metadata['help']}", f"# {key} = {written(value)}"]
    return lines


def written(value: Any) -> str:
    """A value as in TOML."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return f"{value:g}" if isinstance(value, float) else str(value)
        case tuple():
            return f"[{', '.join(written(item) for item in value)}]"
        case Mapping():
            return f"{{ {', '.join(f'{written(k)} = {written(v)}' for k, v in value.items())} }}" if value else "{}"
        case _:
            return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201
