"""What is in effect in a server, for people: the computed values, and one release argument by argument."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from deployer.records.codec import Json
from deployer.records.effect import Computed

_STYLES = {"equal": "green", "changed": "yellow", "missing": "dim", "defaulted": "dim"}


def effect_rows(in_effect: Json | None) -> list[tuple[str, str]]:
    """Label and text for each thing to know about a verified start; says so where nothing was kept."""
    if not in_effect:
        return [("in effect", "not known: the release was verified by an earlier deployer, or never")]
    rows = []
    if in_effect.get("computed"):
        rows += [("in effect", text) for text in Computed.from_json(in_effect["computed"]).sentences()]
    for item in in_effect.get("changed") or ():
        why = f": {item['reason']}" if item.get("reason") else ""
        rows.append(
            (
                "changed",
                f"{item['argument']}: asked {shown(item['requested'])}, is {shown(item['effective'])}{why}",
            )
        )
    if in_effect.get("missing"):
        rows.append(("not shown", ", ".join(in_effect["missing"])))
    return [
        (label if index == 0 or rows[index - 1][0] != label else "", text)
        for index, (label, text) in enumerate(rows)
    ]


def release_view(document: Json, *, defaults: bool) -> RenderableType:
    """One release: its state and its arguments; with ``defaults`` those that nobody asked for, too."""
    head = Table.grid(padding=(0, 2))
    head.add_column(style="bold")
    head.add_column(overflow="fold")
    head.add_row("release", f"{escape(document['release'])} ({escape(document['state'])})")
    if document.get("sglang"):
        head.add_row("engine", f"SGLang {escape(document['sglang'])}")
    if document.get("failure"):
        head.add_row("failure", escape(str(document["failure"].get("cause"))))
    for label, text in effect_rows(document.get("in_effect")):
        head.add_row(label, escape(text))
    wanted = [item for item in document["arguments"] if defaults or item["verdict"] != "defaulted"]
    if not wanted:
        return head
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("argument", "asked", "in effect", ""):
        table.add_column(name, overflow="fold", no_wrap=name == "argument")
    for item in wanted:
        asked = f"[dim](default {escape(shown(item['requested']))})[/dim]"
        style = _STYLES.get(item["verdict"], "")
        table.add_row(
            escape(item["argument"]),
            asked if item["verdict"] == "defaulted" else escape(shown(item["requested"])),
            "" if item["verdict"] == "missing" else escape(shown(item["effective"])),
            f"[{style}]{item['verdict']}[/{style}]"
            + (f" {escape(item['reason'])}" if item.get("reason") else ""),
        )
    return Group(head, Text(""), table)


def shown(value: Any) -> str:
    """A value as JSON has it, cut where it is long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
