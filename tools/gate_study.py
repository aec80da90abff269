"""The gate, measured: how often it errs on simulated starts whose true loss is known.

Rates are drawn from the noise model with true deviations that the gate is not told; it learns them from the same few
baseline starts, which is all that a new service has. ``python -m tools.gate_study`` prints the table; with
``--write`` it puts it into docs/gate.md. Deterministic: the same seed gives the same table.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, pstdev
from typing import Any

from deployer.bench.noise import learn_from
from deployer.bench.rates import Logs, aligned, rates_of
from deployer.bench.relative import compared
from deployer.records.bench import BenchRun, Level, Pass
from deployer.records.verdict import Noise, Result

Json = dict[str, Any]

LEVELS = (8, 16, 32, 48, 64)
PASSES = 2
BASELINES = (1, 3, 5)
LOSSES = (0.0, 0.03, 0.05, 0.10, 0.20)
SEED = 20240607
TRIALS = 2000
#: How often somebody applies at most who wants to know.
APPLIES = 3
#: Around the table of real applies, for each engine of the practice host.
REAL_MARKS = {
    "standin": ("<!-- real: begin -->", "<!-- real: end -->"),
    "sglang": ("<!-- real-sglang: begin -->", "<!-- real-sglang: end -->"),
}
BEGIN, END = "<!-- study: begin -->", "<!-- study: end -->"


@dataclass(frozen=True)
class Condition:
    """True deviations: between passes, between starts, of a level within a start."""

    name: str
    run: float
    start: float
    level: float

    def __str__(self) -> str:
        return f"{self.name} {100 * self.run:g}/{100 * self.start:g}/{100 * self.level:g}"


CONDITIONS = (
    Condition("quiet", 0.005, 0.01, 0.005),
    Condition("typical", 0.01, 0.02, 0.01),
    Condition("noisy", 0.03, 0.04, 0.02),
    Condition("wild starts", 0.01, 0.08, 0.01),
)


@dataclass(frozen=True)
class Cell:
    """How often a verdict was fail, pass and inconclusive, as shares of ``trials``."""

    condition: Condition
    baseline: int
    loss: float
    trials: int
    fail: float
    passed: float
    inconclusive: float


def one_start(rng: random.Random, condition: Condition) -> BenchRun:
    """Return the benchmark of a start."""
    whole = rng.gauss(0.0, condition.start)
    levels = []
    for level in LEVELS:
        here = whole + rng.gauss(0.0, condition.level)
        rates = [25.0 * level**0.8 * math.exp(here + rng.gauss(0.0, condition.run)) for _ in range(PASSES)]
        levels.append(Level(concurrency=level, passes=tuple(Pass(steady_tok_s=rate) for rate in rates)))
    return BenchRun(levels=tuple(levels))


def slowed(logs: Logs, loss: float) -> Logs:
    """The same start with a true loss on top, so that all losses are tried on the same noise."""
    return {level: tuple(value + math.log1p(-loss) for value in passes) for level, passes in logs.items()}


def outcome(candidates: Sequence[Logs], baseline: Sequence[Logs], noise: Noise) -> Result:
    """The verdict of an operator who applies again where it is inconclusive: starts so far count together."""
    found: Result = "inconclusive"
    for count in range(1, len(candidates) + 1):
        # The newest first, as the gate gets them.
        found = compared(candidates[count - 1 :: -1], baseline, noise).result
        if found != "inconclusive":
            break
    return found


def cells(
    conditions: Sequence[Condition] = CONDITIONS,
    baselines: Sequence[int] = BASELINES,
    losses: Sequence[float] = LOSSES,
    trials: int = TRIALS,
    seed: int = SEED,
    applies: int = 1,
) -> Iterator[Cell]:
    """The study, cell by cell; each condition and size of the baseline has random numbers of its own.

    ``applies``: how often a candidate is applied at most, as long as it is inconclusive.
    """
    for condition in conditions:
        for size in baselines:
            rng = random.Random(f"{seed} {condition} {size}")
            counts: dict[float, dict[Result, int]] = {
                loss: {"fail": 0, "pass": 0, "inconclusive": 0} for loss in losses
            }
            for _ in range(trials):
                baseline = [one_start(rng, condition) for _ in range(size)]
                tries = [one_start(rng, condition) for _ in range(applies)]
                logs = aligned([rates_of(bench) for bench in (*tries, *baseline)])
                noise = learn_from([logs[applies:]])
                for loss in losses:
                    slow = [slowed(one, loss) for one in logs[:applies]]
                    counts[loss][outcome(slow, logs[applies:], noise)] += 1
            for loss, count in counts.items():
                shares = (count[key] / trials for key in ("fail", "pass", "inconclusive"))
                yield Cell(condition, size, loss, trials, *shares)


def table(found: Sequence[Cell]) -> str:
    """The study as Markdown: a row for each noise and baseline, a column for each true loss."""
    losses = list(dict.fromkeys(cell.loss for cell in found))
    heads = " | ".join("no loss" if not loss else f"-{loss:.0%}" for loss in losses)
    rows = [f"| noise, % | starts | {heads} |", "|---|---|" + "---|" * len(losses)]
    for key in dict.fromkeys((cell.condition, cell.baseline) for cell in found):
        row = [cell for cell in found if (cell.condition, cell.baseline) == key]
        shares = " | ".join(
            f"{100 * cell.fail:.1f}/{100 * cell.inconclusive:.0f}/{100 * cell.passed:.0f}" for cell in row
        )
        rows.append(f"| {key[0]} | {key[1]} | {shares} |")
    return "\n".join(rows) + "\n"


def block(trials: int = TRIALS) -> str:
    """What stands between the marks in docs/gate.md."""
    intro = (
        f"Fail / inconclusive / pass in % of {trials} simulated candidates a cell; {len(LEVELS)} levels with {PASSES} "
        "passes each; noise between passes / between starts / of levels within a start.\n\n"
    )
    again = (
        f"\nThe same where an inconclusive candidate is applied again, up to {APPLIES - 1} times, and its starts count "
        "together:\n\n"
    )
    second = table(list(cells(CONDITIONS[1:3], (1, 3), trials=trials // 2, applies=APPLIES)))
    return intro + table(list(cells(trials=trials))) + again + second + mark()


def mark() -> str:
    """A few candidates of one row, as a comment on the page: by it a test sees that the gate has changed since."""
    few = cells(CONDITIONS[1:2], (3,), trials=150)
    return f"<!-- {' '.join(f'{cell.fail:.4f}/{cell.inconclusive:.4f}' for cell in few)} -->\n"


def real_block(found: Json) -> str:
    """What stands between the marks of the real applies (``tools/gate_real.py``): counts, and what so many tell."""
    real = found["settings"].get("engine") == "sglang"
    head, slower = _sglang_words(found) if real else _standin_words(found)
    kinds = (
        ("first", "the first ones, against nothing" if real else "the first ones, against 0 to 2 starts"),
        ("same", "the same speed, against 3 starts and more"),
        ("slower", slower),
    )
    rows = ["| | applies | pass | inconclusive | fail |", "|---|---|---|---|---|"]
    told = []
    for kind, words in kinds:
        verdicts = [item["result"] for item in found[kind]]
        counts = " | ".join(str(verdicts.count(result)) for result in ("pass", "inconclusive", "fail"))
        rows.append(f"| {words} | {len(verdicts)} | {counts} |")
        effects = [100 * item["effect"] for item in found[kind] if item["effect"] is not None]
        if kind != "first" and effects:
            spread = f" (deviation {pstdev(effects):.1f} %)" if len(effects) > 1 else ""
            told.append(f"{words}: {min(effects):+.1f} to {max(effects):+.1f} %{spread}")
    limits = [
        f"{count} applies without a {what} leave a rate of up to {100 * (1 - 0.05 ** (1 / count)):.0f} % possible"
        for what, count in (
            ("false fail", _clean(found["same"], "fail")),
            ("miss", _clean(found["slower"], "pass")),
        )
        if count
    ]
    tail = f"\nEffects: {'; '.join(told)}." + (f" By their number (95 %): {'; '.join(limits)}." if limits else "")
    return head + "\n".join(rows) + "\n" + tail + "\n"


def _standin_words(found: Json) -> tuple[str, str]:
    """What was applied to the stand-in, and how the slower ones differ."""
    settings = found["settings"]
    steps, starts = (100 * settings[name] for name in ("noise", "start_noise"))
    head = f"`{settings['profile']}`, noise {steps:g} % a step and {starts:g} % a start, {_sweep(settings)}.\n\n"
    return head, "every step 11 % longer (a tenth slower)"


def _sglang_words(found: Json) -> tuple[str, str]:
    """What was applied with the real engine, and how the slower ones differ."""
    settings = found["settings"]
    applies = [item for kind in ("first", "same", "slower") for item in found[kind]]
    took = median(item["seconds"] for item in applies)
    busy = [item["load_average"] for item in applies]
    words = [
        'The same with the real SGLang on the CPU (`make gate-real ARGS="--engine sglang"`), as noisy as it is:',
        f"`{settings['profile']}`, {_sweep(settings)}, on {settings['processors']} processors, {took:.0f} s an apply; "
        f"the load average before them was {min(busy):.0f} to {max(busy):.0f}.",
    ]
    noise = next((item["noise"] for item in reversed(found["same"]) if item["noise"]), None)
    if noise:
        shares = " / ".join(f"{100 * noise[name]:.1f}" for name in ("run", "start", "level"))
        words.append(f"Noise learnt by the last of the same speed: {shares} % (passes / starts / levels).")
    if changes := [100 * change for change in found.get("in_turn", [])]:
        words.append(
            f"What holding it up costs on one start, with and without it in turn: {mean(changes):+.1f} % in the mean "
            f"of {len(changes)} ({min(changes):+.1f} to {max(changes):+.1f})."
        )
    return " ".join(words) + "\n\n", f"its scheduler held up for {100 * settings['held']:g} % of the time"


def _sweep(settings: Json) -> str:
    levels = ", ".join(map(str, settings["levels"]))
    return f"levels {levels} with {settings['repeats']} passes each"


def _clean(verdicts: Sequence[Json], wrong: str) -> int:
    """How many there are, where none is wrong; else 0."""
    return 0 if any(item["result"] == wrong for item in verdicts) else len(verdicts)


def replaced(page: str, text: str, begin_mark: str = BEGIN, end_mark: str = END) -> str:
    """A page with ``text`` between its marks. ValueError where it has none."""
    head, begin, rest = page.partition(begin_mark)
    _, end, tail = rest.partition(end_mark)
    if not begin or not end:
        raise ValueError(f"the page has no {begin_mark} and {end_mark}")
    return f"{head}{begin}\n{text}{end}{tail}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the study's table, or write it into a page."""
    parser = argparse.ArgumentParser(prog="python -m tools.gate_study", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table between the marks of this page")
    parser.add_argument("--trials", type=int, default=TRIALS, help="candidates a cell (%(default)s)")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    text = block(options.trials)
    print(text)
    print(f"{time.monotonic() - began:.0f} s")
    if options.write:
        page = options.write.read_text(encoding="utf-8")
        options.write.write_text(replaced(page, text), encoding="utf-8")


if __name__ == "__main__":
    main()
