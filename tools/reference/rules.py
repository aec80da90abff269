"""docs/rules.md, made from ``data/rules.toml``: ``python -m tools.reference.rules`` writes it."""

from __future__ import annotations

from pathlib import Path

from deployer.sglang.rules import RULES, THEMES, Rule, Severity
from tools.reference.markdown import paragraph

_HEAD = """\
# Rules

`deployer check` applies {count} rules to each profile on each service: combinations of sizes,
flags, versions, models, GPUs and thresholds that are known to go wrong, or are worth knowing. Each
rule says what is known, and from where. Places such as `0.5.12.post1:srt/server_args.py` are files
in that published wheel, below `sglang/`; issues and pull requests without a project name are
SGLang's own; "measured" was seen on a running server.

* **error**: it cannot work. `check` exits with 2 for a named profile; `apply` refuses before it
  changes anything.
* **warning**: it is known to go wrong, or to be expensive. Shown in the plan; with `--strict` it
  counts as an error.
* **advice**: worth knowing. If measurements on different machines disagree it stays advice, with
  both figures.

A finding may be less severe than its rule, depending on the version or the model. Rules that need
more than the configuration are applied with `--on-host` (or `--host NAME`); without it `check` says
how many were skipped. `deployer check --explain RULE` shows one rule, `--explain` alone lists all.
"""


def reference() -> str:
    """Return the text of docs/rules.md."""
    parts = [_HEAD.format(count=len(RULES))]
    for severity in Severity:
        names = ", ".join(f"[{rule.id}](#{rule.id})" for rule in RULES.values() if rule.severity is severity)
        parts.append(paragraph(f"{str(severity).capitalize()}: {names}.") + "\n")
    for theme in THEMES:
        parts.append(f"## {theme.title}\n")
        parts += [_rule(rule) for rule in theme.rules]
    return "\n".join(parts)


def _rule(rule: Rule) -> str:
    needs = f" Needs {', '.join(sorted(rule.needs))}." if rule.needs else ""
    paragraphs = [
        f"**{str(rule.severity).capitalize()}: {rule.title}.**{needs} {rule.about}",
        f"Remedy: {rule.remedy}.",
        f"Sources: {'; '.join(rule.references)}.",
    ]
    return f"### {rule.id}\n\n" + "\n\n".join(map(paragraph, paragraphs)) + "\n"


def main() -> None:
    """Write the page into a checkout."""
    Path("docs/rules.md").write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
