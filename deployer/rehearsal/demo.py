"""The demonstration behind `make demo`: the whole job on a practice host, by the commands anyone would type."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time

from deployer.rehearsal.commands import rerun_hint
from deployer.rehearsal.host import find

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("rehearse", "up"),
    ("apply", "tp8", "--yes"),
    ("apply", "pp8-async", "--yes"),
    ("status",),
    ("history",),
    ("compare", "tp8", "pp8-async"),
    ("rollback", "--yes"),
    ("status",),
)


def main() -> int:
    """Run the commands one after the other; stop at the first that fails, with its exit code."""
    began = time.monotonic()
    width = min(shutil.get_terminal_size().columns, 110)
    for words in COMMANDS:
        print(
            f"\n\033[1m$ deployer {' '.join(words)}\033[0m"
            if sys.stdout.isatty()
            else f"\n$ deployer {' '.join(words)}"
        )
        sys.stdout.flush()
        options = () if words[0] == "rehearse" else ("-i", str(find()[0].inventory))
        finished = subprocess.run(
            [sys.executable, "-m", "deployer", *words, *options], check=False, stdin=subprocess.DEVNULL
        )
        if finished.returncode != 0:
            print(
                f"\n`deployer {' '.join(words)}` ended with exit code {finished.returncode}; the demo stops here."
            )
            return finished.returncode
    print("\n" + "-" * width)
    print(f"Done in {time.monotonic() - began:.0f} s. {rerun_hint()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
