"""The structure as docs/architecture.md has it: imports run downwards, modules stay a page or a few."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.paths import DOCS, ROOT

PACKAGE = ROOT / "deployer"

#: Each part may import from those named (and from the modules in COMMON).
ALLOWED = {
    "cli": {"report", "inspect", "deploy", "host", "sglang", "units", "config", "records"},
    "report": {"inspect", "deploy", "host", "sglang", "bench", "records"},
    "inspect": {"deploy", "host", "bench", "units", "sglang", "config", "records"},
    "deploy": {"host", "bench", "units", "sglang", "config", "records"},
    "bench": {"host", "sglang", "records"},
    "host": {"config", "records"},
    "units": {"sglang", "config"},
    "sglang": {"config"},
    "config": set(),
    "records": set(),
}
COMMON = {"errors", "resources", "metrics"}
#: One table of data classes, longer than a module should be and still one thing.
LONG: dict[str, int] = {}


def imports(path: Path) -> set[str]:
    """The parts of deployer that a module imports."""
    return set(re.findall(r"^\s*(?:from|import) deployer\.(\w+)", path.read_text(), re.MULTILINE))


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_imports_run_downwards(part: str) -> None:
    for path in (PACKAGE / part).rglob("*.py"):
        upward = imports(path) - ALLOWED[part] - COMMON - {part}
        assert not upward, f"{path.relative_to(PACKAGE)} imports {', '.join(sorted(upward))}"


def test_the_load_client_travels_with_nothing_but_metrics() -> None:
    for path in (PACKAGE / "bench" / "load").glob("*.py"):
        names = re.findall(
            r"^\s*(?:from|import) (deployer[.\w]*(?: import metrics)?)", path.read_text(), re.M
        )
        own = [name for name in names if name.startswith("deployer.bench.load")]
        assert set(names) - set(own) <= {"deployer.metrics", "deployer import metrics"}, path.name


def test_the_reading_of_logs_stands_alone() -> None:
    """`sglang/log` is pure knowledge of text: it imports nothing of deployer but itself."""
    for path in (PACKAGE / "sglang" / "log").glob("*.py"):
        modules = re.findall(r"^\s*(?:from|import) (deployer[\w.]*)", path.read_text(), re.MULTILINE)
        assert all(module.startswith("deployer.sglang.log") for module in modules), path.name


def test_modules_stay_a_page_or_a_few() -> None:
    for path in PACKAGE.rglob("*.py"):
        name = str(path.relative_to(PACKAGE))
        assert len(path.read_text().splitlines()) <= LONG.get(name, 405), name


def test_the_machine_is_a_practice_host_and_the_activity_a_rehearsal() -> None:
    rehearsal = ROOT / "deployer_rehearsal"
    for path in [
        *PACKAGE.rglob("*.py"),
        *rehearsal.rglob("*.py"),
        *DOCS.glob("*.md"),
        ROOT / "README.md",
        ROOT / "Makefile",
    ]:
        assert "rehearsal host" not in " ".join(path.read_text().lower().split()), path
