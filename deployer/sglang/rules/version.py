"""Flags, packages and Python versions that SGLang's versions need."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from deployer.sglang.flags.extra import missing
from deployer.sglang.flags.versions import history, known_versions
from deployer.sglang.rules.base import Hit, Theme
from deployer.sglang.rules.facts import Facts

THEME = Theme("version", "Versions")

#: What the published wheels require, by their metadata: version -> distribution -> version.
PINS: Mapping[str, Mapping[str, str]] = {
    "0.4.6.post5": {"torch": "2.6.0", "transformers": "4.51.1", "sgl-kernel": "0.1.4", "flashinfer-python": "0.2.5"},
    "0.5.2": {"torch": "2.8.0", "transformers": "4.56.1", "sgl-kernel": "0.3.9.post2", "flashinfer-python": "0.3.1"},
    "0.5.5": {"torch": "2.8.0", "transformers": "4.57.1", "sgl-kernel": "0.3.16.post5", "flashinfer-python": "0.5.0"},
    "0.5.9": {"torch": "2.9.1", "transformers": "4.57.1", "sgl-kernel": "0.3.21", "flashinfer-python": "0.6.3"},
    "0.5.10.post1": {
        "torch": "2.9.1", "transformers": "5.3.0", "sglang-kernel": "0.4.1", "flashinfer-python": "0.6.7.post3",
    },
    "0.5.12.post1": {
        "torch": "2.11.0", "transformers": "5.6.0", "sglang-kernel": "0.4.2.post2",
        "flashinfer-python": "0.6.11.post1",
    },
    "0.5.16": {
        "torch": "2.11.0", "transformers": "5.12.1", "sglang-kernel": "0.4.5", "flashinfer-python": "0.6.14",
    },
    "0.5.23": {
        "torch": "2.14.1", "transformers": "5.19.0", "sglang-kernel": "0.4.10", "flashinfer-python": "0.7.2",
    },
}  # fmt: skip


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
    pins = PINS.get(str(facts.version).removeprefix("v"), {})
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
