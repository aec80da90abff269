"""Flags, packages and Python versions that SGLang's versions need."""

from __future__ import annotations

import re
from collections.abc import Iterator

from deployer.resources import knowledge
from deployer.sglang.flags.extra import missing
from deployer.sglang.flags.versions import history, known_versions
from deployer.sglang.rules.base import Hit, Theme
from deployer.sglang.rules.facts import Facts

THEME = Theme("version", "Versions")

#: What the published wheels require: version -> distribution -> version.
PINS = "sglang/data/pins.toml"


def release(version: str) -> str:
    """Return a version without its local part: ``2.11.0`` for ``2.11.0+cu130``."""
    return version.partition("+")[0]


@THEME.rule("rendering")
def rendering(facts: Facts) -> Iterator[Hit]:
    for problem in facts.rendering.problems:
        yield Hit(problem.text, problem.path)


@THEME.rule("abbreviated-flag")
def abbreviated_flag(facts: Facts) -> Iterator[Hit]:
    known = facts.table.by_name
    for option in facts.extra:
        begins = option not in known and any(name.startswith(option) for name in known)
        if begins and not history(option):
            yield Hit(missing(option, facts.table, {}), facts.at(option))


@THEME.rule("deprecated-flag")
def deprecated_flag(facts: Facts) -> Iterator[Hit]:
    known = facts.table.by_name
    for option, (_, value) in facts.extra.items():
        if option in known and known[option].deprecated and value is not False:
            yield Hit(f"{option} is deprecated in SGLang {facts.table.version}", facts.at(option))


@THEME.rule("flag-gone-later")
def flag_gone_later(facts: Facts) -> Iterator[Hit]:
    newest = known_versions()[-1]
    for option in facts.extra:
        versions = history(option)
        if option in facts.table.by_name and versions and versions[-1] < newest:
            yield Hit(f"{option} is in SGLang {versions[-1]} but not in {newest}", facts.at(option))


@THEME.rule("flags-inexact")
def flags_inexact(facts: Facts) -> Iterator[Hit]:
    if facts.table.version != facts.table.requested:
        yield Hit(f"SGLang {facts.table.requested} is judged by the flags of {facts.table.version}")


@THEME.rule("package-pins")
def package_pins(facts: Facts) -> Iterator[Hit]:
    pins = knowledge(PINS).get(str(facts.version).removeprefix("v"), {})
    wrong = [
        f"{name} {facts.seen.packages[name]} instead of {wanted}"
        for name, wanted in pins.items()
        if name in facts.seen.packages and release(facts.seen.packages[name]) != wanted
    ]
    if wrong:
        yield Hit(f"SGLang {facts.version} with {', '.join(wrong)}")


@THEME.rule("python-version")
def python_version(facts: Facts) -> Iterator[Hit]:
    match = re.match(r"(\d{1,3})\.(\d{1,3})", facts.seen.python or "")
    old = match is not None and (int(match[1]), int(match[2])) < (3, 11)
    if old and not facts.before("0.5.23"):
        yield Hit(f"SGLang {facts.version} with Python {facts.seen.python}; it needs 3.11 or later")
