"""How a smoke benchmark is run, and the thresholds it must meet."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from deployer.config.problems import KeyProblems, Model
from deployer.config.wording import nearest, printable

#: Most requests in flight at a time.
LEVEL_MAX = 4096


def _levels(levels: list[int]) -> list[int]:
    if any(not 1 <= level <= LEVEL_MAX for level in levels):
        raise ValueError(f"levels are whole numbers from 1 to {LEVEL_MAX}")
    if sorted(set(levels)) != levels:
        raise ValueError("levels rise, and none is given twice")
    return levels


Levels = Annotated[list[int], Field(min_length=1, max_length=32), AfterValidator(_levels)]


class BenchConfig(Model):
    """The smoke benchmark: warm-ups, single requests, then one or more passes at each level of concurrency."""

    levels: Levels = Field([8, 16, 32, 48, 64], description="numbers of requests in flight")
    prompt_tokens: int = Field(128, ge=1, le=1_000_000, description="length of a prompt, in tokens")
    output_tokens: int = Field(128, ge=2, le=100_000, description="length of an answer, in tokens")
    warmups: int = Field(2, ge=0, le=100, description="requests sent first and not counted")
    warmup_tokens: int = Field(16, ge=1, le=100_000, description="length of a warm-up's answer, in tokens")
    singles: int = Field(2, ge=0, le=100, description="requests sent one at a time, for single-stream speed")
    waves: int = Field(1, ge=1, le=100, description="requests of a pass = level x waves")
    requests: int = Field(
        1, ge=1, le=100_000, description="fewest requests of a pass; more waves are run until it has them"
    )
    requests_at_least: int = Field(
        200,
        ge=0,
        le=100_000,
        description="fewest requests of the whole benchmark; where the rest comes to fewer, more passes of the highest "
        "level are run, as far as the budget allows",
    )
    repeats: int = Field(2, ge=1, le=20, description="passes of a level, as far as the budget allows")
    discard: bool = Field(
        True, description="a wave before a level's first pass that is not counted, where the budget allows"
    )
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
        "report", description="whether an answer that is not sane is only reported or fails the gate"
    )
    request_timeout: float = Field(
        900.0, gt=0, le=86_400, description="longest time for one request, in seconds"
    )
    place: Literal["auto", "host", "operator"] = Field(
        "auto", description="where the load comes from; auto: the host, if it has what is needed"
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="seed of the prompts")

    def rounds(self, level: int) -> int:
        """Requests of one stream in a pass of this level, one after another."""
        return max(self.waves, -(-self.requests // level))

    def measured(self, level: int) -> int:
        """Requests that are measured at one of the levels, where the budget is enough for all of it."""
        of_a_pass = level * self.rounds(level)
        further = 0
        if level == self.levels[-1]:
            waves = sum(self.levels) if self.discard else 0
            passes = sum(one * self.rounds(one) for one in self.levels) * self.repeats
            fixed_prompt = 2
            sent = self.warmups + self.singles + fixed_prompt + waves + passes
            further = max(0, -(-(self.requests_at_least - sent) // of_a_pass))
        return of_a_pass * (self.repeats + further)


class PartialBench(Model):
    """A profile's own wishes; what it leaves out is as the service says."""

    levels: Levels | None = Field(None, description="as of a service")
    prompt_tokens: int | None = Field(None, ge=1, le=1_000_000, description="as of a service")
    output_tokens: int | None = Field(None, ge=2, le=100_000, description="as of a service")
    warmups: int | None = Field(None, ge=0, le=100, description="as of a service")
    warmup_tokens: int | None = Field(None, ge=1, le=100_000, description="as of a service")
    singles: int | None = Field(None, ge=0, le=100, description="as of a service")
    waves: int | None = Field(None, ge=1, le=100, description="as of a service")
    requests: int | None = Field(None, ge=1, le=100_000, description="as of a service")
    requests_at_least: int | None = Field(None, ge=0, le=100_000, description="as of a service")
    repeats: int | None = Field(None, ge=1, le=20, description="as of a service")
    discard: bool | None = Field(None, description="as of a service")
    budget: float | None = Field(None, ge=1, le=86_400, description="as of a service")
    shared_prefix: int | None = Field(None, ge=0, le=1_000_000, description="as of a service")
    sanity: Literal["report", "gate"] | None = Field(None, description="as of a service")
    request_timeout: float | None = Field(None, gt=0, le=86_400, description="as of a service")
    place: Literal["auto", "host", "operator"] | None = Field(None, description="as of a service")
    seed: int | None = Field(None, ge=0, le=2**31 - 1, description="as of a service")

    def over(self, base: BenchConfig) -> BenchConfig:
        """The service's benchmark with this profile's wishes on top."""
        return base.model_copy(update=self.model_dump(exclude_none=True))


#: Figures a gate can be set on: one without a level, and those of a level (``aggregate_tok_s@32``).
SINGLE_GATE = "single_stream_tok_s"
LEVEL_GATES = (
    "aggregate_tok_s",
    "steady_tok_s",
    *(f"{figure}_{quantile}_s" for figure in ("ttft", "itl", "tpot") for quantile in ("p50", "p95")),
)
_LEVEL = re.compile(r"[1-9][0-9]{0,3}")
_NUMBER = re.compile(r"-?[0-9]{1,20}", re.A)


def _gate(gate: dict[str, float]) -> dict[str, float]:
    allowed = [SINGLE_GATE, *(f"{name}@LEVEL" for name in LEVEL_GATES)]
    wrong: list[tuple[str | int, str]] = []
    for key, value in gate.items():
        name, at, level = key.partition("@")
        if name in LEVEL_GATES and _NUMBER.fullmatch(level) and not 1 <= int(level) <= LEVEL_MAX:
            wrong.append((key, f"found the level {printable(level, 20)}, but levels are 1 to {LEVEL_MAX}"))
        elif not (key == SINGLE_GATE or (name in LEVEL_GATES and _LEVEL.fullmatch(level))):
            near = nearest(f"{name}@LEVEL" if at or name in LEVEL_GATES else name, allowed)
            hint = f"; did you mean {near.replace('LEVEL', level or 'LEVEL')}?" if near else ""
            wrong.append((key, f"unknown figure{hint} (allowed: {', '.join(allowed)})"))
        elif value <= 0:
            wrong.append((key, "must be more than 0"))
    if wrong:
        raise KeyProblems(wrong)
    return gate


#: Thresholds of a smoke benchmark: figure -> least (or, for times, largest) value allowed.
Gate = Annotated[dict[str, float], AfterValidator(_gate)]


class RelativeGate(Model):
    """The comparison of a candidate's throughput with earlier proven starts; see docs/gate.md."""

    baseline: Literal["profile", "live", "none"] = Field(
        "profile",
        description="what decides: earlier starts of the same profile, starts of whatever is live, or nothing",
    )
    starts: int = Field(
        5, ge=1, le=20, description="starts of the baseline's configuration, the newest first"
    )
    max_loss: float = Field(
        0.05, gt=0, le=0.45, description="loss of throughput that is tolerated, as a share"
    )
    max_level_loss: float = Field(
        0.12, gt=0, le=0.9, description="the same at one level alone, or of the single stream"
    )
    inconclusive: Literal["refuse", "promote", "ask"] = Field(
        "refuse",
        description="a benchmark that cannot tell: go back to the live release, promote all the same, or ask at the "
        "terminal (without one: refuse)",
    )


class PartialRelativeGate(Model):
    """A profile's own comparison; what it leaves out is as the service says."""

    baseline: Literal["profile", "live", "none"] | None = Field(None, description="as of a service")
    starts: int | None = Field(None, ge=1, le=20, description="as of a service")
    max_loss: float | None = Field(None, gt=0, le=0.45, description="as of a service")
    max_level_loss: float | None = Field(None, gt=0, le=0.9, description="as of a service")
    inconclusive: Literal["refuse", "promote", "ask"] | None = Field(None, description="as of a service")

    def over(self, base: RelativeGate) -> RelativeGate:
        """The service's comparison with this profile's wishes on top."""
        return base.model_copy(update=self.model_dump(exclude_none=True))
