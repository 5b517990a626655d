"""The commands of `mailsvc`, group by group."""

from __future__ import annotations

import click


def commands_of(group: click.Group) -> dict[str, click.Command]:
    """All commands of a group, imported, by name."""
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}
