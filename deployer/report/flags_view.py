"""The flag tables of SGLang versions, as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from deployer.inspect.learn import KnownTable, Learned


def versions_view(tables: Sequence[KnownTable]) -> RenderableType:
    """The known tables, a line each."""
    view = Table(box=None, padding=(0, 2), header_style="dim")
    view.add_column("version")
    view.add_column("flags", justify="right")
    view.add_column("choices")
    view.add_column("from")
    for table in tables:
        source = escape(f"learned: {table.path}") if table.path else "shipped"
        view.add_row(table.version, str(table.flags), table.choices, source)
    return view


def learned_view(tables: Sequence[Learned]) -> RenderableType:
    """What was read from hosts, and how it differs from the shipped tables."""
    lines = []
    for item in tables:
        lines.append(
            f"[green]✓[/green] {escape(item.host)}: SGLang {item.table.version}, {len(item.table.flags)} flags, "
            f"written to {escape(str(item.path))}"
        )
        if not item.difference:
            lines.append(f"  equal to the shipped table of {item.compared}")
        for label, names in (
            ("added", item.difference.added),
            ("missing", item.difference.removed),
            ("changed", item.difference.changed),
        ):
            if names:
                lines.append(f"  {label}, compared with the shipped {item.compared}: {escape(_shortened(names))}")
    return Group(*lines)


def _shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(names[:12]) + more
