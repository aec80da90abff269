"""What the rules found, as people read it; and what a rule knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from deployer.sglang.rules import Rule, Severity

Json = dict[str, Any]

STYLES: Mapping[str, str] = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.ADVICE: "cyan"}


def finding_lines(findings: Iterable[Json]) -> Table:
    """Findings (as `Finding.as_dict` has them) one below the other: severity, rule, evidence, what to do."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for item in findings:
        style = STYLES.get(item["severity"], "white")
        place = f"{item['where']}: " if item["where"] else ""
        table.add_row(
            f"[{style}]{item['severity']}[/{style}]",
            f"[bold]{escape(item['rule'])}[/bold]",
            escape(f"{place}{item['message']}"),
        )
        table.add_row("", "", f"[dim]{escape(item['remedy'])}[/dim]")
    return table


def counted(findings: Sequence[Json]) -> str:
    """How many findings of each severity there are, gravest first; "nothing found" where there are none."""
    words = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "advice"}
    parts = []
    for severity, word in words.items():
        count = sum(item["severity"] == severity for item in findings)
        if count:
            plural = "" if count == 1 or severity is Severity.ADVICE else "s"
            parts.append(f"[{STYLES[severity]}]{count} {word}{plural}[/{STYLES[severity]}]")
    return ", ".join(parts) or "[green]nothing found[/green]"


def checked_view(checked: Sequence[Json], *, brief: bool, on_host: bool = False) -> RenderableType:
    """What `check` found, by service and profile.

    ``brief``: advice is counted, not shown. ``on_host``: the hosts were asked.
    """
    parts: list[RenderableType] = []
    for service in dict.fromkeys(item["service"] for item in checked):
        parts += _service(service, [item for item in checked if item["service"] == service], brief)
    parts += _unasked(checked, on_host)
    if brief and any(one["severity"] == Severity.ADVICE for item in checked for one in item["findings"]):
        parts.append(
            Text.from_markup("[dim]advice is shown where a profile is named: deployer check PROFILE[/dim]")
        )
    return Group(*parts)


def _service(service: str, checked: Sequence[Json], brief: bool) -> list[RenderableType]:
    """One service: what holds for all of its profiles once, then each profile with what is its own."""
    version, table = checked[0]["sglang"], checked[0]["flags_of"]
    known = f"SGLang {version}" if version else "SGLang's version is not known"
    known += "" if version == table else f": by the flags of {table}"
    parts: list[RenderableType] = [
        Text.from_markup(f"[bold]{escape(service)}[/bold] [dim]({escape(known)})[/dim]")
    ]
    first, *others = ([one for one in item["findings"] if _shown(one, brief)] for item in checked)
    if changing := checked[0].get("changing"):
        parts.append(Text(f"  {changing}: ask again when that is over", style="yellow"))
    common = [one for one in first if others and all(one in found for found in others)]
    if common:
        parts.append(Padding(finding_lines(common), (0, 0, 0, 2)))
    for item in checked:
        mark = "[red]✗[/red]" if item["errors"] else "[green]✓[/green]"
        parts.append(Text.from_markup(f"  {mark} {escape(item['profile'])}  {counted(item['findings'])}"))
        if item["asked"] is not None and item["asked"]["verdict"] == "unknown":
            text = f"[dim]the host's SGLang could not judge it: {escape(item['asked']['reason'])}[/dim]"
            parts.append(Padding(Text.from_markup(text), (0, 0, 0, 6)))
        own = [one for one in item["findings"] if _shown(one, brief) and one not in common]
        if own:
            parts.append(Padding(finding_lines(own), (0, 0, 0, 6)))
    return parts


def _shown(finding: Json, brief: bool) -> bool:
    return not brief or finding["severity"] != Severity.ADVICE


def _unasked(checked: Sequence[Json], on_host: bool) -> list[RenderableType]:
    """One line about rules that lacked facts."""
    lacking = {rule: needs for item in checked for rule, needs in item["unasked"].items()}
    if not lacking:
        return []
    facts = sorted({need for needs in lacking.values() for need in needs})
    which = "1 rule was" if len(lacking) == 1 else f"{len(lacking)} rules were"
    way = "the host could not tell" if on_host else "--on-host asks the host for them"
    text = f"{which} not asked, for want of {', '.join(facts)}; {way}"
    return [Text.from_markup(f"[dim]{escape(text)}[/dim]")]


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
    needs = ", ".join(sorted(rule.needs))
    parts = [
        Text.from_markup(f"[bold]{rule.id}[/bold]  [{style}]{rule.severity}[/{style}]  {escape(rule.title)}"),
        Text(""),
        Text(rule.about),
        Text(""),
        Text.from_markup(f"[bold]What to do:[/bold] {escape(rule.remedy)}"),
        Text.from_markup(f"[dim]Sources: {escape('; '.join(rule.references))}[/dim]"),
    ]
    if needs:
        parts.append(Text.from_markup(f"[dim]Needs: {escape(needs)} (--on-host)[/dim]"))
    return Group(*parts)


def rule_document(rule: Rule) -> dict[str, Any]:
    """A rule as it appears in JSON documents."""
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
