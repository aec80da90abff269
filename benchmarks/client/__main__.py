"""Load clients side by side, against a server whose send times are known.

python -m benchmarks.client                                  all of it: a quarter of an hour, 10 GB of environments once
python -m benchmarks.client --tools deployer --levels 1 8    a few
python -m benchmarks.client --write docs/performance.md      and put the tables there
python -m benchmarks.client --from a.json b.json             no measurement: tables of kept runs, medians
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.client import environments, measuring, page, server
from benchmarks.client.results import NoResult
from benchmarks.client.tools import TOOLS, Load, Tool

Json = dict[str, Any]

TTFT, ITL = 0.2, 0.02
FAST_STREAMS = 64


def machine() -> str:
    """This machine in words: processors and Python."""
    model = "processors"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{len(os.sched_getaffinity(0))} x {model}, Linux {platform.release().partition('-')[0]}"


def measured(options: argparse.Namespace, tools: Sequence[Tool], pythons: dict[str, str]) -> Json:
    """One run of everything."""
    cores = measuring.shared_out(sorted(os.sched_getaffinity(0)))
    document: Json = {
        "machine": machine(),
        "pinned": (
            f"The server ran on {_count(len(cores.server))} ({len(cores.fast_server)} for the highest rates), the "
            f"clients on the other {_count(len(cores.clients))}."
        ),
        "load_average": os.getloadavg()[0],
        "schedule": {
            "ttft_s": TTFT,
            "itl_s": ITL,
            "tokens": options.tokens,
            "waves": options.waves,
            "in_step": options.in_step,
        },
        "versions": {name: environments.versions(name, python) for name, python in pythons.items()},
        "levels": [],
        "rates": [],
        "failures": [],
    }
    with tempfile.TemporaryDirectory(prefix="bench-client-") as folder, measuring.on(cores.fast_server):
        program = server.compiled(Path(folder))
        with server.running(program, cores=cores.server) as slow:
            slow.schedule(TTFT, ITL, in_step=options.in_step)
            for level in options.levels:
                for tool in tools:
                    load = Load(slow.url, level, options.waves, options.tokens)
                    python = pythons[tool.environment]
                    measure = partial(measuring.level, tool, python, load, slow, cores.clients)
                    _note(document, "levels", tool, measure, options.raw)
        if not options.no_rates:
            with server.running(program, threads=len(cores.fast_server), cores=cores.fast_server) as fast:
                fast.schedule(0.1, 0.0)
                for on, where in (("one", cores.clients[-1:]), ("all", cores.clients)):
                    for tool in tools:
                        load = Load(fast.url, FAST_STREAMS, 1, tool.rate_tokens)
                        python = pythons[tool.environment]
                        measure = partial(measuring.highest, tool, python, load, fast, where, on=on)
                        _note(document, "rates", tool, measure, options.raw)
    return document


def _note(document: Json, kind: str, tool: Tool, measure: Any, raw: Path | None) -> None:
    """Measure one cell; one that fails is told, and the others are measured all the same."""
    try:
        cell = measure()
    except NoResult as problem:
        document["failures"].append(str(problem))
        print(f"{tool.name}: {problem}", file=sys.stderr, flush=True)
        return
    document[kind].append(cell)
    shown = {name: round(value, 3) for name, value in cell.items() if isinstance(value, float)}
    print(f"{tool.name}: {cell.get('level', cell.get('on'))} {shown} {_short(cell.get('errors'))}", flush=True)
    if raw:
        raw.write_text(json.dumps(document, indent=1) + "\n")


def _short(errors: dict[str, float] | None) -> str:
    return "" if errors is None else str({name: round(value, 2) for name, value in errors.items()})


def _count(number: int) -> str:
    return f"{number} processor{'s' * (number != 1)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The program. 1: some client had no result."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.client",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = list(dict.fromkeys(tool.name for tool in TOOLS))
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 8, 64, 256], metavar="C")
    parser.add_argument("--tools", nargs="+", default=names, choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--waves", type=int, default=3, help="requests a stream, one after another (%(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of an answer (%(default)s)")
    parser.add_argument(
        "--in-step", action="store_true", help="the server sends all streams' tokens at the same moments"
    )
    parser.add_argument("--no-rates", action="store_true", help="leave the highest rates out")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="ENVIRONMENT=PYTHON",
        help="an environment that is there already",
    )
    parser.add_argument(
        "--environments", type=Path, default=Path(), help="folder for those that are made (%(default)s)"
    )
    parser.add_argument("--raw", type=Path, help="keep the figures in this JSON file")
    parser.add_argument("--from", type=Path, nargs="+", dest="kept", help="show kept figures, measure nothing")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables between the marks of this page")
    options = parser.parse_args(arguments)
    if options.kept:
        documents = [json.loads(path.read_text()) for path in options.kept]
    else:
        tools = [tool for tool in TOOLS if tool.name in options.tools]
        given = dict(item.partition("=")[::2] for item in options.python)
        pythons = {
            name: os.path.abspath(given[name])
            if name in given
            else environments.prepared(name, options.environments.resolve())
            for name in dict.fromkeys(tool.environment for tool in tools)
        }
        measuring.adopt_orphans()
        documents = [measured(options, tools, pythons)]
    if not any(document["levels"] for document in documents):
        print("nothing was measured", file=sys.stderr)
        return 1
    text = page.block(documents)
    print(text)
    if options.write:
        options.write.write_text(page.replaced(options.write.read_text(encoding="utf-8"), text), encoding="utf-8")
    return 1 if any(document["failures"] for document in documents) else 0


if __name__ == "__main__":
    sys.exit(main())
