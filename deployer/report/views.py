"""Documents as tables and paragraphs: status, history, plan, outcome, profiles."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from deployer.records.codec import Json
from deployer.records.outcome import Objection, Outcome, Plan
from deployer.records.release import BenchSummary
from deployer.report.effect_view import effect_rows
from deployer.sglang.profile_list import ProfileRow
from deployer.text import count_of

_GIB = 1024**3


def duration(seconds: float) -> str:
    """Seconds in the unit a person would use."""
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} days"


def moment(epoch: float | None) -> str:
    """A point in time in local time, to the minute."""
    return datetime.fromtimestamp(epoch).strftime("%Y-%m-%d %H:%M") if epoch else ""


def speed(bench: Json | None) -> str:
    """A benchmark's summary in one line: single stream, then aggregate at each level."""
    return str(BenchSummary.from_json(bench)) if bench else ""


def status_view(document: Json, *, verbose: bool = False) -> RenderableType:
    """The status of one service; ``verbose``: with what SGLang made of the live release's arguments."""
    entry = document["hosts"][0]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    live, unit, health = entry["live"], entry["unit"], entry["health"]
    mark = "[green]● healthy[/green]" if document["ok"] else "[red]● not healthy[/red]"
    if entry["transition"]:
        mark = "[yellow]● changing[/yellow]"
    table.add_row(document["service"], f"{mark} on {escape(entry['host'])}")
    if live:
        since = f", live for {duration(time.time() - live['since'])}" if live["since"] else ""
        table.add_row(
            "live", f"{escape(live['profile'] or '?')} (release {escape(live['release'] or '?')}{since})"
        )
        if speed(live.get("bench")):
            table.add_row("speed", f"{speed(live['bench'])} [dim](when it was proven)[/dim]")
        if live.get("verdict"):
            table.add_row("verdict", escape(live["verdict"]))
        if live.get("sglang"):
            table.add_row("engine", f"SGLang {escape(live['sglang'])}")
        if verbose:
            for label, text in effect_rows(live.get("in_effect")):
                table.add_row(label, escape(text))
    else:
        table.add_row("live", "nothing was ever live")
    running = f", running {escape(unit['running'])}" if unit["running"] else ""
    table.add_row(
        "unit",
        f"{unit['name']}: {unit['active']} ({unit['sub']}), {count_of(unit['restarts'], 'restart')}{running}",
    )
    took = f" in {health['seconds']:.2f} s" if health["ok"] else ""
    table.add_row("health", f"/health: {escape(str(health['status']))}{took}")
    if entry["transition"]:
        change = entry["transition"]
        table.add_row(
            "change",
            f"from {change['from'] or 'nothing'} to {change['to']}: {change['step']} ({duration(change['seconds'])})",
        )
    if entry["lease"]:
        lease = entry["lease"]
        table.add_row(
            "lease", f"{escape(lease['owner'])}: {escape(lease['reason'])}, {lease['expires_in']:.0f} s left"
        )
    for text in entry["drift"]:
        table.add_row("[yellow]drift[/yellow]", escape(text))
    parts: list[RenderableType] = [table]
    if entry["gpus"]:
        parts += [Text(""), gpu_table(entry["gpus"])]
    return Group(*parts)


def gpu_table(gpus: Sequence[Json]) -> Table:
    """Memory, use and power of each GPU; their name once where it is the same for all."""
    names = {gpu["name"] for gpu in gpus}
    title = f"{len(gpus)} x {next(iter(names))}" if len(names) == 1 else None
    table = Table(
        box=None, padding=(0, 2), header_style="dim", title=title, title_style="dim", title_justify="left"
    )
    for name in ("GPU", "memory", "use", "power"):
        table.add_column(name, justify="left" if name == "GPU" else "right")
    for gpu in gpus:
        power = "" if gpu["power_w"] is None else f"{gpu['power_w']:.0f} W"
        if power and gpu["power_limit_w"]:
            power += f" of {gpu['power_limit_w']:.0f}"
        table.add_row(
            f"{gpu['index']}" if title else f"{gpu['index']} {escape(gpu['name'])}",
            f"{gpu['memory_used'] / _GIB:.0f} of {gpu['memory_total'] / _GIB:.0f} GiB",
            "" if gpu["utilization"] is None else f"{gpu['utilization']:.0f} %",
            power,
        )
    return table


def diff_view(diff: str) -> Text:
    """A unified diff in colours, no line cut."""
    styles = {"+": "green", "-": "red", "@": "cyan"}
    shown = Text()
    for line in diff.splitlines():
        bold = "bold " if line.startswith(("+++", "---")) else ""
        shown.append(line + "\n", style=bold + styles.get(line[:1], "dim"))
    return shown


_STATE_STYLE = {"live": "green", "failed": "red", "inconclusive": "yellow", "interrupted": "yellow"}


def history_view(document: Json, width: int = 150) -> RenderableType:
    """All releases, the newest first; on a terminal narrower than 120 columns without the notes."""
    if not document["releases"]:
        return Text(f"No release was ever made for {document['service']}.")
    table = Table(box=None, padding=(0, 2), header_style="dim")
    wide = width >= 120
    for name in ("#", "profile", "state", "when", "start", "speed", *(["note"] if wide else [])):
        justify: Literal["left", "right"] = "right" if name in ("#", "start") else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name not in ("speed", "note"))
    for item in document["releases"]:
        style = _STATE_STYLE.get(item["state"], "dim")
        seconds = sum(phase["seconds"] for phase in item["timeline"] or ())
        note = (item["failure"] or {}).get("cause") or ""
        if not note and item["was_live"] and not item["live"]:
            note = "was live: can be gone back to"
        if not item["failure"] and (said := (item["verdict"] or {}).get("summary")):
            note = f"{note}; {said}" if note else said
        table.add_row(
            str(item["number"]),
            escape(item["profile"]),
            f"[{style}]{item['state']}[/{style}]",
            moment(item["promoted"] or item["created"]),
            f"{seconds:.0f} s" if seconds else "",
            speed(item["bench_summary"]),
            *([escape(note if len(note) <= 90 else note[:87] + "...")] if wide else []),
        )
        for later in item.get("benches") or ():
            when = moment(later["started"]) if later.get("started") else ""
            name = f"{item['number']}@{later['number']}"
            table.add_row(name, "", "[dim]measured[/dim]", when, "", speed(later.get("summary")))
    return table


def plan_view(
    plan: Plan, objections: Iterable[Objection] = (), notes: Iterable[str] = (), *, diff: bool = False
) -> RenderableType:
    """What an apply would do: changes one by one, the expected downtime; with ``diff`` also as lines of the unit."""
    parts: list[RenderableType] = []
    if plan.action == "nothing":
        parts.append(
            Text.from_markup(
                f"[green]Nothing to do:[/green] {escape(plan.profile)} is live as {plan.live} and healthy."
            )
        )
    elif plan.action == "converge":
        parts.append(
            Text.from_markup(
                f"[yellow]{escape(plan.profile)} is live as {plan.live} but not running as it should:[/yellow] "
                "it would be started again."
            )
        )
    else:
        parts.append(
            Text.from_markup(f"[bold]{escape(plan.profile)}[/bold] would become release {plan.release}:")
        )
        changes = Table.grid(padding=(0, 1))
        for change in (*plan.changes, *plan.unit_only):
            colour = "green" if change.before is None else "red" if change.after is None else "yellow"
            changes.add_row(" ", f"[dim]{change.kind}[/dim]", f"[{colour}]{escape(str(change))}[/{colour}]")
        parts.append(changes)
    if plan.unit_diff and diff:
        parts.append(diff_view(plan.unit_diff))
    if plan.interrupts:
        wait = (
            f"about {duration(plan.downtime)} (from {plan.downtime_basis})"
            if plan.downtime
            else plan.downtime_basis
        )
        parts.append(
            Text.from_markup(
                f"[bold]A restart is needed:[/bold] {escape(plan.live or 'what runs now')} is stopped. "
                f"Expected downtime: {escape(wait)}."
            )
        )
    for text in notes:
        parts.append(Text(text if text.startswith("warning ") else f"note: {text}"))
    for item in objections:
        parts.append(
            Text.from_markup(f"[red]objection:[/red] {escape(item.message)}\n  remedy: {escape(item.remedy)}")
        )
    return Group(*parts)


def print_outcome(console: Console, outcome: Outcome) -> None:
    """How an apply or rollback ended, with the log tail where it failed. The cause is told once."""
    colour = {0: "green", 130: "yellow", 7: "yellow"}.get(outcome.exit_code, "red")
    failure, message = outcome.failure, outcome.message
    if failure:
        if message.startswith(failure.cause):
            message = message.removeprefix(failure.cause).lstrip(" ;.,:")
        console.print()
        where = f" in {failure.phase}" if failure.phase else ""
        console.print(f"[red]Failed{escape(where)}:[/red] {escape(failure.cause)}", highlight=False)
        if failure.remedy:
            console.print(f"[bold]What to do:[/bold] {escape(failure.remedy)}", highlight=False)
        if not set(failure.evidence) <= {line.strip() for line in failure.log_tail}:
            _log_lines(console, "The lines that prove it:", failure.evidence)
        _log_lines(console, "The log at that moment:", failure.log_tail)
    for note in outcome.notes:
        console.print(f"[dim]· {escape(note)}[/dim]", highlight=False)
    if message:
        console.print(f"[{colour}]{escape(message)}[/{colour}]", highlight=False)


def _log_lines(console: Console, title: str, lines: Iterable[str]) -> None:
    for number, line in enumerate(lines):
        if not number:
            console.print(f"[dim]{title}[/dim]")
        console.print(f"  [dim]│[/dim] {escape(line)}", highlight=False, soft_wrap=True)


def gpu_count(count: int) -> str:
    """A number of GPUs in words."""
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def profiles_view(entries: Iterable[ProfileRow], notes: Iterable[str] = ()) -> RenderableType:
    """Profiles with what they come to, and remarks on all of them."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("profile", "what it is", "arguments"):
        table.add_column(name, overflow="fold")
    for item in entries:
        table.add_row(
            f"[bold]{escape(item['name'])}[/bold]",
            escape(item["description"] or "")
            + (f" [dim]({gpu_count(item['gpus'])})[/dim]" if item["gpus"] is not None else ""),
            f"[dim]{escape(' '.join(item['arguments']))}[/dim]"
            if item["arguments"] is not None
            else f"[red]{escape(item['problem'] or '')}[/red]",
        )
    return Group(table, *(f"[yellow]note[/yellow] {escape(note)}" for note in notes))
