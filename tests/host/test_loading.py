"""A Ctrl-C while the program is still being loaded."""

from __future__ import annotations

import subprocess
import sys

from tests.paths import ROOT

#: Interrupts itself amid the first large import, in a place that would lose a KeyboardInterrupt.
INTERRUPTED = """
import signal, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "deployer.cli.main":
            try:
                signal.raise_signal(signal.SIGINT)
            except BaseException:
                print("the interrupt was lost")

sys.meta_path.insert(0, Finder)
sys.argv = ["deployer", "profiles"]
signal.signal(signal.SIGINT, signal.default_int_handler)
from deployer.__main__ import main
main()
"""


def test_an_interrupt_while_it_loads_ends_it_without_a_word() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
