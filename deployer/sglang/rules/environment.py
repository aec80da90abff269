"""Environment variables that change what SGLang does, bypassing its flags."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from deployer.reach import HEALTH_TIMEOUT
from deployer.sglang.rules.base import Hit, Theme
from deployer.sglang.rules.facts import Facts

THEME = Theme("environment", "Environment variables")

#: SGLang's own limit for a health probe, in seconds.
HEALTH_LIMIT = 20.0

#: Variables of SGLang that operators set, to recognise misspelt ones by. Not a complete list.
KNOWN = (
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "SGLANG_CACHE_DIR", "SGLANG_CPU_OMP_THREADS_BIND",
    "SGLANG_DISABLE_TP_MEMORY_INBALANCE_CHECK", "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION",
    "SGLANG_ENABLE_JIT_DEEPGEMM", "SGLANG_ENABLE_PP_SPEC", "SGLANG_ENABLE_TORCH_COMPILE",
    "SGLANG_HEALTH_CHECK_TIMEOUT", "SGLANG_HOST_IP", "SGLANG_LOG_MS", "SGLANG_MOE_PADDING",
    "SGLANG_PP_LAYER_PARTITION", "SGLANG_PORT", "SGLANG_SET_CPU_AFFINITY", "SGLANG_SHARED_EXPERT_TP1",
    "SGLANG_SKIP_P2P_CHECK", "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK", "SGLANG_TIMEOUT_KEEP_ALIVE",
    "SGLANG_TORCH_PROFILER_DIR", "SGLANG_USE_CPU_ENGINE", "SGLANG_USE_MODELSCOPE",
    "SGLANG_WAIT_WEIGHTS_READY_TIMEOUT", "SGLANG_WARMUP_TIMEOUT",
)  # fmt: skip


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
    for name in facts.environment:
        if not name.upper().startswith(("SGLANG_", "SGL_", "SLGANG_")) or name in KNOWN:
            continue
        if near := difflib.get_close_matches(name.upper()[:80], KNOWN, n=1, cutoff=0.85):
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
