"""The flag tables of SGLang versions, as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from deployer.inspect.learn import Learned
from deployer.records.codec import Json


def versions_view(rows: Sequence[Json]) -> RenderableType:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name, justify in (("version", "left"), ("flags", "right"), ("choices", "left"), ("from", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for row in rows:
        source = escape(f"learned: {row['path']}") if row["learned"] else "shipped"
        table.add_row(row["version"], str(row["flags"]), row["choices"], source)
    return table


def learned_view(tables: Sequence[Learned]) -> RenderableType:
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
                lines.append(
                    f"  {label}, compared with the shipped {item.compared}: {escape(shortened(names))}"
                )
    return Group(*lines)


def shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(names[:12]) + more
