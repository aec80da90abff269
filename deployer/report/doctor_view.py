"""What the doctor found, for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from deployer.inspect.doctor.checkup import Checkup
from deployer.inspect.doctor.symptom import Present, Symptom
from deployer.report.check_view import STYLES

_INDENT = " " * 9


def doctor_view(checkup: Checkup, *, requested: float) -> RenderableType:
    """Findings with their evidence and what to try, then what is fine and what is unclear.

    ``requested``: for how many seconds the GPUs were to be watched.
    """
    evidence = checkup.evidence
    running = f"{evidence.profile} ({evidence.release})" if evidence.release else "nothing"
    head = f"{evidence.service} on {evidence.host}: {running} runs; the look took {checkup.seconds:.1f} s"
    parts: list[RenderableType] = [Text(head)]
    if evidence.watched < requested:
        watched = f"GPUs and connections were watched for {evidence.watched:g} s instead of {requested:g}"
        parts.append(Text(f"{watched}: the command's start took the rest", style="yellow"))
    for symptom, found in checkup.present:
        parts += [Text(""), *_finding(symptom, found)]
    if not checkup.present:
        parts += [Text(""), Text("nothing found", style="green")]
    if evidence.state.running is None:
        fine = ", ".join(symptom.id for symptom, _ in checkup.absent)
        parts += [Text(""), Text.assemble(("fine", "green"), f"  {fine}")]
    else:
        parts += _rest("fine", checkup.absent, "green")
    parts += _rest("unclear", checkup.unclear, "dim")
    return Group(*parts)


def _finding(symptom: Symptom, found: Present) -> list[RenderableType]:
    lines: list[RenderableType] = [
        Text.assemble(
            (f"{symptom.severity:8}", STYLES[symptom.severity]),
            (f" {symptom.title} ", "bold"),
            (f"({symptom.id})", "dim"),
        ),
        Text(_INDENT + found.message),
        *(Text(f"{_INDENT}│ {line}", style="dim") for line in found.evidence if line != found.message),
    ]
    for label, text in (("to try", found.next), ("measure", found.measure)):
        if text:
            lines.append(Text.assemble(_INDENT, (f"{label}: ", "bold"), text))
    return lines


def _rest(title: str, items: Sequence[tuple[Symptom, str]], style: str) -> list[RenderableType]:
    if not items:
        return []
    ids: dict[str, list[str]] = {}
    for symptom, text in items:
        ids.setdefault(text, []).append(symptom.id)
    width = max((len(own[0]) for own in ids.values() if len(own) == 1), default=0)
    lines = [
        Text.assemble((f"  {own[0]:{width}}  ", "dim"), text)
        if len(own) == 1
        else Text.assemble(f"  {text}: ", (", ".join(own), "dim"))
        for text, own in ids.items()
    ]
    return [Text(""), Text(title, style=style), *lines]
