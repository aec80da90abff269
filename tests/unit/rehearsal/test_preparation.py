"""Preparing something step by step: what is left, what is made again, and what is refused before anything is made."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from deployer.errors import HostError, Interrupted, PreflightRefused, UsageError
from deployer_rehearsal import commands, container, hosts, machine, preparation, sets, sglang_env
from deployer_rehearsal.preparation import Step, complaint, is_done, locked, marker, pending, prepare
from deployer_rehearsal.sglang_env import Environment, require_disk, steps

MOUNTS_1 = "cgroup /c/cpu cgroup rw,cpu 0 0\ncgroup /c/memory cgroup rw,memory 0 0\ncgroup2 /c/unified cgroup2 rw 0 0\n"
GROUPS_1 = "4:memory:/deployer-rehearsal/n\n1:cpu:/deployer-rehearsal/n\n0::/deployer-rehearsal/n/init.scope\n"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unit tests sync no disks."""
    monkeypatch.setattr(machine, "run", lambda argv, **more: "")


def plan(folder: Path, made: list[str], second: str = "1") -> list[Step]:
    """Three steps that note that they were made."""

    def step(name: str, made_from: str) -> Step:
        return Step(
            name,
            f"making {name}",
            made_from,
            files={folder / name: made_from},
            before=lambda: made.append(name),
        )

    return [step("one", "1"), step("two", second), step("three", "1")]


def test_a_preparation_is_made_once(tmp_path: Path) -> None:
    made: list[str] = []
    said: list[str] = []
    folder = tmp_path / "a" / "b"
    prepare(folder, plan(folder, made), say=said.append)
    assert made == ["one", "two", "three"]
    assert [line.split(";")[0] for line in said[:2]] == ["1/3 making one", "1/3 done in 0 s"]
    said.clear()
    prepare(folder, plan(folder, made), say=said.append)
    assert (made, said) == (["one", "two", "three"], [])
    assert not (folder / "tmp").exists()


def test_it_goes_on_with_the_step_that_was_broken_off(tmp_path: Path) -> None:
    made: list[str] = []
    steps = plan(tmp_path, made)

    def power_cut() -> None:
        raise KeyboardInterrupt

    broken = [steps[0], Step("two", "making two", "1", before=power_cut), steps[2]]
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path, broken, say=lambda line: None)
    assert [step.name for step in pending(tmp_path, steps)] == ["two", "three"]
    said: list[str] = []
    prepare(tmp_path, steps, say=said.append)
    assert made == ["one", "two", "three"]
    assert said[0] == "continuing with step 2 of 3"


def test_a_changed_step_is_made_again_with_all_after_it(tmp_path: Path) -> None:
    made: list[str] = []
    prepare(tmp_path, plan(tmp_path, made), say=lambda line: None)
    changed = plan(tmp_path, made, second="2")
    assert [is_done(tmp_path, step) for step in changed] == [True, False, True]
    made.clear()
    prepare(tmp_path, changed, say=lambda line: None)
    assert made == ["two", "three"]
    assert (tmp_path / "two").read_text() == "2"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"fingerprint": 1}', "null"])
def test_a_damaged_marker_is_none(tmp_path: Path, text: str) -> None:
    steps = plan(tmp_path, [])
    prepare(tmp_path, steps, say=lambda line: None)
    marker(tmp_path, steps[1]).write_text(text)
    assert [step.name for step in pending(tmp_path, steps)] == ["two", "three"]


def test_a_marker_that_was_not_synced_is_good_for_its_boot_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    steps = plan(tmp_path, made)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path, [steps[0], Step("two", "", "1", before=stop)], say=lambda line: None)
    assert is_done(tmp_path, steps[0])
    with monkeypatch.context() as later:
        later.setattr(preparation, "_boot", lambda: "another")
        assert not is_done(tmp_path, steps[0])
    prepare(tmp_path, steps, say=lambda line: None)
    monkeypatch.setattr(preparation, "_boot", lambda: "another")
    assert [is_done(tmp_path, step) for step in steps] == [True, True, True]


def test_a_result_that_was_damaged_is_made_again(tmp_path: Path) -> None:
    made: list[str] = []
    step = replace(plan(tmp_path / "files", made)[0], result=tmp_path / "files")
    prepare(tmp_path, [step], say=lambda line: None)
    assert is_done(tmp_path, step)
    for damage in ("x", "", None):  # as long as before, shorter, gone
        made.clear()
        (tmp_path / "files/one").unlink()
        if damage is not None:
            (tmp_path / "files/one").write_text(damage)
        assert not is_done(tmp_path, step)
        prepare(tmp_path, [step], say=lambda line: None)
        assert (made, (tmp_path / "files/one").read_text()) == (["one"], "1")


def test_steps_that_were_made_but_not_synced_are_synced_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def stop(*_: object, **__: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as busy:
        busy.setattr(machine, "run", stop)  # Ctrl-C while the disk is synced
        with pytest.raises(KeyboardInterrupt):
            prepare(tmp_path, plan(tmp_path, made), say=lambda line: None)
    prepare(tmp_path, plan(tmp_path, made), say=lambda line: None)
    assert made == ["one", "two", "three"]
    monkeypatch.setattr(preparation, "_boot", lambda: "another")
    assert pending(tmp_path, plan(tmp_path, made)) == []


def test_nothing_of_a_removed_folder_is_left_and_who_waits_makes_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "engine"
    real = fcntl.flock
    removed: list[bool] = []

    def late(handle: int, how: int) -> None:
        real(handle, how)
        if not removed:  # somebody else had it until now
            removed.append(True)
            (folder / "done").mkdir()
            (folder / "link").symlink_to(tmp_path)
            preparation.remove(folder)
            assert not folder.exists()

    monkeypatch.setattr(fcntl, "flock", late)
    with locked(folder) as handle:
        assert os.path.samestat(os.fstat(handle), (folder / "lock").stat())
    assert tmp_path.is_dir()


def test_what_is_refused_is_not_begun(tmp_path: Path) -> None:
    made: list[str] = []

    def refuse(left: list[Step]) -> None:
        raise PreflightRefused(f"{len(left)} steps are too many")

    with pytest.raises(PreflightRefused, match="3 steps"):
        prepare(tmp_path / "new", plan(tmp_path, made), say=lambda line: None, check=refuse)
    assert made == []
    assert not (tmp_path / "new").exists()


def test_the_complaint_of_a_program_is_its_last_error() -> None:
    assert complaint("a\nERROR: no such version\nnotice: upgrade\n") == "ERROR: no such version"
    assert complaint("Traceback\nValueError: x\n\n") == "ValueError: x"
    assert complaint("") == "it printed nothing"


OFFLINE = """\
WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by \
'NewConnectionError('Failed to establish a new connection: [Errno 111] Connection refused')': /torch/
ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu (from versions: none)
ERROR: No matching distribution found for torch==2.13.0+cpu
"""
FULL = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
OTHERS = """\
ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu (from versions: 2.12.0, 2.13.0)
ERROR: No matching distribution found for torch==2.13.0+cpu
"""


def test_what_kept_pip_from_asking_is_said() -> None:
    assert complaint(OFFLINE).startswith(
        "ERROR: No matching distribution found for torch==2.13.0+cpu (connection broken by 'NewConnectionError('Failed"
    )
    assert "Connection refused" in complaint(OFFLINE)


def test_the_cuda_build_is_taken_only_where_there_is_no_other(tmp_path: Path) -> None:
    torch = {step.name: step for step in steps(Environment(tmp_path), "python3.11")}["torch"]
    assert [bool(re.search(torch.otherwise_if, log)) for log in (OTHERS, OFFLINE, FULL)] == [
        True,
        False,
        False,
    ]


# SGLang


def test_the_steps_do_not_depend_on_where_they_are_made(tmp_path: Path) -> None:
    here, there = (steps(Environment(tmp_path / name), f"/usr/bin/{name}") for name in ("a", "b"))
    assert [step.fingerprint for step in here] == [step.fingerprint for step in there]
    names = [step.name for step in here]
    assert " ".join(names) == "venv torch sglang requirements torchvision plugin checkpoint proof"


def test_torch_for_the_cpu_comes_first_and_the_plain_one_will_do(tmp_path: Path) -> None:
    torch = {step.name: step for step in steps(Environment(tmp_path), "python3.11")}["torch"]
    assert [argv[-1] for argv in torch.commands] == ["torch==2.13.0+cpu"]
    assert [argv[-1] for argv in torch.otherwise] == ["torch==2.13.0"]


def test_too_little_disk_says_how_much_and_where(tmp_path: Path) -> None:
    folder = tmp_path / "engines/sglang"
    plan = steps(Environment(folder), "python3.11")
    require_disk(folder, plan, plan, free=8 << 30)
    with pytest.raises(PreflightRefused) as caught:
        require_disk(folder, plan, plan, free=2 << 30)
    assert str(folder) in caught.value.message
    assert caught.value.message.endswith("2.1 GB are free there")
    assert caught.value.detail["needed_bytes"] > 3e9
    require_disk(folder, plan, plan[-3:], free=1 << 30)  # the large steps are done


def test_what_a_broken_off_step_has_written_is_not_needed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = steps(Environment(tmp_path), "python3.11")
    done, left = plan[:3], plan[3:]
    needed = sum(step.size for step in left) + max(step.size for step in left) // 3 + (100 << 20)
    begun = 700_000_000
    monkeypatch.setattr(sglang_env, "folder_size", lambda _: sum(step.size for step in done) + begun)
    require_disk(tmp_path, plan, left, free=needed - begun)
    with pytest.raises(PreflightRefused, match="free there or taken by the unfinished preparation"):
        require_disk(tmp_path, plan, left, free=needed - begun - 1)


def test_torch_for_cuda_is_known_to_be_larger(tmp_path: Path) -> None:
    torch = {step.name: step for step in steps(Environment(tmp_path), "python3.11")}["torch"]
    assert torch.otherwise_size > 4 * torch.size


def test_too_little_memory_is_refused() -> None:
    sglang_env.require_memory(2, meminfo="MemTotal: 9 kB\nMemAvailable:    8000000 kB\n")
    with pytest.raises(PreflightRefused, match=r"2 practice hosts with SGLang need 7.0 GB of memory, and 4.1 GB"):
        sglang_env.require_memory(2, meminfo="MemAvailable:    4000000 kB\n")


def test_another_processor_is_refused() -> None:
    sglang_env.require_processor("x86_64")
    with pytest.raises(PreflightRefused, match="aarch64"):
        sglang_env.require_processor("aarch64")


def test_the_engines_are_no_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYER_REHEARSAL_DIR", str(tmp_path))
    (tmp_path / "mine").mkdir()
    sglang_env.environment().folder.mkdir(parents=True)
    assert sets.all_sets() == ["mine"]


# Memory of a host


def test_the_memory_limit_of_a_host_is_found(tmp_path: Path) -> None:
    group = tmp_path / "c/memory/deployer-rehearsal/n"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("-1")
    mounts = MOUNTS_1.replace("/c/", f"{tmp_path}/c/")
    assert container.memory_limit_file(1, GROUPS_1, mounts) == group / "memory.limit_in_bytes"
    unified = tmp_path / "u/machine.slice/n.scope/payload"
    unified.mkdir(parents=True)
    (unified / "memory.max").write_text("max")
    groups = "0::/machine.slice/n.scope/payload/init.scope\n"
    assert container.memory_limit_file(1, groups, f"cgroup2 {tmp_path}/u cgroup2 rw 0 0\n") == unified / "memory.max"
    assert container.memory_limit_file(1, groups, "cgroup2 /nowhere cgroup2 rw 0 0\n") is None


# Commands


@pytest.fixture
def cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder with something prepared in it, and a caller who counts as root."""
    monkeypatch.setenv("DEPLOYER_REHEARSAL_DIR", str(tmp_path))
    monkeypatch.setattr(commands, "as_root", lambda: None)
    monkeypatch.setattr(machine, "require_root", lambda: None)
    folder = sglang_env.environment().folder
    folder.mkdir(parents=True)
    (folder / "large").write_bytes(b"x" * 2_000_000)
    return folder


def test_status_shows_what_is_prepared_and_clean_removes_it(cleaned: Path) -> None:
    shown = CliRunner().invoke(commands.rehearse, ["status"]).output
    assert f"sglang-0.5.23: 2 MB in {cleaned}, not finished" in shown
    assert "sglang-0.5.23: 2 MB" in CliRunner().invoke(commands.rehearse, ["clean"]).output
    assert not cleaned.exists()
    assert "no engine is prepared" in CliRunner().invoke(commands.rehearse, ["clean"]).output
    assert "sglang-0.5.23" not in CliRunner().invoke(commands.rehearse, ["status"]).output


def test_what_practice_hosts_run_on_is_not_removed(cleaned: Path) -> None:
    folder = sets.set_folder("mine")
    folder.mkdir()
    sets.SetRecord("mine", folder, "0.5.23", engine="sglang").save()
    failed = CliRunner().invoke(commands.rehearse, ["clean"])
    assert isinstance(failed.exception, UsageError)
    assert "in use by mine" in failed.exception.message
    assert failed.exception.remedy == "run `deployer rehearse down --name mine` first"
    assert cleaned.exists()
    assert hosts.sets_with("sglang") == ["mine"]
    assert hosts.sets_with("standin") == []


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.EROFS, "Read-only file system at /x/engines"),
        (errno.ENOSPC, "No space left on device at /x/engines"),
        (errno.ENOENT, None),
    ],
)
def test_a_disk_that_takes_nothing_is_said_and_a_fault_of_ours_stays_one(
    monkeypatch: pytest.MonkeyPatch, number: int, told: str | None
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number), "/x/engines")

    monkeypatch.setattr(commands, "as_root", fail)
    error = CliRunner().invoke(commands.rehearse, ["clean"]).exception
    if told is None:
        assert isinstance(error, OSError)
        return
    assert isinstance(error, HostError)
    assert told in error.message
    assert "DEPLOYER_REHEARSAL_DIR" in str(error.remedy)


def test_what_is_broken_off_can_be_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "as_root", stop)
    error = CliRunner().invoke(commands.rehearse, ["clean"]).exception
    assert isinstance(error, Interrupted)
    assert error.remedy == "run the same command again to continue from here"
