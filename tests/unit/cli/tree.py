"""The commands that there are."""

from __future__ import annotations

from collections.abc import Iterator

import click


def commands(group: click.Group, *above: str) -> Iterator[tuple[str, click.Command]]:
    """Every command under its full name, those of groups included."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *above, name)
        else:
            yield " ".join((*above, name)), command
