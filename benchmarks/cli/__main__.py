"""deployer's command line beside ssh, pyinfra and Ansible, on one practice host (root; ten minutes).

python -m benchmarks.cli --write docs/performance.md
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cli import measuring, page
from benchmarks.cli.host import practice_host
from benchmarks.cli.plays import write_plays
from benchmarks.client import environments
from benchmarks.client.__main__ import machine
from benchmarks.client.page import replaced


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the tables, and write them into the page if one is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cli", description=__doc__)
    parser.add_argument("--runs", type=int, default=15, help="runs of each command (%(default)s)")
    parser.add_argument(
        "--environments", type=Path, default=Path(), help="folder of the others' environment (%(default)s)"
    )
    parser.add_argument("--write", type=Path, metavar="PAGE", help="page whose tables are replaced")
    options = parser.parse_args(arguments)
    python = environments.prepared("cli", options.environments.resolve())
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-cli-") as name, practice_host() as host:
        folder = Path(name)
        write_plays(folder, host)
        rows = measuring.measured(measuring.cases(host, folder, Path(python).parent), folder, options.runs)
        stages = measuring.stages(host, options.runs)
    head = (
        f"{machine()}, load {load:.1f} before the run; {environments.versions('cli', python)}; "
        f"{options.runs} runs of each, in turns."
    )
    text = page.tables(rows, stages, head)
    print(text)
    if options.write:
        before = options.write.read_text(encoding="utf-8")
        options.write.write_text(replaced(before, text, page.MARKS), encoding="utf-8")


if __name__ == "__main__":
    main()
