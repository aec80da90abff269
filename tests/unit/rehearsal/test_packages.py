"""Packages that are not whole, by their records; and what becomes of a prepared engine that has such packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployer_rehearsal import sglang_env
from deployer_rehearsal.packages import damaged, forget_broken, half_installed, missing
from deployer_rehearsal.preparation import is_done, marker
from deployer_rehearsal.sglang_env import Environment, steps

TEXT = "x = 1\n"


def install(venv: Path, name: str, *, installer: str | None = "pip", version: str = "1") -> Path:
    """A package of one module, as pip installs it; returns the module."""
    packages = venv / "lib/python3.11/site-packages"
    info = packages / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    module = packages / name / "__init__.py"
    module.parent.mkdir()
    module.write_text(TEXT)
    (info / "RECORD").write_text(
        f"{name}/__init__.py,sha256=x,{len(TEXT)}\n{name}/__pycache__/x.pyc,,\n{info.name}/RECORD,,\n"
    )
    if installer:
        (info / "INSTALLER").write_text(installer)
    return module


def names(infos: list[Path]) -> list[str]:
    return sorted(info.name for info in infos)


def test_packages_are_whole_half_installed_or_damaged(tmp_path: Path) -> None:
    for name in ("whole", "cut", "gone", "changed"):
        install(tmp_path, name)
    install(tmp_path, "half", installer=None)
    packages = tmp_path / "lib/python3.11/site-packages"
    (packages / "cut/__init__.py").write_text("x")
    (packages / "gone/__init__.py").unlink()
    (packages / "changed/__init__.py").write_text(TEXT + TEXT)
    assert names(half_installed(tmp_path)) == ["half-1.dist-info"]
    known = {"changed/__init__.py"}
    assert names(damaged(tmp_path, changed=known)) == ["cut-1.dist-info", "gone-1.dist-info"]
    assert missing(tmp_path, ("whole", "none")) == ["none"]
    assert forget_broken(tmp_path, changed=known) == ["cut", "gone", "half"]
    assert forget_broken(tmp_path, changed=known) == []
    assert names(list(packages.glob("*.dist-info"))) == ["changed-1.dist-info", "whole-1.dist-info"]
    assert forget_broken(tmp_path / "none") == []


@pytest.mark.parametrize("record", [None, "x,", 'a"b,sha256=x,1\n', "whole/__init__.py,sha256=x,many\n"])
def test_a_record_that_cannot_be_read_is_damage(tmp_path: Path, record: str | None) -> None:
    install(tmp_path, "whole")
    path = next(tmp_path.glob("lib/*/*/whole-1.dist-info")) / "RECORD"
    path.unlink()
    if record is not None:
        path.write_text(record)
    assert names(damaged(tmp_path)) == ["whole-1.dist-info"]


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """An engine of which all steps are marked as done, and that looks whole."""
    monkeypatch.setenv("DEPLOYER_REHEARSAL_DIR", str(tmp_path))
    monkeypatch.setattr(sglang_env, "require_processor", lambda: None)
    monkeypatch.setattr(sglang_env, "_probe", lambda file: ("", sglang_env.Interpreter(Path(file), tmp_path)))
    where = sglang_env.environment()
    for name in ("torch", "torchvision", "sglang"):
        install(where.venv, name)
    plugin = install(where.venv, "sglang_cpu", installer="deployer")
    (plugin.parents[1] / "sglang_cpu.py").write_text((Path(sglang_env.__file__).parent / "sglang_cpu.py").read_text())
    where.model.mkdir()
    (where.folder / "done").mkdir()
    for step in steps(where, ""):
        marker(where.folder, step).write_text(f'{{"fingerprint": "{step.fingerprint}"}}')
    return where


def left(monkeypatch: pytest.MonkeyPatch, where: Environment) -> tuple[list[str], list[str]]:
    """The steps that `ensure` would make again, and what it says."""
    said: list[str] = []
    monkeypatch.setattr(sglang_env, "prepare", lambda *_, **__: None)
    sglang_env.ensure(said.append)
    return [step.name for step in steps(where, "") if not is_done(where.folder, step)], said


def test_a_whole_engine_is_left_alone(monkeypatch: pytest.MonkeyPatch, prepared: Environment) -> None:
    assert left(monkeypatch, prepared) == ([], [])


@pytest.mark.parametrize("file", ["torch/__init__.py", "sglang-1.dist-info", "sglang_cpu.py"])
def test_a_damaged_package_is_installed_again(
    monkeypatch: pytest.MonkeyPatch, prepared: Environment, file: str
) -> None:
    path = prepared.venv / "lib/python3.11/site-packages" / file
    path.rename(path.with_name("moved"))
    undone, said = left(monkeypatch, prepared)
    assert undone == ["torch"]  # and with it all that follow
    name = file.partition("/")[0].partition("-")[0].removesuffix(".py")
    assert said[0] == f"damaged packages of the prepared SGLang: {name}"


def test_damage_is_found_beside_other_work(monkeypatch: pytest.MonkeyPatch, prepared: Environment) -> None:
    plan = steps(prepared, "")
    assert [step.name for step in plan[: sglang_env._INSTALLED]][-1] == "plugin"
    marker(prepared.folder, plan[-2]).unlink()
    (prepared.venv / "lib/python3.11/site-packages/torch/__init__.py").unlink()
    assert left(monkeypatch, prepared)[0] == ["torch", "checkpoint"]


def test_a_lost_python_means_to_begin_again(monkeypatch: pytest.MonkeyPatch, prepared: Environment) -> None:
    monkeypatch.setattr(sglang_env, "_probe", lambda file: ("cannot be run", None))
    monkeypatch.setattr(sglang_env, "find_python", lambda: sglang_env.Interpreter(Path("/x/python"), Path("/x")))
    assert left(monkeypatch, prepared)[0] == ["venv"]
