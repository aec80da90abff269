"""What `check` found, as people read it; and what a rule knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from deployer.inspect.check import CheckedProfile
from deployer.sglang.rules import Finding, Rule, Severity
from deployer.text import count_of

STYLES: Mapping[str, str] = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.ADVICE: "cyan"}


def finding_lines(findings: Iterable[Finding]) -> Table:
    """Findings one below the other: severity, rule, evidence, what to do."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for item in findings:
        style = STYLES[item.severity]
        table.add_row(f"[{style}]{item.severity}[/{style}]", f"[bold]{escape(item.rule)}[/bold]", escape(item.text))
        table.add_row("", "", f"[dim]{escape(item.remedy)}[/dim]")
    return table


def counted(severities: Sequence[Severity]) -> str:
    """Return how many findings of each severity there are, or "nothing found"."""
    parts = []
    for severity in Severity:
        if count := severities.count(severity):
            text = f"{count} advice" if severity is Severity.ADVICE else count_of(count, severity)
            parts.append(f"[{STYLES[severity]}]{text}[/{STYLES[severity]}]")
    return ", ".join(parts) or "[green]nothing found[/green]"


def checked_view(
    services: Mapping[str, Sequence[CheckedProfile] | str], *, brief: bool, on_host: bool = False
) -> RenderableType:
    """What `check` found, by service and profile; of a service that could not be checked, why.

    ``brief``: advice is counted, not shown. ``on_host``: the hosts were connected.
    """
    parts: list[RenderableType] = []
    checked: list[CheckedProfile] = []
    for name, of_service in services.items():
        if isinstance(of_service, str):
            parts.append(Text.from_markup(f"[bold]{escape(name)}[/bold] [red]✗ unknown[/red]  {escape(of_service)}"))
        elif of_service:
            parts += _service(of_service, brief)
            checked += of_service
    parts += _unasked(checked, on_host)
    if brief and any(item.of(Severity.ADVICE) for item in checked):
        parts.append(Text("name a profile to see its advice: deployer check PROFILE", style="dim"))
    return Group(*parts)


def _service(checked: Sequence[CheckedProfile], brief: bool) -> list[RenderableType]:
    """One service: what holds for all of its profiles once, then each profile with what is its own."""
    one = checked[0]
    version = f"SGLang {one.version}" if one.version else "SGLang's version is unknown"
    version += "" if one.version == one.flags_of else f"; judged by the flags of {one.flags_of}"
    parts: list[RenderableType] = [
        Text.from_markup(f"[bold]{escape(one.service)}[/bold] [dim]({escape(version)})[/dim]")
    ]
    shown = [[it for it in item.findings if not brief or it.severity != Severity.ADVICE] for item in checked]
    if one.changing:
        parts.append(Text(f"  {one.changing}: check again when that is over", style="yellow"))
    common = [it for it in shown[0] if len(shown) > 1 and all(it in findings for findings in shown)]
    if common:
        parts.append(Padding(finding_lines(common), (0, 0, 0, 2)))
    for item, findings in zip(checked, shown, strict=True):
        mark = "[red]✗[/red]" if item.errors else "[green]✓[/green]"
        parts.append(
            Text.from_markup(f"  {mark} {escape(item.profile)}  {counted([it.severity for it in item.findings])}")
        )
        if item.answer is not None and item.answer.verdict == "unknown":
            text = f"the host's SGLang could not judge it: {item.answer.reason}"
            parts.append(Padding(Text(text, style="dim"), (0, 0, 0, 6)))
        if own := [it for it in findings if it not in common]:
            parts.append(Padding(finding_lines(own), (0, 0, 0, 6)))
    return parts


def _unasked(checked: Sequence[CheckedProfile], on_host: bool) -> list[RenderableType]:
    """One line about rules that lacked facts."""
    lacking = {rule: needs for item in checked for rule, needs in item.unasked.items()}
    if not lacking:
        return []
    *first, last = sorted({str(need) for needs in lacking.values() for need in needs})
    facts = f"{', '.join(first)} and {last}" if first else last
    way = "the host does not report them" if on_host else "--on-host reads them from the host"
    return [Text(f"{count_of(len(lacking), 'rule')} not applied for lack of {facts}; {way}", style="dim")]


def rules_view(rules: Iterable[Rule]) -> RenderableType:
    """All rules, a line each."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("rule", "severity", "about"):
        table.add_column(name, overflow="fold")
    for rule in rules:
        style = STYLES[rule.severity]
        table.add_row(f"[bold]{rule.id}[/bold]", f"[{style}]{rule.severity}[/{style}]", escape(rule.title))
    return table


def explanation_view(rule: Rule) -> RenderableType:
    """Everything one rule knows."""
    style = STYLES[rule.severity]
    parts = [
        Text.from_markup(f"[bold]{rule.id}[/bold]  [{style}]{rule.severity}[/{style}]  {escape(rule.title)}"),
        Text(""),
        Text(rule.about),
        Text(""),
        Text.from_markup(f"[bold]What to do:[/bold] {escape(rule.remedy)}"),
        Text.from_markup(f"[dim]Sources: {escape('; '.join(rule.references))}[/dim]"),
    ]
    if needs := ", ".join(sorted(rule.needs)):
        parts.append(Text.from_markup(f"[dim]Needs: {escape(needs)} (--on-host)[/dim]"))
    return Group(*parts)


def rule_document(rule: Rule) -> dict[str, Any]:
    """Return a rule as ``check --explain --json`` shows it."""
    return {
        "rule": rule.id,
        "theme": rule.theme,
        "severity": str(rule.severity),
        "title": rule.title,
        "about": rule.about,
        "remedy": rule.remedy,
        "references": list(rule.references),
        "needs": sorted(rule.needs),
    }
