"""The gate on real starts: the same profile applied again and again to a practice host, and then a slower one.

Each apply is a whole deployment (a start of the stand-in, a benchmark over HTTP, a verdict), so the noise is that of
a real scheduler, network stack and load client on this machine, and not drawn from a formula. The server's name changes
from one apply to the next, which asks for a start and has no part in the speed.

    .venv/bin/python tools/gate_real.py --same 8 --slower 4 --out /tmp/gate.json --write docs/gate.md
    .venv/bin/python tools/gate_real.py --kept /tmp/gate.json --write docs/gate.md

It boots a practice host of its own and takes it down at the end.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from deployer.bench.study import REAL_BEGIN, REAL_END, real_block, replaced

SET = "gate-real"
#: A step that takes this much longer loses a tenth of the throughput.
SLOWER = 100 / 9


def deployer(*words: str, accept: tuple[int, ...] = (0,)) -> str:
    """Run a command and return its stdout; the script ends where its exit status is none of ``accept``."""
    done = subprocess.run(
        [sys.executable, "-m", "deployer", *words], capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode not in accept:
        sys.exit(f"deployer {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def inventory(text: str, number: int, levels: list[int], tokens: int, repeats: int) -> str:
    """The set's inventory with a small benchmark, the usual gate and the ``number``-th name of the model."""
    text = re.sub(r"(?m)^\[services\.kimi\.relative_gate\](.*\n)+?\n", "", text)
    bench = {"levels": levels, "output_tokens": tokens, "repeats": repeats}
    for key, value in bench.items():
        text = re.sub(rf"(?m)^{key} .*$", f"{key} = {json.dumps(value)}", text)
    return re.sub(r"(?m)^served_model_name .*$", f'served_model_name = "kimi-{number}"', text)


def one_apply(folder: Path, text: str, number: int, options: argparse.Namespace) -> dict[str, Any]:
    """Apply, and return the verdict's result, effect and interval."""
    path = folder / "inventory-gate.toml"
    path.write_text(inventory(text, number, options.levels, options.tokens, options.repeats))
    began = time.monotonic()
    said = deployer("-i", str(path), "apply", options.profile, "--yes", "--json", accept=(0, 5, 7))
    outcome = json.loads(said)
    verdict = outcome["verdict"] or {}
    relative = verdict.get("relative") or {}
    found = {
        "outcome": outcome["outcome"],
        "result": verdict.get("result"),
        "summary": verdict.get("summary"),
        "effect": relative.get("effect"),
        "interval": relative.get("interval"),
        "baseline_starts": relative.get("baseline_starts", 0),
        "noise": relative.get("noise"),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(f"{number:3d}  {found['outcome']:12}  {found['summary']}", flush=True)
    return found


def main() -> None:
    """Run it all and print the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", default="pp8", help="one without thresholds (%(default)s)")
    parser.add_argument(
        "--same", type=int, default=8, help="applies of the same speed, after the first three"
    )
    parser.add_argument("--slower", type=int, default=4, help="applies that are a tenth slower")
    parser.add_argument("--noise", type=float, default=0.01, help="noise of a step of the stand-in")
    parser.add_argument("--start-noise", type=float, default=0.02, help="noise of a whole start of it")
    parser.add_argument("--speed", type=float, default=4.0, help="how much faster than the real one it is")
    parser.add_argument("--levels", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, help="keep all verdicts in this JSON file")
    parser.add_argument("--kept", type=Path, help="apply nothing, show what such a file has")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="put the table between the marks of this page"
    )
    options = parser.parse_args()
    found = json.loads(options.kept.read_text()) if options.kept else measured(options)
    text = real_block(found)
    print(text)
    if options.write:
        page = options.write.read_text(encoding="utf-8")
        options.write.write_text(replaced(page, text, REAL_BEGIN, REAL_END), encoding="utf-8")


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All applies, on a practice host that is made for them."""
    settings = {
        "noise": options.noise,
        "start_noise": options.start_noise,
        "speed": options.speed,
        "scale": 0.1,
    }
    kept = {key: value for key, value in vars(options).items() if not isinstance(value, Path)}
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    up = deployer("rehearse", "up", "--name", SET, *flags)
    path = Path(re.search(r"(?m)^inventory +(.+)$", up)[1])  # type: ignore[index]  # `up` prints it
    text = path.read_text()
    found: dict[str, list[dict[str, Any]]] = {"first": [], "same": [], "slower": []}
    try:
        for number in range(3 + options.same):
            kind = "first" if number < 3 else "same"
            found[kind].append(one_apply(path.parent, text, number, options))
        deployer("rehearse", "fault", "slow", "--set", f"percent={SLOWER:.2f}", "--name", SET)
        for number in range(options.slower):
            found["slower"].append(one_apply(path.parent, text, 100 + number, options))
    finally:
        deployer("rehearse", "down", "--name", SET)
        if options.out:
            options.out.write_text(json.dumps({"settings": kept, **found}, indent=1))
    return {"settings": kept, **found}


if __name__ == "__main__":
    main()
