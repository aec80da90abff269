"""docs/rules.md, made from the rules; and a rule as a JSON document."""

from __future__ import annotations

from pathlib import Path

from deployer.sglang.rules import RULES, THEMES, Rule, Severity

_HEAD = """\
# Rules

`deployer check` asks {count} rules about each profile on each service: combinations of sizes, flags, versions, models,
GPUs and thresholds that are known to go wrong, or to be worth knowing. A rule states what is known and from where.
Places such as `0.5.12.post1:srt/server_args.py` are files of that published wheel, below `sglang/`; issues and pull
requests without a name are SGLang's own; "measured" is what was seen on a running server.

* **error**: it cannot work. `check` exits with 2 for a profile that was named; `apply` refuses before it changes
  anything.
* **warning**: it is known to go wrong, or to cost much. Shown in the plan; with `--strict` it counts as an error.
* **advice**: worth knowing. Where measurements of different machines disagree it stays advice, with both figures.

A finding may be milder than its rule, where the version or the model makes it so. Rules that need more than the
configuration are asked with `--on-host` (or `--host NAME`); without it `check` says which were not asked. `deployer
check --explain RULE` prints one of these, `--explain` alone lists them.
"""


def reference() -> str:
    """The text of docs/rules.md."""
    parts = [_HEAD.format(count=len(RULES))]
    for severity in Severity:
        names = ", ".join(f"[{rule.id}](#{rule.id})" for rule in RULES.values() if rule.severity is severity)
        parts.append(f"{str(severity).capitalize()}: {names}.\n")
    for theme in THEMES:
        parts.append(f"## {theme.title}\n")
        parts += [_rule(rule) for rule in theme.rules]
    return "\n".join(parts)


def _rule(rule: Rule) -> str:
    needs = f" Needs {', '.join(sorted(rule.needs))}." if rule.needs else ""
    return (
        f"### {rule.id}\n\n**{str(rule.severity).capitalize()}: {rule.title}.**{needs} {rule.about}\n\n"
        f"What to do: {rule.remedy}.\n\nSources: {'; '.join(rule.references)}.\n"
    )


def main() -> None:
    """Write the page into a checkout: ``python -m tools.reference.rules``."""
    Path("docs/rules.md").write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
