"""Flags, packages and Python versions that SGLang's versions need."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from deployer.sglang.flags.extra import missing
from deployer.sglang.flags.versions import history, known_versions
from deployer.sglang.rules.base import Hit, Need, Severity, Theme
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


@THEME.rule(
    "rendering",
    Severity.ERROR,
    "the profile can be rendered for this version",
    about="""Fields that the version has no flag for, values that a flag does not accept, unknown flags,
    templates that leave out what deployer needs: whatever keeps the unit from being written at all.""",
    remedy="correct the profile, or choose one that fits this SGLang version",
    references=["docs/configuration.md"],
    blocks=True,
)
def rendering(facts: Facts) -> Iterator[Hit]:
    for problem in facts.rendering.problems:
        yield Hit(problem.text, problem.path)


@THEME.rule(
    "abbreviated-flag",
    Severity.ERROR,
    "flags are written in full",
    about="""SGLang's parser accepts the beginning of a flag (--mem-frac, --tp) as long as only one flag begins
    so. The next version adds a flag, and the beginning is ambiguous: --cuda-graph-max-bs ends 0.5.23 with
    "ambiguous option", --pp ends many versions with exit code 2.""",
    remedy="write the flag's full name",
    references=["measured: 0.5.23"],
)
def abbreviated_flag(facts: Facts) -> Iterator[Hit]:
    known = facts.table.by_name
    for option in facts.extra:
        begins = option not in known and any(name.startswith(option) for name in known)
        if begins and not history(option):
            yield Hit(missing(option, facts.table, {}), facts.at(option))


@THEME.rule(
    "deprecated-flag",
    Severity.WARNING,
    "a flag that is deprecated in this version",
    about="""A deprecated flag still works, with a warning in the log, and is removed in a later version:
    --disable-cuda-graph and --cuda-graph-max-bs were deprecated in 0.5.16, and the second was removed in
    0.5.23. A profile's fields are rendered in the spelling of the installed version; this is about
    [extra_args].""",
    remedy="use the flag's successor, or the profile's field",
    references=["sglang/srt/server_args.py of each version"],
)
def deprecated_flag(facts: Facts) -> Iterator[Hit]:
    known = facts.table.by_name
    for option, (_, value) in facts.extra.items():
        if option in known and known[option].deprecated and value is not False:
            yield Hit(f"{option} is deprecated in SGLang {facts.table.version}", facts.at(option))


@THEME.rule(
    "flag-gone-later",
    Severity.ADVICE,
    "a flag that later versions do not have",
    about="""Flags come and go: --stream-output, --prefill-round-robin-balance and --torchao-config are not in
    0.5.23. After the upgrade a profile with such a flag is refused.""",
    remedy="look for its successor before the engine is upgraded (`deployer check --sglang VERSION`)",
    references=["sglang/srt/server_args.py of each version"],
)
def flag_gone_later(facts: Facts) -> Iterator[Hit]:
    newest = known_versions()[-1]
    for option in facts.extra:
        versions = history(option)
        if option in facts.table.by_name and versions and versions[-1] < newest:
            yield Hit(f"{option} is in SGLang {versions[-1]} but not in {newest}", facts.at(option))


@THEME.rule(
    "flags-inexact",
    Severity.ADVICE,
    "the flags of this version are not known exactly",
    about="""deployer has the flags of some versions, taken from their own parsers, and uses those of the
    nearest version before the installed one. A flag that was added or removed in between is judged wrongly.""",
    remedy="read the flags from the host (`deployer sglang learn`), or use one of the known versions",
    references=["deployer/sglang/data"],
    needs=[Need.VERSION],
)
def flags_inexact(facts: Facts) -> Iterator[Hit]:
    if facts.table.version != facts.table.asked:
        yield Hit(f"SGLang {facts.table.asked} is judged by the flags of {facts.table.version}")


@THEME.rule(
    "package-pins",
    Severity.WARNING,
    "packages of other versions than SGLang was released with",
    about="""SGLang is released for exact versions of torch, transformers, its kernels and FlashInfer. Others
    may import, and then fail with "undefined symbol" or a version check (assert_pkg_version), or give wrong
    results.""",
    remedy="install the package versions that the release names, in an environment of its own",
    references=["metadata of the wheels on PyPI", "issue 7033", "PR 13948"],
    needs=[Need.PACKAGES, Need.VERSION],
)
def package_pins(facts: Facts) -> Iterator[Hit]:
    pins = PINS.get(str(facts.version).removeprefix("v"), {})
    wrong = [
        f"{name} {facts.seen.packages[name]} instead of {wanted}"
        for name, wanted in pins.items()
        if name in facts.seen.packages and release(facts.seen.packages[name]) != wanted
    ]
    if wrong:
        yield Hit(f"SGLang {facts.version} with {', '.join(wrong)}")


@THEME.rule(
    "python-version",
    Severity.ERROR,
    "a Python version that this SGLang supports",
    about="""SGLang 0.5.23 requires Python 3.11 or later; a wheel that was installed without pip fails at the
    first newer syntax.""",
    remedy="create the engine's environment with Python 3.11 or later",
    references=["metadata of the 0.5.23 wheel"],
    needs=[Need.PACKAGES, Need.VERSION],
)
def python_version(facts: Facts) -> Iterator[Hit]:
    match = re.match(r"(\d{1,3})\.(\d{1,3})", facts.seen.python or "")
    old = match is not None and (int(match[1]), int(match[2])) < (3, 11)
    if old and not facts.before("0.5.23"):
        yield Hit(f"SGLang {facts.version} with Python {facts.seen.python}; it needs 3.11 or later")
