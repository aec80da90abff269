"""Hold SGLang's schedulers up for a share of the time: what a neighbour does that takes their processor now and then.

Runs on the host, where nothing of deployer is, by the system's Python:

    python3 hold_up.py 0.1

Ten times a second they are stopped (SIGSTOP) for as long as the share still wants and continued (SIGCONT), until it is
ended itself. The servers are not changed and do not know.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

TITLE = b"sglang::scheduler"
PERIOD = 0.1
#: Servers come and go; seconds between two looks at what there is.
LOOK = 1.0


def schedulers() -> list[int]:
    """The processes that call themselves schedulers of SGLang."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(TITLE):
                found.append(int(path.parent.name))
    return found


def owed(share: float, elapsed: float, held: float) -> float:
    """Seconds to stop now, so that ``share`` of all the time will have been: a late wake-up is made good for."""
    return min(max(0.0, (share * (elapsed + PERIOD)) - held), PERIOD / 2)


def tell(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def hold_up(share: float) -> None:
    """Stop and continue them until this process is ended."""
    began = looked = time.monotonic()
    held = 0.0
    pids = schedulers()
    try:
        while True:
            start = time.monotonic()
            if start - looked > LOOK:
                pids, looked = schedulers(), start
            tell(pids, signal.SIGSTOP)
            stopped = time.monotonic()
            time.sleep(owed(share, stopped - began, held))
            tell(pids, signal.SIGCONT)
            held += time.monotonic() - stopped
            time.sleep(max(0.0, start + PERIOD - time.monotonic()))
    finally:
        tell(pids, signal.SIGCONT)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    hold_up(float(sys.argv[1]))
