"""A service, for people: its status, its releases, one release argument by argument; and the profiles it could have."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from deployer.reach import unit_name
from deployer.records.effect import InEffect
from deployer.records.hardware import Gpu
from deployer.records.release import Release
from deployer.text import age, count_of, moment

if TYPE_CHECKING:  # to load them is a sixth of the time that a `status` computes
    from deployer.inspect.history import History, ReleaseReport
    from deployer.inspect.status import StatusReport
    from deployer.sglang.profile_list import ProfileRow

_GIB = 1024**3
_STATES = {"live": "green", "failed": "red", "inconclusive": "yellow", "interrupted": "yellow"}
_VERDICTS = {"equal": "green", "changed": "yellow", "missing": "dim", "defaulted": "dim"}


def status_view(report: StatusReport, *, verbose: bool = False) -> RenderableType:
    """The status of one service; ``verbose``: with what SGLang made of the live release's arguments."""
    state, unit, health = report.state, report.state.unit, report.health
    table = _grid()
    table.add_row(report.service, f"{status_mark(report)} on {escape(report.host)}")
    if state.live:
        _add_live(table, report, state.live.release, state.live_release, verbose)
    else:
        table.add_row("live", "none; `deployer apply PROFILE` makes a first release live")
    running = f", running {escape(state.running_name)}" if state.running_name else ""
    restarts = count_of(unit.restarts, "restart")
    table.add_row("unit", f"{unit_name(report.service)}: {unit.active} ({unit.sub}), {restarts}{running}")
    took = f" in {health.seconds:.2f} s" if health.ok else ""
    table.add_row("health", f"/health: {escape(health.status)}{took}")
    if change := state.transition:
        since = f"{change.step} ({age(report.changing_for)})"
        table.add_row("change", f"from {change.from_ or 'nothing'} to {change.to}: {since}")
    if report.unattended:
        table.add_row(
            "",
            "[red]nobody is finishing this change[/red]: its guard does not run; `deployer converge` goes back to the "
            "live release, `deployer resume` goes on",
        )
    if deed := state.guard.last:
        table.add_row("guard", escape(str(deed)))
    if boot := state.boot:
        label = "boot" if boot.outcome in ("healthy", "waiting", "left") else "[red]boot[/red]"
        later = "" if report.this_boot else " [dim](an earlier boot)[/dim]"
        table.add_row(label, escape(str(boot)) + later)
    if lease := report.lease:
        table.add_row("lease", escape(str(lease)))
    if hold := report.observed.hold:
        table.add_row("[yellow]hold[/yellow]", escape(str(hold)))
    for text in report.drift:
        table.add_row("[yellow]drift[/yellow]", escape(text))
    gpus = report.observed.gpus
    return Group(table, Text(""), gpu_table(gpus)) if gpus else table


def status_mark(report: StatusReport) -> str:
    """Return how the service is, in a word (markup)."""
    if report.state.transition:
        return "[yellow]● changing[/yellow]"
    if report.gave_way:
        return f"[dim]○ stopped: {escape(' and '.join(report.gave_way))} runs in its place[/dim]"
    if not report.state.live and report.state.at_rest:
        return "[dim]○ nothing deployed yet[/dim]"
    return "[green]● healthy[/green]" if report.ok else "[red]● not healthy[/red]"


def _add_live(table: Table, report: StatusReport, name: str | None, release: Release | None, verbose: bool) -> None:
    since = f", live for {age(report.now - release.promoted)}" if release and release.promoted else ""
    profile = escape((release.profile if release else "") or "?")
    table.add_row("live", f"{profile} (release {escape(name or '?')}{since})")
    if release is None:
        return
    if release.bench_summary:
        table.add_row("speed", f"{release.bench_summary} [dim](when promoted)[/dim]")
    if release.verdict_text:
        table.add_row("verdict", escape(release.verdict_text))
    if release.sglang:
        table.add_row("engine", f"SGLang {escape(release.sglang)}")
    if verbose:
        for label, text in effect_rows(release.in_effect):
            table.add_row(label, escape(text))


def gpu_table(gpus: Sequence[Gpu]) -> Table:
    """Memory, use and power of each GPU; their name only once if it is the same for all."""
    names = {gpu.name for gpu in gpus}
    title = f"{len(gpus)} x {next(iter(names))}" if len(names) == 1 else None
    table = _table(("GPU", "left"), ("memory", "right"), ("use", "right"), ("power", "right"))
    table.title, table.title_style, table.title_justify = title, "dim", "left"
    for gpu in gpus:
        power = "" if gpu.power_w is None else f"{gpu.power_w:.0f} W"
        if power and gpu.power_limit_w:
            power += f" of {gpu.power_limit_w:.0f}"
        table.add_row(
            f"{gpu.index}" if title else f"{gpu.index} {escape(gpu.name)}",
            f"{gpu.memory_used / _GIB:.0f} of {gpu.memory_total / _GIB:.0f} GiB",
            "" if gpu.utilization is None else f"{gpu.utilization:.0f} %",
            power,
        )
    return table


def history_view(history: History, width: int = 150) -> RenderableType:
    """All releases, the newest first; on a terminal narrower than 120 columns without the notes."""
    if not history.releases:
        return Text(f"{history.service} has no releases yet; `deployer apply PROFILE` makes the first.")
    table = Table(box=None, padding=(0, 2), header_style="dim")
    wide = width >= 120
    for name in ("#", "profile", "state", "when", "start", "speed", *(["note"] if wide else [])):
        justify: Literal["left", "right"] = "right" if name in ("#", "start") else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name not in ("speed", "note"))
    for release in history.releases:
        style = _STATES.get(release.state, "dim")
        seconds = sum(phase.seconds for phase in release.timeline)
        note = _note(release, history.live)
        table.add_row(
            str(release.number),
            escape(release.profile),
            f"[{style}]{release.state}[/{style}]",
            moment(release.promoted or release.created),
            f"{seconds:.0f} s" if seconds else "",
            str(release.bench_summary or ""),
            *([escape(note if len(note) <= 90 else note[:87] + "...")] if wide else []),
        )
        for later in release.benches:
            name = f"{release.number}@{later.number}"
            speed = str(later.summary or "")
            table.add_row(name, "", "[dim]measured[/dim]", moment(later.started), "", speed)
    return table


def _note(release: Release, live: str | None) -> str:
    if release.failure:
        return release.failure.cause
    before = "was live: can be rolled back to" if release.was_live and release.release != live else ""
    return "; ".join(text for text in (before, release.verdict_text) if text)


def effect_rows(in_effect: InEffect | None) -> list[tuple[str, str]]:
    """Label and text for each thing to know about a verified start; one row that says so if nothing was kept."""
    if in_effect is None:
        return [("in effect", "unknown: the release was verified by an earlier deployer, or never")]
    groups = {
        "in effect": in_effect.computed.sentences() if in_effect.computed else [],
        "changed": [
            f"{item.argument}: requested {_value(item.requested)}, is {_value(item.effective)}"
            + (f": {item.reason}" if item.reason else "")
            for item in in_effect.changed
        ],
        "not shown": [", ".join(in_effect.missing)] if in_effect.missing else [],
    }
    return [(label if index == 0 else "", text) for label, texts in groups.items() for index, text in enumerate(texts)]


def release_view(report: ReleaseReport, *, defaults: bool) -> RenderableType:
    """One release: its state and its arguments; ``defaults``: also those that nobody requested."""
    release = report.release
    head = _grid()
    head.add_row("release", f"{escape(release.release)} ({escape(release.state)})")
    if release.sglang:
        head.add_row("engine", f"SGLang {escape(release.sglang)}")
    if release.failure:
        head.add_row("failure", escape(release.failure.cause))
    for label, text in effect_rows(release.in_effect):
        head.add_row(label, escape(text))
    arguments = [item for item in report.arguments if defaults or item.verdict != "defaulted"]
    if not arguments:
        return head
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("argument", "requested", "in effect", ""):
        table.add_column(name, overflow="fold", no_wrap=name == "argument")
    for item in arguments:
        requested, style = escape(_value(item.requested)), _VERDICTS.get(item.verdict, "")
        table.add_row(
            escape(item.argument),
            f"[dim](default {requested})[/dim]" if item.verdict == "defaulted" else requested,
            "" if item.verdict == "missing" else escape(_value(item.effective)),
            f"[{style}]{item.verdict}[/{style}] {escape(item.reason or '')}".rstrip(),
        )
    return Group(head, Text(""), table)


def _value(value: Any) -> str:
    """A value as JSON has it, cut if it is long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


def profiles_view(entries: Iterable[ProfileRow], notes: Iterable[str] = ()) -> RenderableType:
    """Profiles with the arguments of each, and notes on all of them."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("profile", "what it is", "arguments"):
        table.add_column(name, overflow="fold")
    for item in entries:
        gpus = f" [dim]({count_of(item['gpus'], 'GPU')})[/dim]" if item["gpus"] is not None else ""
        table.add_row(
            f"[bold]{escape(item['name'])}[/bold]",
            escape(item["description"] or "") + gpus,
            f"[dim]{escape(' '.join(item['arguments']))}[/dim]"
            if item["arguments"] is not None
            else f"[red]{escape(item['problem'] or '')}[/red]",
        )
    return Group(table, *(f"[yellow]note[/yellow] {escape(note)}" for note in notes))


def _grid() -> Table:
    """A table of labels and texts."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    return table


def _table(*columns: tuple[str, Literal["left", "right"]]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name, justify in columns:
        table.add_column(name, justify=justify)
    return table
