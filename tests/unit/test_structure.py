"""The structure as docs/architecture.md has it: rooms, their order, the size of modules, tests that mirror them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from deployer.host.agent import SHARED as AGENT_SHARES
from tests.paths import DOCS, ROOT

PACKAGES = ("deployer", "deployer_rehearsal")
#: The rooms from the top down: each may import from those below it, never from one above or beside it in a circle.
ROOMS = (
    "cli",
    "report",
    "inspect",
    "deploy",
    "bench",
    "units",
    "host",
    "sglang",
    "config",
    "records",
)
#: Modules of the package itself that any room may use.
SHARED = {
    *("deployer", "deployer.errors", "deployer.resources", "deployer.text", "deployer.draining"),
    *("deployer.exposition", "deployer.metrics", "deployer.notice", "deployer.reach"),
}
#: Modules that may be short, and why.
SHORT = {
    "deployer.__main__": "`python -m deployer`",
}
LONGEST, SHORTEST = 400, 30


@cache
def modules() -> dict[str, Path]:
    """Every module of the product by its dotted name. The stand-in `sglang` package imports itself by that name."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """The product's modules that a module imports anywhere, under `if TYPE_CHECKING` and in functions too."""
    found = set()
    for node in ast.walk(ast.parse(modules()[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {
                name if (name := f"{node.module}.{alias.name}") in modules() else node.module for alias in node.names
            }
    return frozenset(name for name in found if name in modules())


def room(module: str) -> str:
    """The room of a module: the second part of its name."""
    return [*module.split("."), ""][1]


def within(package: str) -> list[str]:
    return [name for name in modules() if name == package or name.startswith(f"{package}.")]


@pytest.mark.parametrize("name", ROOMS)
def test_imports_run_downwards(name: str) -> None:
    below = {*ROOMS[ROOMS.index(name) :]}
    for module in within(f"deployer.{name}"):
        upward = {item for item in imports(module) if room(item) not in below} - SHARED
        assert not upward, f"{module} imports {', '.join(sorted(upward))}"


def test_every_room_has_its_place() -> None:
    folders = {path.parent.name for path in (ROOT / "deployer").glob("*/__init__.py")}
    assert folders == set(ROOMS)


def test_what_every_room_uses_uses_no_room() -> None:
    for module in SHARED:
        assert {room(item) for item in imports(module)} <= {"records", "errors", "resources", ""}, module


def test_no_module_imports_itself_by_a_detour() -> None:
    finished: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join((*way[way.index(module) :], module))
        if module not in finished:
            for item in sorted(imports(module)):
                visit(item, (*way, module))
            finished.add(module)

    for module in modules():
        visit(module, ())


@pytest.mark.parametrize(
    ("package", "others"),
    [
        ("deployer.sglang.log", set[str]()),
        ("deployer.bench.load", {"deployer.metrics"}),
        ("deployer.host.agent", {f"deployer.{name}" for name in AGENT_SHARES}),
        ("deployer.records", {"deployer.notice", "deployer.reach", "deployer.text"}),
    ],
)
def test_what_travels_or_stands_alone_imports_nothing_of_the_rest(package: str, others: set[str]) -> None:
    for module in within(package):
        foreign = {item for item in imports(module) if not item.startswith(package)} - others - {"deployer"}
        assert not foreign, f"{module} imports {', '.join(sorted(foreign))}"


#: What the command line takes from rooms that it has no decision to make with, and for what.
LOOKED_UP = {
    "deployer.host.connect": "the way to a host, which it hands to a session",
    "deployer.host.ahead": "a connection that is begun before the configuration is read",
    "deployer.host.client": "the type of a connected host",
    "deployer.host.protocol": "the type of a connection",
    "deployer.sglang.rules": "`check --explain` prints a rule",
    "deployer.sglang.flags.versions": "`profiles` names the version whose flags it shows",
    "deployer.sglang.profile_list": "`profiles` prints it",
}


@pytest.mark.parametrize("module", within("deployer.cli"))
def test_the_command_line_parses_calls_and_shows(module: str) -> None:
    deciding = {item for item in imports(module) if room(item) in ("bench", "units", "host", "sglang")}
    assert deciding <= set(LOOKED_UP), module
    for node in ast.walk(ast.parse(modules()[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            branches = sum(isinstance(part, (ast.If, ast.For, ast.While, ast.Try)) for part in ast.walk(node))
            assert branches <= 8, f"{module}.{node.name} has {branches} branches: what it decides belongs below"


@pytest.mark.parametrize("module", sorted(modules()))
def test_a_module_is_a_page_or_a_few(module: str) -> None:
    path = modules()[module]
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST, f"{module} has {lines} lines: it wants two names"
    if path.name not in ("__init__.py", "__main__.py") and not module.startswith("deployer_rehearsal.engine"):
        assert lines >= SHORTEST or module in SHORT, f"{module} has {lines} lines: it belongs to another module"


@pytest.mark.parametrize("package", sorted(name for name in modules() if modules()[name].name == "__init__.py"))
def test_every_package_says_what_it_is(package: str) -> None:
    if not package.startswith("deployer_rehearsal.engine.sglang"):  # it stands in for somebody else's package
        assert ast.get_docstring(ast.parse(modules()[package].read_text(encoding="utf-8"))), package


def test_unit_tests_mirror_the_packages() -> None:
    unit = ROOT / "tests" / "unit"
    places = {".": ROOT / "deployer", "rehearsal": ROOT / "deployer_rehearsal", "tools": ROOT / "tools"}
    places["benchmarks"] = ROOT / "benchmarks"
    for folder in {path.parent for path in unit.rglob("test_*.py")}:
        name = str(folder.relative_to(unit))
        first, _, rest = name.partition("/")
        subject = places[first] / rest if first in places else places["."] / name
        assert subject.is_dir(), f"tests/unit/{name} tests no package"


def test_the_machine_is_a_practice_host_and_the_activity_a_rehearsal() -> None:
    for path in [*modules().values(), *DOCS.glob("*.md"), ROOT / "README.md", ROOT / "Makefile"]:
        assert "rehearsal host" not in " ".join(path.read_text().lower().split()), path
