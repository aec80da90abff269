"""The smoke benchmark and its gate: settings that contradict each other, or make each other useless."""

from __future__ import annotations

from collections.abc import Iterator

from deployer.config.bench import SINGLE_GATE, split_key
from deployer.config.profile import effective_bench, effective_gate, effective_relative_gate
from deployer.config.wording import KeyPath
from deployer.sglang.rules.base import Hit, Theme
from deployer.sglang.rules.facts import Facts

THEME = Theme("measuring", "Benchmark and gate")

#: The fewest samples of a 95th percentile, and the fewest tokens a stream of a steady rate (docs/benchmark.md).
P95_SAMPLES = 20
STEADY_TOKENS = 4
#: No server generates more tokens a second for one stream: it bounds how short a benchmark can be.
FASTEST_STREAM = 1000.0
#: Requests that are running when the budget is used up may go on for this share of it.
GRACE = 0.1


def _place(facts: Facts, table: str, key: str) -> KeyPath:
    """Return where a setting comes from: the profile if it has it, else the service."""
    own = getattr(facts.profile, table)
    has = key in own if isinstance(own, dict) else key in own.model_fields_set
    return (table, key) if has else ("services", facts.service.name, table, key)


@THEME.rule("gate-not-measured")
def gate_not_measured(facts: Facts) -> Iterator[Hit]:
    bench = effective_bench(facts.service, facts.profile)
    for key in effective_gate(facts.service, facts.profile):
        name, level = split_key(key)
        where = _place(facts, "gate", key)
        if key == SINGLE_GATE:
            if not bench.singles:
                yield Hit(
                    "no single request is sent (bench.singles = 0)",
                    where,
                    remedy="set bench.singles to 1 or more",
                )
            continue
        if level not in bench.levels:
            shown = ", ".join(map(str, bench.levels))
            yield Hit(f"level {level} is not among the benchmark's levels ({shown})", where)
            continue
        requests = bench.measured(level)
        samples = requests * (bench.output_tokens - 1) if name.startswith("itl_") else requests
        if "_p95_" in name and samples < P95_SAMPLES:
            yield Hit(
                f"{samples} samples at C={level}; a 95th percentile needs {P95_SAMPLES}",
                where,
                remedy=f"set bench.requests or bench.repeats so that level {level} has {P95_SAMPLES} requests, or use "
                f"{name.replace('p95', 'p50')}",
            )
        tokens = bench.rounds(level) * bench.output_tokens - 1
        if name == "steady_tok_s" and tokens < STEADY_TOKENS:
            yield Hit(
                f"{tokens} tokens a stream after the first; a steady rate needs {STEADY_TOKENS}",
                where,
                remedy="raise bench.output_tokens, or use aggregate_tok_s",
            )


@THEME.rule("threshold-idle")
def threshold_idle(facts: Facts) -> Iterator[Hit]:
    gate = effective_gate(facts.service, facts.profile)
    for key, bound in gate.items():
        other = key.replace("_p50_", "_p95_")
        if other != key and bound >= gate.get(other, bound + 1):
            yield Hit(
                f"at most {bound:g} never decides next to {other} of at most {gate[other]:g}",
                _place(facts, "gate", key),
            )


@THEME.rule("level-loss-below-loss")
def level_loss_below_loss(facts: Facts) -> Iterator[Hit]:
    settings = effective_relative_gate(facts.service, facts.profile)
    if settings.baseline != "none" and settings.max_level_loss < settings.max_loss:
        yield Hit(
            f"{settings.max_level_loss:g} at one level, but {settings.max_loss:g} on average",
            _place(facts, "relative_gate", "max_level_loss"),
        )


@THEME.rule("budget-short")
def budget_short(facts: Facts) -> Iterator[Hit]:
    bench = effective_bench(facts.service, facts.profile)
    gate = effective_gate(facts.service, facts.profile)
    where = _place(facts, "bench", "budget")
    rounds = {level: bench.rounds(level) for level in bench.levels}
    tokens = bench.warmups * bench.warmup_tokens + (bench.singles + sum(rounds.values())) * bench.output_tokens
    least = tokens / FASTEST_STREAM
    if least > bench.budget:
        yield Hit(
            f"{bench.budget:g} s, but {tokens} tokens one after another take {least:.0f} s at {FASTEST_STREAM:g} tok/s",
            where,
        )
        return
    needed = {}
    if SINGLE_GATE in gate:
        needed["one"] = bench.singles * bench.output_tokens / gate[SINGLE_GATE]
    for level, count in rounds.items():
        rate = gate.get(f"aggregate_tok_s@{level}", gate.get(f"steady_tok_s@{level}"))
        if rate is not None:
            needed[f"C={level}"] = level * count * bench.output_tokens / rate
    total = sum(needed.values())
    if total > bench.budget * (1 + GRACE):
        shown = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in needed.items())
        yield Hit(
            f"{bench.budget:g} s, but a server that just meets the thresholds needs {total:.0f} s for one pass each "
            f"({shown})",
            where,
        )


@THEME.rule("timeout-below-threshold")
def timeout_below_threshold(facts: Facts) -> Iterator[Hit]:
    bench = effective_bench(facts.service, facts.profile)
    for key, bound in effective_gate(facts.service, facts.profile).items():
        name, level = split_key(key)
        if not name.endswith("tok_s"):
            continue
        seconds = (level or 1) * bench.output_tokens / bound
        if seconds > bench.request_timeout:
            yield Hit(
                f"{bench.request_timeout:g} s, but at {key} = {bound:g} a request takes {seconds:.0f} s",
                _place(facts, "bench", "request_timeout"),
            )
