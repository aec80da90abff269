"""The doctor's document, for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from deployer.records.codec import Json

_STYLES = {"error": "red", "warning": "yellow", "advice": "cyan"}
_INDENT = " " * 9


def doctor_view(document: Json, *, asked: float | None = None) -> RenderableType:
    """Findings with their evidence and what to try, then what is fine and what could not be looked at.

    ``asked``: for how many seconds the GPUs were to be watched.
    """
    what = f"{document['profile']} ({document['release']})" if document["release"] else "nothing"
    parts: list[RenderableType] = [
        Text(
            f"{document['service']} on {document['host']}: {what} runs; looked for {document['seconds']:.1f} s"
        )
    ]
    if asked is not None and document["watched"] < asked:
        short = f"GPUs and connections were watched for {document['watched']:g} s instead of {asked:g}"
        parts.append(Text(f"{short}: the command's start took the rest", style="yellow"))
    for finding in document["findings"]:
        parts.append(Text(""))
        head = Text(f"{finding['severity']:8}", style=_STYLES[finding["severity"]])
        head.append(f" {finding['title']} ", style="bold")
        head.append(f"({finding['id']})", style="dim")
        parts.append(head)
        parts.append(Text(_INDENT + finding["message"]))
        parts += [
            Text(f"{_INDENT}│ {line}", style="dim")
            for line in finding["evidence"]
            if line != finding["message"]
        ]
        parts.append(_labelled("to try", finding["next"]))
        if finding["measure"]:
            parts.append(_labelled("measure", finding["measure"]))
    if not document["findings"]:
        parts += [Text(""), Text("nothing found", style="green")]
    parts += _rest("fine", document["fine"], "looked", "green")
    parts += _rest("not known", document["unknown"], "why", "dim")
    return Group(*parts)


def _labelled(label: str, text: str) -> Text:
    line = Text(_INDENT)
    line.append(f"{label}: ", style="bold")
    line.append(text)
    return line


def _rest(title: str, items: Sequence[Json], key: str, style: str) -> list[RenderableType]:
    if not items:
        return []
    width = max(len(item["id"]) for item in items)
    lines = [Text.assemble((f"  {item['id']:{width}}  ", "dim"), item[key]) for item in items]
    return [Text(""), Text(title, style=style), *lines]
