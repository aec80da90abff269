"""The transcripts in docs/demo.md and README.md, made anew on a practice host: `make demo`, and a killed operator.

python -m tools.transcripts     (root; takes three minutes, leaves the practice host up)
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEPLOYER = (sys.executable, "-m", "deployer")
ENVIRONMENT = {**os.environ, "COLUMNS": "110", "DEPLOYER_INVENTORY": "inventories/rehearsal.toml"}
#: The guard waits for the lease of the practice host's inventory, then for its grace, then for the server.
GUARD_SECONDS = 40
#: Of an excerpt.
WIDTH = 100
#: A line of the wait that says weights are being read.
LOADING = re.compile(r"^ +[\d.]+ s  load ", re.MULTILINE)


def demo() -> str:
    """What `make demo` prints, practice host already up or not."""
    subprocess.run([*DEPLOYER, "rehearse", "down"], check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run(
        [sys.executable, "-m", "deployer_rehearsal.demo"], check=True, capture_output=True, env=ENVIRONMENT
    )
    return done.stdout.decode()


def killed() -> str:
    """An apply that is killed while its candidate loads, and what the host makes of it."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        with output.open("wb") as file:
            operator = subprocess.Popen(
                [*DEPLOYER, "apply", "pp8-async", "--yes"],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=ENVIRONMENT,
            )
        while operator.poll() is None and not re.search(LOADING, output.read_text()):
            time.sleep(0.2)
        operator.kill()
        operator.wait()
        began = output.read_text()
    parts = ["$ deployer apply pp8-async --yes &", began.rstrip(), "$ kill -KILL %1", _shown("status")]
    time.sleep(GUARD_SECONDS)
    return "\n".join([*parts, f"$ sleep {GUARD_SECONDS}", _shown("status"), _shown("history")])


def _shown(command: str) -> str:
    done = subprocess.run([*DEPLOYER, command], check=False, capture_output=True, env=ENVIRONMENT)
    return f"$ deployer {command}\n{done.stdout.decode()}"


def excerpt(text: str, keep: str) -> str:
    """The lines that match the pattern, as far as they fit."""
    lines = [line for line in text.splitlines() if re.search(keep, line)]
    return "\n".join(line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ..." for line in lines)


def part(text: str, command: str) -> str:
    """What the last such command printed, with its own line."""
    found: list[str] = re.findall(rf"^\$ deployer {command}.*?(?=^\$ |\Z)", text, re.M | re.S)
    return found[-1].rstrip()


def fill(path: Path, blocks: dict[str, str]) -> None:
    """Replace what stands between a page's markers."""
    page = path.read_text(encoding="utf-8")
    for name, text in blocks.items():
        head, rest = page.split(f"<!-- {name} -->", 1)
        tail = rest.split("<!-- end -->", 1)[1]
        lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
        page = f"{head}<!-- {name} -->\n```\n{lines}\n```\n<!-- end -->{tail}"
    path.write_text(page, encoding="utf-8")


def main() -> None:
    """Write both pages into the checkout."""
    whole, cut = demo(), killed()
    fill(ROOT / "docs/demo.md", {"demo": whole, "killed": cut})
    job = [
        excerpt(part(whole, "apply pp8-async"), r"^(\$|✓|  .*captures?\b|pp8-async is live)"),
        excerpt(part(whole, "compare"), r"^(\$|level)|aggregate,|^0002.* against"),
        excerpt(part(whole, "rollback"), r"^(\$|rolled back)"),
    ]
    guard = excerpt(cut.partition("$ deployer history")[0], r"^(\$|✓ (Record|Start)|kimi|unit|health|change)")
    fill(ROOT / "README.md", {"demo": "\n".join(job), "killed": guard})


if __name__ == "__main__":
    main()
