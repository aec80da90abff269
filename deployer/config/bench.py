"""How a smoke benchmark is run, and the thresholds it must meet."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from deployer.config.problems import KeyProblems, Model
from deployer.config.wording import nearest, printable

#: The most requests in flight at a time.
LEVEL_MAX = 4096


def _levels(levels: list[int]) -> list[int]:
    if any(not 1 <= level <= LEVEL_MAX for level in levels):
        raise ValueError(f"levels must be whole numbers from 1 to {LEVEL_MAX}")
    if sorted(set(levels)) != levels:
        raise ValueError("levels must rise, without duplicates")
    return levels


Levels = Annotated[list[int], Field(min_length=1, max_length=32), AfterValidator(_levels)]


class BenchConfig(Model):
    """The smoke benchmark: warm-ups, single requests, then one or more passes at each level of concurrency."""

    levels: Levels = Field([8, 16, 32, 48, 64], description="numbers of requests in flight")
    prompt_tokens: int = Field(128, ge=1, le=1_000_000, description="tokens in a prompt")
    output_tokens: int = Field(128, ge=2, le=100_000, description="tokens in an answer")
    warmups: int = Field(2, ge=0, le=100, description="requests sent first, not counted")
    warmup_tokens: int = Field(16, ge=1, le=100_000, description="tokens in a warm-up's answer")
    singles: int = Field(2, ge=0, le=100, description="requests sent one at a time, for single-stream speed")
    waves: int = Field(1, ge=1, le=100, description="requests of a pass = level x waves")
    requests: int = Field(1, ge=1, le=100_000, description="minimum of requests in a pass; waves are added to reach it")
    requests_at_least: int = Field(
        200,
        ge=0,
        le=100_000,
        description="minimum of requests in the whole benchmark; passes of the highest level are added to reach it, "
        "as far as the budget allows",
    )
    repeats: int = Field(2, ge=1, le=20, description="passes of a level, as far as the budget allows")
    discard: bool = Field(True, description="run an uncounted wave before a level's first pass, if the budget allows")
    budget: float = Field(
        300.0,
        ge=1,
        le=86_400,
        description="time for the whole benchmark, in seconds; what does not fit is left out",
    )
    shared_prefix: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="tokens that all prompts begin with, before prompt_tokens of their own",
    )
    sanity: Literal["report", "gate"] = Field(
        "report", description="whether an insane answer is only reported, or fails the gate"
    )
    request_timeout: float = Field(900.0, gt=0, le=86_400, description="time limit for one request, in seconds")
    place: Literal["auto", "host", "operator"] = Field(
        "auto", description="where the load client runs; auto: on the host if it has httpx, else here"
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="seed of the prompts")

    def rounds(self, level: int) -> int:
        """Return the requests that one stream sends in a pass of this level, one after another."""
        return max(self.waves, -(-self.requests // level))

    def measured(self, level: int) -> int:
        """Return how many requests are measured at a level if the budget suffices for all of them."""
        of_a_pass = level * self.rounds(level)
        further = 0
        if level == self.levels[-1]:
            waves = sum(self.levels) if self.discard else 0
            passes = sum(one * self.rounds(one) for one in self.levels) * self.repeats
            fixed_prompt = 2
            sent = self.warmups + self.singles + fixed_prompt + waves + passes
            further = max(0, -(-(self.requests_at_least - sent) // of_a_pass))
        return of_a_pass * (self.repeats + further)


#: Figures a threshold can be set on: one without a level, and those of a level (``aggregate_tok_s@32``), of which
#: rates are lower bounds in tokens a second and times upper bounds in seconds. p99 is reported and never gates: it
#: varies by 17 % between equal runs.
SINGLE_GATE = "single_stream_tok_s"
RATE_GATES = ("aggregate_tok_s", "steady_tok_s")
TIME_GATES = tuple(f"{figure}_{quantile}_s" for figure in ("ttft", "itl", "tpot") for quantile in ("p50", "p95"))
LEVEL_GATES = (*RATE_GATES, *TIME_GATES)
_LEVEL = re.compile(r"[1-9][0-9]{0,3}")
_NUMBER = re.compile(r"-?[0-9]{1,20}", re.A)


def split_key(key: str) -> tuple[str, int | None]:
    """Return ``("aggregate_tok_s", 32)`` for ``aggregate_tok_s@32``. Raise ValueError if the key is not valid."""
    name, at, level = key.partition("@")
    if key == SINGLE_GATE:
        return name, None
    if name in LEVEL_GATES and _NUMBER.fullmatch(level) and not 1 <= int(level) <= LEVEL_MAX:
        raise ValueError(f"found the level {printable(level, 20)}, expected 1 to {LEVEL_MAX}")
    if name in LEVEL_GATES and _LEVEL.fullmatch(level):
        return name, int(level)
    if "_p99" in name:
        raise ValueError("p99 is reported but does not gate: it varies too much between equal runs; use p95")
    allowed = [SINGLE_GATE, *(f"{figure}@LEVEL" for figure in LEVEL_GATES)]
    near = nearest(f"{name}@LEVEL" if at or name in LEVEL_GATES else name, allowed)
    hint = f"; did you mean {near.replace('LEVEL', level or 'LEVEL')}?" if near else ""
    raise ValueError(f"unknown figure{hint} (allowed: {', '.join(allowed)})")


def _gate(gate: dict[str, float]) -> dict[str, float]:
    wrong: list[tuple[str | int, str]] = []
    for key, value in gate.items():
        try:
            split_key(key)
        except ValueError as error:
            wrong.append((key, str(error)))
        else:
            if value <= 0:
                wrong.append((key, "must be above 0"))
    if wrong:
        raise KeyProblems(wrong)
    return gate


#: Thresholds of a smoke benchmark: figure -> least (or, for times, largest) value allowed.
Gate = Annotated[dict[str, float], AfterValidator(_gate)]


class RelativeGate(Model):
    """The comparison of a candidate's throughput with earlier proven starts; see docs/gate.md."""

    baseline: Literal["profile", "live", "none"] = Field(
        "profile",
        description="what decides: earlier starts of the same profile, starts of the live one, or nothing",
    )
    starts: int = Field(5, ge=1, le=20, description="how many starts of the baseline to compare with, the newest first")
    max_loss: float = Field(0.05, gt=0, le=0.45, description="tolerated loss of throughput, as a share")
    max_level_loss: float = Field(
        0.12, gt=0, le=0.9, description="tolerated loss at a single level, or of the single stream"
    )
    inconclusive: Literal["refuse", "promote", "ask"] = Field(
        "refuse",
        description="if the benchmark cannot tell: go back to the live release, promote all the same, or ask at the "
        "terminal (without one: refuse)",
    )
