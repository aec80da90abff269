"""A change to a host, for people: what `plan` announces, how `apply` and its like ended."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from deployer.records.outcome import Objection, Outcome, Plan
from deployer.text import age


def plan_view(
    plan: Plan, objections: Iterable[Objection] = (), notes: Iterable[str] = (), *, diff: bool = False
) -> RenderableType:
    """What an apply would do: the changes one by one, the expected downtime; with ``diff`` also the unit's lines."""
    profile, where = escape(plan.profile), escape(plan.place)
    parts: list[RenderableType] = []
    if plan.action == "nothing":
        live = f"{profile} is live on {where} as {plan.live} and healthy"
        parts.append(Text.from_markup(f"[green]Nothing to do:[/green] {live}."))
    elif plan.action == "converge":
        mend = "would be started again" if plan.restart else "the host would be made equal to it, without a restart"
        broken = f"{profile} is live on {where} as {plan.live}, but not as it should be:"
        parts.append(Text.from_markup(f"[yellow]{broken}[/yellow] {'it ' if plan.restart else ''}{mend}."))
    else:
        parts.append(Text.from_markup(f"[bold]{profile}[/bold] would become release {plan.release} of {where}:"))
        changes = Table.grid(padding=(0, 1))
        for change in (*plan.changes, *plan.unit_only):
            colour = "green" if change.before is None else "red" if change.after is None else "yellow"
            changes.add_row(" ", f"[dim]{change.kind}[/dim]", f"[{colour}]{escape(str(change))}[/{colour}]")
        parts.append(changes)
    for difference in plan.differences:
        parts.append(Text.from_markup(f"[yellow]drift:[/yellow] {escape(str(difference))}"))
    if plan.unit_diff and diff:
        parts.append(diff_view(plan.unit_diff))
    if plan.strays:
        names = escape(", ".join(map(str, plan.strays)))
        text = f"[bold]Old processes of {escape(plan.service)} are ended:[/bold] {names}, left by an earlier start."
        parts.append(Text.from_markup(text))
    if plan.interrupts:
        downtime = plan.downtime_basis
        if plan.downtime:
            downtime = f"about {age(plan.downtime)} (from {plan.downtime_basis})"
        stopped = f"{escape(plan.stopped)} is stopped on {where}"
        if plan.displaces:
            stopped = f"{escape(plan.stopped)} is stopped and disabled for {where}, and comes back if this fails"
        parts.append(
            Text.from_markup(f"[bold]A restart is needed:[/bold] {stopped}. Expected downtime: {escape(downtime)}.")
        )
        parts += [Text(f"{traffic}.") for traffic in plan.traffic]
    parts += [Text(text if text.startswith("warning ") else f"note: {text}") for text in notes]
    for item in objections:
        parts.append(Text.from_markup(f"[red]objection:[/red] {escape(item.message)}\n  remedy: {escape(item.remedy)}"))
    return Group(*parts)


def diff_view(diff: str) -> Text:
    """A unified diff in colours, no line cut."""
    styles = {"+": "green", "-": "red", "@": "cyan"}
    view = Text()
    for line in diff.splitlines():
        bold = "bold " if line.startswith(("+++", "---")) else ""
        view.append(line + "\n", style=bold + styles.get(line[:1], "dim"))
    return view


def print_outcome(console: Console, outcome: Outcome) -> None:
    """Print how an apply or rollback ended, with the end of the log if it failed. The cause is printed once."""
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
            _print_lines(console, "The lines that prove it:", failure.evidence)
        _print_lines(console, "The end of the log at that moment:", failure.log_tail)
    for note in outcome.notes:
        console.print(f"[dim]· {escape(note)}[/dim]", highlight=False)
    if message:
        console.print(f"[{colour}]{escape(message)}[/{colour}]", highlight=False)


def _print_lines(console: Console, title: str, lines: Iterable[str]) -> None:
    for number, line in enumerate(lines):
        if not number:
            console.print(f"[dim]{title}[/dim]")
        console.print(f"  [dim]│[/dim] {escape(line)}", highlight=False, soft_wrap=True)
