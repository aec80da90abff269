"""The gate on real starts: the same profile applied again and again to a practice host, and then a slower one.

Each apply is a whole deployment (a start, a benchmark over HTTP, a verdict), so the noise is that of a real scheduler,
network stack and load client on this machine, and not drawn from a formula. The server's name changes from one apply to
the next, which asks for a start and has no part in the speed. The slower ones also have a variable more in their
environment: they are another configuration of the profile, as after a change. Two engines:

* ``standin``: every step of it is given some noise, and for the slower ones takes 11 % longer;
* ``sglang``: the real one on the CPU, as noisy as it is. For the slower ones its scheduler is held up for a tenth of
  the time (``tools/hold_up.py``), as by a neighbour that takes its processor. What that costs is measured at the end
  on one start, with and without it in turn. The first three are promoted whatever they show: they are the baseline.

    .venv/bin/python tools/gate_real.py --same 8 --slower 4 --out /tmp/gate.json --write docs/gate.md
    .venv/bin/python tools/gate_real.py --engine sglang --same 5 --slower 2 --out /tmp/gate.json --write docs/gate.md
    .venv/bin/python tools/gate_real.py --kept /tmp/gate.json --write docs/gate.md

It boots a practice host of its own and takes it down at the end.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.gate_study import REAL_MARKS, real_block, replaced

SET = "gate-real"
#: A step that takes this much longer (in %) loses a tenth of the throughput.
SLOWER = 100 / 9
#: A scheduler that is held up for this share of the time loses as much.
HELD = 0.1
HOLD_UP = Path(__file__).with_name("hold_up.py")

_TABLE = re.compile(r"\[([A-Za-z0-9_.-]+)\]\s*(?:#.*)?")
_KEY = re.compile(r"([A-Za-z0-9_-]+)\s*=")


@dataclass(frozen=True)
class Engine:
    """What is usual for an engine: a profile without thresholds, and a benchmark of a quarter of a minute or so."""

    profile: str
    levels: tuple[int, ...]
    tokens: int


ENGINES = {"standin": Engine("pp8", (2, 4, 8), 48), "sglang": Engine("tp1", (2, 4, 8), 48)}


def deployer(*words: str, accept: tuple[int, ...] = (0,)) -> str:
    """Run a command and return its stdout; the script ends where its exit status is none of ``accept``."""
    done = subprocess.run(
        [sys.executable, "-m", "deployer", *words], capture_output=True, text=True, check=False, timeout=900
    )
    if done.returncode not in accept:
        sys.exit(f"deployer {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def inventory(text: str, number: int, bench: Mapping[str, object], environment: Mapping[str, str]) -> str:
    """A set's inventory with the usual gate, the ``number``-th name of the model, and other values for the benchmark.

    ``environment`` comes on top of the service's.

    ValueError where the text is not as simple as that of a practice host: one service, one line a value.
    """
    wanted = tomllib.loads(text)
    (name,) = wanted["services"]
    service = wanted["services"][name]
    called = f"{service.get('served_model_name', name)}-{number}"
    service.pop("relative_gate", None)
    service["served_model_name"] = called
    service["bench"] = {**service.get("bench", {}), **bench}
    if environment:
        service["environment"] = {**service.get("environment", {}), **environment}
    tables = _tables(text)
    tables.pop(f"services.{name}.relative_gate", None)
    _set(tables, f"services.{name}", {"served_model_name": called})
    _set(tables, f"services.{name}.bench", bench)
    if environment:
        _set(tables, f"services.{name}.environment", environment)
    changed = "".join(line for lines in tables.values() for line in lines)
    if tomllib.loads(changed) != wanted:
        raise ValueError("the inventory could not be changed line by line")
    return changed


def _tables(text: str) -> dict[str, list[str]]:
    """The lines of each table, by its name; those before the first are the table of no name."""
    tables: dict[str, list[str]] = {"": []}
    current = ""
    for line in text.splitlines(keepends=True):
        if head := _TABLE.fullmatch(line.strip()):
            current = head[1]
        tables.setdefault(current, []).append(line if line.endswith("\n") else line + "\n")
    return tables


def _set(tables: dict[str, list[str]], name: str, values: Mapping[str, object]) -> None:
    """Give keys of a table other values, each in its line or right below the table's head."""
    left = {key: f"{key} = {json.dumps(value)}\n" for key, value in values.items()}
    lines = []
    for line in tables.get(name, [f"[{name}]\n"]):
        key = _KEY.match(line)
        lines.append(left.pop(key[1], line) if key else line)
    tables[name] = [lines[0], *left.values(), *lines[1:]]


def one_apply(path: Path, text: str, kind: str, number: int, options: argparse.Namespace) -> dict[str, Any]:
    """Apply, and return the verdict's result, effect and interval. ``path``: the inventory to write."""
    bench = {"levels": options.levels, "output_tokens": options.tokens, "repeats": options.repeats}
    bench |= {"discard": options.discard, "budget": options.budget, "requests_at_least": 0}
    path.write_text(inventory(text, number, bench, {"GATE_REAL": kind} if kind == "slower" else {}))
    began, busy = time.monotonic(), os.getloadavg()[0]
    words = ["apply", options.profile, "--yes", "--json"]
    if options.engine == "sglang" and kind == "first":
        words += ["--baseline", "none"]
    said = deployer("-i", str(path), *words, accept=(0, 5, 7))
    outcome = json.loads(said)
    verdict = outcome["verdict"] or {}
    relative = verdict.get("relative") or {}
    found = {
        "outcome": outcome["outcome"],
        "result": verdict.get("result"),
        "summary": verdict.get("summary"),
        "reasons": verdict.get("reasons"),
        "effect": relative.get("effect"),
        "interval": relative.get("interval"),
        "baseline_starts": relative.get("baseline_starts", 0),
        "candidate_starts": relative.get("candidate_starts"),
        "noise": relative.get("noise"),
        "load_average": busy,
        "seconds": round(time.monotonic() - began, 1),
    }
    print(f"{number:3d}  {found['outcome']:12}  {found['seconds']:5.0f} s  {found['summary']}", flush=True)
    return found


def main() -> None:
    """Run it all and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=tuple(ENGINES), default="standin")
    parser.add_argument("--profile", help="one without thresholds; default: pp8, with sglang tp1")
    parser.add_argument("--same", type=int, default=8, help="applies of the same speed, after the first three")
    parser.add_argument("--slower", type=int, default=4, help="applies that are a tenth slower")
    parser.add_argument("--noise", type=float, default=0.01, help="noise of a step of the stand-in")
    parser.add_argument("--start-noise", type=float, default=0.02, help="noise of a whole start of it")
    parser.add_argument("--speed", type=float, default=4.0, help="how much faster than the real one it is")
    parser.add_argument("--held", type=float, default=HELD, help="share of the time that SGLang is held up")
    parser.add_argument("--pairs", type=int, default=0, help="benchmarks with and without it in turn, at the end")
    parser.add_argument("--levels", type=int, nargs="+")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--discard", action="store_true", help="discard a wave of each level first")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of a benchmark")
    parser.add_argument("--out", type=Path, help="keep all verdicts in this JSON file")
    parser.add_argument("--kept", type=Path, help="apply nothing, show what such a file has")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="put the table between the engine's marks of this page"
    )
    options = parser.parse_args()
    usual = ENGINES[options.engine]
    options.profile = options.profile or usual.profile
    options.levels = options.levels or list(usual.levels)
    options.tokens = options.tokens or usual.tokens
    found = json.loads(options.kept.read_text()) if options.kept else measured(options)
    text = real_block(found)
    print(text)
    if options.write:
        page = options.write.read_text(encoding="utf-8")
        marks = REAL_MARKS[found["settings"].get("engine", "standin")]
        options.write.write_text(replaced(page, text, *marks), encoding="utf-8")


def booted(options: argparse.Namespace) -> tuple[Path, list[str]]:
    """Boot the host. Returns its inventory, and the words that log in to it."""
    settings = {
        "noise": options.noise,
        "start_noise": options.start_noise,
        "speed": options.speed,
        "scale": 0.1,
    }
    # Only the stand-in has settings.
    given = settings if options.engine == "standin" else {}
    flags = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    said = deployer("rehearse", "up", "--name", SET, "--engine", options.engine, *flags)
    told = dict(line.split(maxsplit=1) for line in said.splitlines() if line[:4] in ("inve", "ssh "))
    return Path(told["inventory"]), told["ssh"].split()


def slow_down(options: argparse.Namespace, login: list[str]) -> None:
    """Make the engine a tenth slower from now on."""
    if options.engine == "standin":
        deployer("rehearse", "fault", "slow", "--set", f"percent={SLOWER:.2f}", "--name", SET)
        return
    there = "/run/hold_up.py"
    start = f"systemd-run --quiet --unit=hold-up /usr/bin/python3 {there} {options.held:g}"
    subprocess.run([*login, f"cat > {there} && {start}"], input=HOLD_UP.read_text(), text=True, check=True, timeout=60)


def speed_up(options: argparse.Namespace, login: list[str]) -> None:
    """Take back what `slow_down` did."""
    if options.engine == "standin":
        deployer("rehearse", "fault", "clear", "--name", SET)
    else:
        subprocess.run([*login, "systemctl stop hold-up"], check=True, timeout=60)


def rate(path: Path) -> float:
    """The mean over levels of the logarithm of what runs now gives."""
    found = json.loads(deployer("-i", str(path), "bench", "--json"))
    rates = [level["aggregate_tok_s"] for level in found["bench"]["levels"]]
    return sum(map(math.log, rates)) / len(rates)


def alternated(path: Path, options: argparse.Namespace, login: list[str]) -> list[float]:
    """What being slower costs on one start: the change of throughput from one benchmark to the next, as shares."""
    changes = []
    for _ in range(options.pairs):
        speed_up(options, login)
        free = rate(path)
        slow_down(options, login)
        changes.append(math.expm1(rate(path) - free))
        print(f"     in turn: {changes[-1]:+.1%}", flush=True)
    return changes


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All applies, on a practice host that is made for them."""
    kept = {key: value for key, value in vars(options).items() if not isinstance(value, Path)}
    kept["processors"] = os.cpu_count()
    shipped, login = booted(options)
    text, path = shipped.read_text(), shipped.with_name("inventory-gate.toml")
    found: dict[str, list[Any]] = {"first": [], "same": [], "slower": [], "in_turn": []}
    try:
        for number in range(3 + options.same):
            kind = "first" if number < 3 else "same"
            found[kind].append(one_apply(path, text, kind, number, options))
        if options.slower or options.pairs:
            slow_down(options, login)
        for number in range(options.slower):
            found["slower"].append(one_apply(path, text, "slower", 100 + number, options))
        found["in_turn"] = alternated(path, options, login)
    finally:
        deployer("rehearse", "down", "--name", SET)
        if options.out:
            options.out.write_text(json.dumps({"settings": kept, **found}, indent=1))
    return {"settings": kept, **found}


if __name__ == "__main__":
    main()
