"""Environment variables that change what SGLang does, bypassing its flags."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from deployer.reach import HEALTH_TIMEOUT
from deployer.sglang.flags.variables import read_as, spans, variables
from deployer.sglang.rules.base import Hit, Theme
from deployer.sglang.rules.facts import Facts

THEME = Theme("environment", "Environment variables")

#: SGLang's own limit for a health probe, in seconds.
HEALTH_LIMIT = 20.0


def _at(name: str) -> tuple[str, str]:
    return ("environment", name)


@THEME.rule("cpu-engine")
def cpu_engine(facts: Facts) -> Iterator[Hit]:
    if facts.truthy("SGLANG_USE_CPU_ENGINE") and facts.host.gpus != 0:
        yield Hit("the server would not use the GPUs", _at("SGLANG_USE_CPU_ENGINE"))


@THEME.rule("health-timeout")
def health_timeout(facts: Facts) -> Iterator[Hit]:
    text = facts.environment.get("SGLANG_HEALTH_CHECK_TIMEOUT")
    where = _at("SGLANG_HEALTH_CHECK_TIMEOUT")
    try:
        seconds = float(text) if text is not None else HEALTH_LIMIT
    except ValueError:
        yield Hit(f"{text!r} is not a number of seconds", where)
        return
    if not 5 <= seconds <= HEALTH_TIMEOUT:
        yield Hit(f"{seconds:g} s (SGLang's default: {HEALTH_LIMIT:g} s; deployer waits {HEALTH_TIMEOUT:g} s)", where)


@THEME.rule("health-without-generation")
def health_without_generation(facts: Facts) -> Iterator[Hit]:
    name = "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"
    if (facts.environment.get(name) or "").lower() in ("0", "false", "no", "off", "n"):
        yield Hit("a hung scheduler would go unnoticed", _at(name))


@THEME.rule("sglang-variable")
def sglang_variable(facts: Facts) -> Iterator[Hit]:
    known = variables(facts.version)
    for name in facts.environment:
        if not name.upper().startswith(("SGLANG_", "SGL_", "SLGANG_")) or read_as(name, facts.version) in known:
            continue
        other = spans().get(name)
        near = difflib.get_close_matches(name.upper()[:80], sorted(known), n=1, cutoff=0.85)
        if other is not None:
            first, last = other
            gone = facts.version is not None and last < facts.version
            hint = f"; did you mean {near[0]}?" if near else ""
            when = (
                f"the last known version that reads it is {last}" if gone else f"{first} is the first known that does"
            )
            yield Hit(f"SGLang {facts.version} does not read it: {when}{hint}", _at(name))
        elif near:
            yield Hit(f"did you mean {near[0]}?", _at(name))


@THEME.rule("warmup-timeout")
def warmup_timeout(facts: Facts) -> Iterator[Hit]:
    text = facts.environment.get("SGLANG_WARMUP_TIMEOUT")
    try:
        seconds = float(text) if text is not None else -1.0
    except ValueError:
        return
    if 0 <= seconds < 300:
        yield Hit(f"{seconds:g} s", _at("SGLANG_WARMUP_TIMEOUT"))


@THEME.rule("version-check-skipped")
def version_check_skipped(facts: Facts) -> Iterator[Hit]:
    if facts.truthy("SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK"):
        yield Hit("the kernels' version is not checked", _at("SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK"))
