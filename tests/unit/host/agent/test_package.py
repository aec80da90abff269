"""The agent as it is sent: one file of Python 3.8 and its standard library, modules in order."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from deployer.host import agent

FOLDER = Path(agent.__file__).parent
NAMES = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}


def test_every_module_is_packed_and_after_those_it_imports() -> None:
    assert set(agent.MODULES) == NAMES
    for place, name in enumerate(agent.MODULES):
        tree = ast.parse((FOLDER / f"{name}.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                needed = [node.module] if node.module else [item.name for item in node.names]
                for module in set(needed) & NAMES:
                    assert agent.MODULES.index(module) < place, f"{name} imports {module}"


def test_it_is_python_38_and_standard_library_only() -> None:
    ast.parse(agent.source(), feature_version=(3, 8))
    shared = {f"deployer.{name}": FOLDER.parents[1] / f"{name}.py" for name in agent.SHARED}
    for path in (*shared.values(), *(FOLDER / f"{name}.py" for name in agent.MODULES)):
        tree = ast.parse(path.read_text(), feature_version=(3, 8))
        for node in ast.walk(tree):
            modules = [item.name for item in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names = {module.partition(".")[0] for module in modules if module not in shared}
            assert names <= sys.stdlib_module_names | {""}


def test_only_the_machine_touches_systemd_the_journal_proc_and_the_driver() -> None:
    """What the other modules ask of a machine, a fake can answer."""
    foreign = (
        '"/proc',
        '"/sys',
        "subprocess",
        '"systemctl',
        '"journalctl',
        '"nvidia-smi"',
        "time.CLOCK_BOOTTIME",
    )
    for name in NAMES - {"machine", "procs"}:
        code = (FOLDER / f"{name}.py").read_text()
        allowed = {"base": {"subprocess"}, "run": {"subprocess"}}.get(name, set())
        assert {word for word in foreign if word in code} == allowed, name


def test_the_bootstrap_survives_any_shells_single_quotes() -> None:
    from deployer.host.channel import BOOTSTRAP

    assert not set("'\\!\n") & set(BOOTSTRAP)
    ast.parse(BOOTSTRAP)
