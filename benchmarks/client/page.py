"""The published tables, and which aims hold. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

Json = dict[str, Any]

BEGIN, END = "<!-- bench-client: begin -->", "<!-- bench-client: end -->"
OURS, LEAST = "deployer", "Protocol by hand"
LOOPS = ("", " (asyncio)")  # as the names of the clients end
OTHERS = ("sglang.bench_serving", "guidellm", "aiperf")
#: The aims. Milliseconds by level, seconds, and how many times the least client's processor time.
TTFT_MS = {1: 2.0, 8: 2.0, 64: 2.0, 256: 5.0}
ITL_P99_MS = {1: 2.0, 8: 2.0, 64: 2.0}
START_S = 0.3
CPU_TIMES = 2.0


@dataclass(frozen=True)
class Figures:
    """Medians over the runs. Keyed by (client, level); rates by (client, "all" or "one").

    ``cpu_range``, ``rate_range``: the lowest and the highest of the runs. ``cpu_times``: of each run that has both,
    this client's processor time by the least client's on the same loop. ``apart``: the most by which two runs of a
    client differ in an error of TTFT and of ITL, in ms. ``runs``: how many, by client.
    """

    errors: Mapping[tuple[str, int], Mapping[str, float]]
    cpu: Mapping[tuple[str, int], float]
    cpu_range: Mapping[tuple[str, int], tuple[float, float]]
    cpu_times: Mapping[tuple[str, int], Sequence[float]]
    apart: Mapping[str, tuple[float, float]]
    start: Mapping[tuple[str, int], float]
    rates: Mapping[tuple[str, str], tuple[float, bool]]
    rate_range: Mapping[tuple[str, str], tuple[float, float]]
    itl_of: Mapping[str, str]
    runs: Mapping[str, int]

    @property
    def tools(self) -> list[str]:
        """The clients, in the order measured."""
        return list(dict.fromkeys(tool for tool, _ in self.errors))

    @property
    def levels(self) -> list[int]:
        """The levels, ascending."""
        return sorted({level for _, level in self.errors})


def figures(documents: Sequence[Json]) -> Figures:
    """Several runs of the measurement as one: the median of each figure."""
    cells = [cell for document in documents for cell in document["levels"]]
    keys = list(dict.fromkeys((cell["tool"], cell["level"]) for cell in cells))

    def each(value: Callable[[Json], float]) -> dict[tuple[str, int], list[float]]:
        return {key: [value(cell) for cell in cells if (cell["tool"], cell["level"]) == key] for key in keys}

    def medians(value: Callable[[Json], float]) -> dict[tuple[str, int], float]:
        return {key: median(values) for key, values in each(value).items()}

    cpu = each(lambda cell: cell["cpu_ms_a_token"])
    runs = {tool: max(len(cpu[key]) for key in keys if key[0] == tool) for tool, _ in keys}
    names = sorted({name for cell in cells for name in cell["errors"]})
    ranges = {
        (*key, name): max(values) - min(values)
        for name in names
        for key, values in each(lambda cell, name=name: cell["errors"][name]).items()  # type: ignore[misc]
    }
    by_name = {name: medians(lambda cell, name=name: cell["errors"][name]) for name in names}  # type: ignore[misc]
    with_intent = [cell for cell in cells if "errors_intent" in cell]
    errors = {key: {name: by_name[name][key] for name in names} for key in keys}
    for cell in with_intent:
        key = cell["tool"], cell["level"]
        same = [other for other in with_intent if (other["tool"], other["level"]) == key]
        for name in ("ttft_mean", "ttft_p99"):
            errors[key][f"{name}_intent"] = median(other["errors_intent"][name] for other in same)
    rates: dict[tuple[str, str], list[Json]] = {}
    for document in documents:
        for cell in document["rates"]:
            rates.setdefault((cell["tool"], cell["on"]), []).append(cell)
    return Figures(
        errors=errors,
        cpu={key: median(values) for key, values in cpu.items()},
        cpu_range={key: (min(values), max(values)) for key, values in cpu.items()},
        cpu_times=_cpu_times(documents),
        apart={
            tool: (
                max(far for (of, _, name), far in ranges.items() if of == tool and name.startswith("ttft")),
                max(far for (of, _, name), far in ranges.items() if of == tool and name.startswith("itl")),
            )
            for tool, number in runs.items()
            if number > 1
        },
        start=medians(lambda cell: cell["startup_s"]),
        rates={
            key: (median(cell["rate_tok_s"] for cell in found), any(cell["server_limited"] for cell in found))
            for key, found in rates.items()
        },
        rate_range={
            key: (min(cell["rate_tok_s"] for cell in cells), max(cell["rate_tok_s"] for cell in cells))
            for key, cells in rates.items()
        },
        itl_of={cell["tool"]: cell["seen"]["itl_of"] for cell in cells},
        runs=runs,
    )


def _cpu_times(documents: Sequence[Json]) -> dict[tuple[str, int], list[float]]:
    found: dict[tuple[str, int], list[float]] = {}
    for document in documents:
        cpu = {(cell["tool"], cell["level"]): cell["cpu_ms_a_token"] for cell in document["levels"]}
        for loop in LOOPS:
            for (tool, level), own in cpu.items():
                if tool == OURS + loop and cpu.get((LEAST + loop, level)):
                    found.setdefault((tool, level), []).append(own / cpu[LEAST + loop, level])
    return found


def signed(value: float | None, digits: int | None = None) -> str:
    """A difference; two digits below 1 unless told otherwise."""
    if value is None:
        return "-"
    places = digits if digits is not None else (2 if abs(value) < 1 else 1 if abs(value) < 100 else 0)
    text = f"{value:+.{places}f}"
    return text[1:] if float(text) == 0 else text


def rows(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [list(heads), ["---"] * len(heads), *map(list, body)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def tables(found: Figures) -> str:
    """All of it in Markdown."""
    levels = found.levels
    heads = ["client", *(f"C={level}" for level in levels)]

    def errors_of(mean: str, p99: str, tool: str) -> list[str]:
        cells = [found.errors.get((tool, level), {}) for level in levels]
        return [f"{signed(cell.get(mean))} / {signed(cell.get(p99))}" if cell else "-" for cell in cells]

    ttft: list[list[str]] = []
    for tool in found.tools:
        ttft.append([tool, *errors_of("ttft_mean", "ttft_p99", tool)])
        if any("ttft_mean_intent" in found.errors.get((tool, level), {}) for level in levels):
            ttft.append([f"{tool}, from intent", *errors_of("ttft_mean_intent", "ttft_p99_intent", tool)])
    itl = [
        [tool + ("¹" if found.itl_of.get(tool) == "request" else ""), *errors_of("itl_mean", "itl_p99", tool)]
        for tool in found.tools
    ]

    def each(values: Mapping[tuple[str, int], float], form: str) -> list[list[str]]:
        return [
            [tool, *(format(values[tool, n], form) if (tool, n) in values else "-" for n in levels)]
            for tool in found.tools
        ]

    def cpu_of(tool: str, level: int) -> str:
        if (tool, level) not in found.cpu:
            return "-"
        low, high = found.cpu_range[tool, level]
        spread = f" ({1000 * low:.0f}-{1000 * high:.0f})" * (found.runs[tool] > 1)
        return f"{1000 * found.cpu[tool, level]:.0f}{spread}"

    def rate_of(tool: str, on: str) -> str:
        rate, limited = found.rates.get((tool, on), (None, False))
        if rate is None:
            return "-"
        low, high = found.rate_range[tool, on]
        spread = f" ({low / 1000:.0f}-{high / 1000:.0f})" * (low < high)
        return f"{'at least ' * limited}{rate / 1000:.0f} k{spread}"

    return "\n".join(
        [
            "Error of the time to the first token, mean / p99, in ms:\n",
            rows(heads, ttft),
            "Error of the time between tokens, mean / p99, in ms:\n",
            rows(heads, itl),
            *(["¹ It keeps one mean a request: gaps cannot be seen, its p99 is over requests.\n"] * _averaged(found)),
            *(
                f"Between two runs of one client an error differs by at most (TTFT / ITL, in ms): {apart}.\n"
                for apart in ["; ".join(f"{tool} {ttft:.2f} / {itl:.2f}" for tool, (ttft, itl) in found.apart.items())]
                if apart
            ),
            "Processor time of all the client's processes while there is load, in µs a token"
            + " (lowest-highest run)" * bool(found.apart)
            + ":\n",
            rows(heads, [[tool, *(cpu_of(tool, level) for level in levels)] for tool in found.tools]),
            "Seconds from its start to its first request at the server:\n",
            rows(heads, each(found.start, ".2f")),
            "The highest rate that it takes, in tokens a second (64 streams, the server as fast as it can):\n",
            rows(
                ["client", "on one processor", "on all of them"],
                [[tool, rate_of(tool, "one"), rate_of(tool, "all")] for tool in found.tools],
            ),
        ]
    )


def _averaged(found: Figures) -> bool:
    return "request" in found.itl_of.values()


@dataclass(frozen=True)
class Aim:
    """One aim: whether it holds, and the figures that show it."""

    text: str
    held: bool
    shown: str


def aims(found: Figures) -> list[Aim]:
    """What this client is held to, and whether it holds here."""
    levels = [level for level in found.levels if (OURS, level) in found.errors]
    made: list[Aim] = []

    def bounded(text: str, name: str, bounds: Mapping[int, float]) -> None:
        seen = {level: found.errors[OURS, level][name] for level in levels if level in bounds}
        if seen:
            held = all(abs(value) <= bounds[level] for level, value in seen.items())
            made.append(Aim(text, held, ", ".join(f"{signed(value)} at {level}" for level, value in seen.items())))

    bounded("TTFT (sent), mean, within 2 ms to C=64 and 5 ms at C=256", "ttft_mean", TTFT_MS)
    bounded("TTFT (sent), p99, within the same", "ttft_p99", TTFT_MS)
    bounded("ITL p99 within 2 ms to C=64", "itl_p99", ITL_P99_MS)
    if levels:
        starts = {level: found.start[OURS, level] for level in levels}
        held = max(starts.values()) <= START_S
        shown = ", ".join(f"{seconds:.2f} s at {level}" for level, seconds in starts.items())
        made.append(Aim(f"first request within {START_S:g} s of the start", held, shown))
    made += [aim for loop in LOOPS if (aim := _cpu_aim(found, loop))]
    behind = behind_of(found)
    made.append(
        Aim(
            "ahead of bench_serving, guidellm and aiperf in every figure",
            not behind,
            "; ".join(behind) or "in every one",
        )
    )
    return made


def _cpu_aim(found: Figures, loop: str) -> Aim | None:
    """Processor time against the least client's on the same loop: of the medians, and how it was run by run."""
    ratios = {
        level: found.cpu[OURS + loop, level] / found.cpu[LEAST + loop, level]
        for level in found.levels
        if (OURS + loop, level) in found.cpu and found.cpu.get((LEAST + loop, level))
    }
    if not ratios:
        return None

    def shown(level: int) -> str:
        runs = found.cpu_times.get((OURS + loop, level), ())
        spread = f" ({min(runs):.2f} to {max(runs):.2f})" if len(runs) > 1 else ""
        return f"{ratios[level]:.2f} times{spread} at {level}"

    return Aim(
        f"processor time within twice the Protocol client's{loop}",
        all(ratio <= CPU_TIMES for ratio in ratios.values()),
        ", ".join(map(shown, ratios)),
    )


#: Errors this close are equal, in ms: two runs of one client differ by as much.
ALIKE_MS = 0.2


def behind_of(found: Figures) -> list[str]:
    """Where one of the others is better than this client, in words."""
    said: list[str] = []

    def compare(what: str, own: float | None, others: Mapping[str, float | None], alike: float) -> None:
        for tool, value in others.items():
            if own is not None and value is not None and value < own - alike:
                said.append(f"{what}: {own:.2f}, {tool} {value:.2f}")

    for level in found.levels:
        own = found.errors.get((OURS, level))
        if own is None:
            continue
        for name, words in (
            ("ttft_mean", "TTFT mean"),
            ("ttft_p99", "TTFT p99"),
            ("itl_mean", "ITL mean"),
            ("itl_p99", "ITL p99"),
        ):
            others = {
                tool: abs(found.errors[tool, level][name])
                for tool in OTHERS
                if (tool, level) in found.errors and not (name == "itl_p99" and found.itl_of.get(tool) == "request")
            }
            compare(f"error of {words} at {level}, ms", abs(own[name]), others, ALIKE_MS)
        compare(
            f"processor time at {level}, ms a token",
            found.cpu[OURS, level],
            {tool: found.cpu.get((tool, level)) for tool in OTHERS},
            0.0,
        )
        compare(
            f"start at {level}, s",
            found.start[OURS, level],
            {tool: found.start.get((tool, level)) for tool in OTHERS},
            0.0,
        )
    for on, words in (("one", "on one processor"), ("all", "on all")):
        mine = found.rates.get((OURS, on))
        for tool in OTHERS:
            other = found.rates.get((tool, on))
            if mine and other and other[0] > mine[0]:
                said.append(f"highest rate {words}: {mine[0] / 1000:.0f} k, {tool} {other[0] / 1000:.0f} k")
    return said


def block(documents: Sequence[Json]) -> str:
    """What stands between the marks of docs/performance.md."""
    first = documents[0]
    found = figures(documents)
    schedule = first["schedule"]
    true = [cell["true"] for document in documents for cell in document["levels"]]
    machines = "; ".join(dict.fromkeys(document["machine"] for document in documents))
    versions = {name: text for document in documents for name, text in document["versions"].items()}
    head = (
        f"{machines}. TTFT {1000 * schedule['ttft_s']:g} ms, ITL {1000 * schedule['itl_s']:g} ms, "
        f"{schedule['tokens']} tokens an answer, {schedule['waves']} requests a stream"
        f"{', all streams in step' * bool(schedule.get('in_step'))}; {_counted(found.runs)}. {first['pinned']}\n\n"
        + "".join(f"* {name}: {text}\n" for name, text in versions.items())
        + f"\nWhat the server really sent, over all runs: TTFT mean {1000 * min(t['ttft_mean'] for t in true):.1f} to "
        f"{1000 * max(t['ttft_mean'] for t in true):.1f} ms, ITL p99 {1000 * min(t['itl_p99'] for t in true):.1f} to "
        f"{1000 * max(t['itl_p99'] for t in true):.1f} ms. Errors are against each run's own truth.\n"
    )
    failures = [text for document in documents for text in document.get("failures", [])]
    failed = "".join(f"* no result: {text}\n" for text in dict.fromkeys(failures))
    held = "".join(f"* **{'holds' if aim.held else 'missed'}**: {aim.text}: {aim.shown}\n" for aim in aims(found))
    return f"{head}\n{tables(found)}\n{held}" + (f"\n{failed}" if failed else "")


def _counted(runs: Mapping[str, int]) -> str:
    """Of how many runs the medians are, in words; clients that had fewer are named."""
    most = max(runs.values())
    fewer = "".join(f", {tool} {number}" for tool, number in runs.items() if number < most)
    return f"median of {most} run{'s' * (most != 1)}" + f" (fewer:{fewer[1:]})" * bool(fewer)


def replaced(page: str, text: str, marks: tuple[str, str] = (BEGIN, END)) -> str:
    """Return the page with ``text`` between the marks. Raise ValueError if it does not have them."""
    head, begin, rest = page.partition(marks[0])
    _, end, tail = rest.partition(marks[1])
    if not begin or not end:
        raise ValueError(f"the page has no {marks[0]} and {marks[1]}")
    return f"{head}{begin}\n{text}{end}{tail}"
