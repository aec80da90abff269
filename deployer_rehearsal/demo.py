"""The demonstrations behind `make demo`, `make demo-sglang` and `make story`: the whole job on a practice host, in the
commands that anyone would type.

    python -m deployer_rehearsal.demo            the story of eight GPUs, on the stand-in engine
    python -m deployer_rehearsal.demo sglang     the real SGLang, on the CPU
    python -m deployer_rehearsal.demo story      all the story's profiles one after the other, compared on a page
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from deployer_rehearsal.commands import rerun_hint
from deployer_rehearsal.host import find
from deployer_rehearsal.sets import DEFAULT_SET, SGLANG_SET, STORY_SET

Words = tuple[str, ...]

#: The profiles that were tried on the eight GPUs, in this order.
STORY = ("tp8", "pp8", "pp8-async", "pp8-async-mb64", "ep8")


@dataclass(frozen=True)
class Demo:
    """Commands in order, and the set of practice hosts they are for."""

    set: str
    commands: tuple[Words, ...]


DEMOS = {
    "standin": Demo(
        DEFAULT_SET,
        (
            ("rehearse", "up"),
            ("apply", "tp8", "--yes"),
            ("apply", "pp8-async", "--yes"),
            ("status",),
            ("history",),
            ("compare", "tp8", "pp8-async"),
            ("rollback", "--yes"),
            ("status",),
        ),
    ),
    "sglang": Demo(
        SGLANG_SET,
        (
            ("rehearse", "up", "--engine", "sglang"),
            ("apply", "tp1", "--yes"),
            ("apply", "pp2", "--yes"),
            ("apply", "pp2-async", "--yes"),
            ("status",),
            ("history",),
            ("compare", "tp1", "pp2", "pp2-async"),
            ("rollback", "--yes"),
            ("status",),
        ),
    ),
    "story": Demo(
        STORY_SET,
        (
            ("rehearse", "up", "--name", STORY_SET),
            *(("apply", profile, "--yes") for profile in STORY),
            ("history",),
            ("compare", "pp8-async", "pp8-async-mb64", "tp8", "pp8", "ep8", "--html", "story.html"),
        ),
    ),
}


def main(arguments: Sequence[str] = ()) -> int:
    """Run a demo's commands in order; stop at the first that fails and return its exit code."""
    engine = arguments[0] if arguments else "standin"
    if engine not in DEMOS:
        print(f"unknown demo {engine}; choose one of {', '.join(DEMOS)}", file=sys.stderr)
        return 2
    demo = DEMOS[engine]
    began = time.monotonic()
    width = min(shutil.get_terminal_size().columns, 110)
    for words in demo.commands:
        line = f"$ deployer {' '.join(words)}"
        print(f"\n\033[1m{line}\033[0m" if sys.stdout.isatty() else f"\n{line}", flush=True)
        options = () if words[0] == "rehearse" else ("-i", str(find(demo.set)[0].inventory))
        finished = subprocess.run(
            [sys.executable, "-m", "deployer", *words, *options], check=False, stdin=subprocess.DEVNULL
        )
        if finished.returncode != 0:
            print(f"\n`{line[2:]}` ended with exit code {finished.returncode}; the demo stops here.")
            return finished.returncode
    print("\n" + "-" * width)
    print(f"Done in {time.monotonic() - began:.0f} s. {rerun_hint(engine)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
