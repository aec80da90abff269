"""python -m tests.chaos [--seed N] [--schedules N] [--minutes M] [--state FILE] [--write PAGE] [--only N] (root)

Carries schedules out one after the other on a practice host of its own, keeps what came of each in FILE, and goes on
where it ended. Prints a table by blow at the end. Exits with 1 if anything was not as it must be.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.client.__main__ import machine
from benchmarks.client.page import replaced
from deployer_rehearsal import hosts
from tests.chaos.run import carry_out
from tests.chaos.schedule import BLOWS, schedule
from tests.conftest import SETTINGS
from tests.e2e.conftest import Site

SET = "chaos"
MARKS = ("<!-- chaos: begin -->", "<!-- chaos: end -->")


def table(results: list[dict[str, Any]]) -> str:
    """Counts and times by blow."""
    lines = ["| blow | schedules | in mid-change | healed by itself | longest, s |", "| --- | --- | --- | --- | --- |"]
    for blow in BLOWS:
        rows = [item for item in results if item["schedule"]["blow"] == blow]
        if rows:
            well = sum(not item["result"]["wrong"] for item in rows)
            hit = sum(item["result"]["hit"] for item in rows)
            longest = max(item["result"]["healed"] for item in rows)
            lines.append(f"| {blow} | {len(rows)} | {hit} | {well} | {longest:.0f} |")
    well = sum(not item["result"]["wrong"] for item in results)
    return "\n".join([*lines, f"| all | {len(results)} | | {well} | |"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schedules", type=int, default=150, metavar="N")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no schedule after this time")
    parser.add_argument("--state", type=Path, default=Path("chaos.jsonl"), help="what came of each (%(default)s)")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="page whose table is replaced")
    parser.add_argument("--blow", action="append", help="only schedules with this blow (may be repeated)")
    parser.add_argument("--only", type=int, help="carry this one out, whatever FILE has")
    options = parser.parse_args()
    known = [json.loads(line) for line in options.state.read_text().splitlines()] if options.state.exists() else []
    results = [item for item in known if item["seed"] == options.seed]
    done = {item["schedule"]["number"] for item in results}
    numbers = [options.only] if options.only is not None else [n for n in range(options.schedules) if n not in done]
    if options.blow:
        numbers = [number for number in numbers if schedule(options.seed, number).blow in options.blow]
    began = time.monotonic()
    host = hosts.up(SET, 1, settings=SETTINGS)[0]
    try:
        for number in numbers:
            if time.monotonic() > began + options.minutes * 60:
                break
            wanted = schedule(options.seed, number)
            with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
                result = carry_out(Site(host, Path(folder)), wanted)
            item = {"seed": options.seed, "schedule": wanted.as_json(), "result": asdict(result)}
            results.append(item)
            with options.state.open("a") as file:
                file.write(json.dumps(item) + "\n")
            words = "; ".join(result.wrong) or ("well" if result.hit else "well (came too late)")
            print(f"{wanted}: {words} ({result.healed:.0f} s)", flush=True)
    finally:
        hosts.down(SET)
    text = f"{machine()}; seed {options.seed}, {len(results)} schedules.\n\n{table(results)}\n"
    print(text)
    if options.write:
        options.write.write_text(replaced(options.write.read_text("utf-8"), text, MARKS), "utf-8")
    return 1 if any(item["result"]["wrong"] for item in results) else 0


if __name__ == "__main__":
    sys.exit(main())
