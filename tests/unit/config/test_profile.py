from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from deployer.config.inventory import load_inventory
from deployer.config.profile import (
    Profile,
    effective_bench,
    effective_gate,
    list_profiles,
    load_profile,
    profile_folders,
    profile_names,
)
from deployer.errors import ConfigError
from deployer.resources import shipped
from tests.unit.config.conftest import message

Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def saver(name: str, text: str, folder: str = "site") -> Path:
        path = tmp_path / folder / f"{name}.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path.parent

    return saver


def refused(name: str, *folders: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_profile(name, folders)
    return message(caught)


def test_extends_is_merged(save: Save) -> None:
    save(
        "base",
        "[parallelism]\ntp = 2\npp = 2\n[gate]\nsingle_stream_tok_s = 1\n[extra_args]\na = [1, 2]\nb = 1\n",
    )
    folder = save("child", 'description = "d"\nextends = "base"\n[parallelism]\npp = 4\n[extra_args]\na = [3]\n')
    profile = load_profile("child", [folder])
    assert (profile.parallelism.tp, profile.parallelism.pp, profile.description) == (2, 4, "d")
    assert profile.gate == {"single_stream_tok_s": 1}
    assert profile.extra_args == {"a": [3], "b": 1}
    assert (profile.name, profile.chain, profile.extends) == ("child", ["child", "base"], "base")


def test_circle(save: Save) -> None:
    save("a", 'extends = "b"\n')
    folder = save("b", 'extends = "a"\n')
    assert "a -> b -> a" in refused("a", folder)
    folder = save("own", 'extends = "own"\n')
    said = refused("own", folder)
    assert "in a circle: own -> own" in said
    assert "did you mean" not in said


def test_site_profile_changes_the_shipped_one_of_its_name(save: Save) -> None:
    folder = save("tp8", 'extends = "tp8"\n[limits]\nmax_running_requests = 7\n')
    profile = load_profile("tp8", profile_folders(folder))
    assert (profile.parallelism.tp, profile.limits.max_running_requests) == (8, 7)
    assert profile.chain == ["tp8", "tp8"]


def test_unknown_names(save: Save) -> None:
    folder = save("pp8-async", 'extends = "pp9"\n')
    save("pp8", "[parallelism]\npp = 8\n")
    said = refused("pp8-async", folder)
    assert str(folder / "pp8-async.toml") in said
    assert 'extends: there is no profile "pp9"; did you mean pp8?' in said
    assert "did you mean pp8-async?" in refused("pp8-asyn", folder)
    assert "is not a valid profile name" in refused("../../etc/passwd", folder)


@pytest.mark.parametrize("name", ["sp ace", "-dash", "Upper", "a" * 41])
def test_files_whose_names_are_not_allowed(save: Save, name: str) -> None:
    folder = save(name, "[parallelism]\ntp = 2\n")
    said = refused(name, folder)
    assert "lower-case letters, digits, - and _ (40 at most)" in said
    assert "did you mean" not in said
    save("child", f'extends = "{name}"\n')
    assert "extends: " in refused("child", folder)


def test_the_site_folder_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "none", tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="DEPLOYER_PROFILES") as caught:
            profile_folders(folder)
        assert str(folder) in message(caught)
    assert profile_folders(tmp_path)[0] == tmp_path


@pytest.mark.timeout(10)
def test_profiles_are_regular_files(save: Save, tmp_path: Path) -> None:
    folder = save("good", "\ufeff[parallelism]\ntp = 2\n")
    assert load_profile("good", [folder]).parallelism.tp == 2
    os.mkfifo(folder / "pipe.toml")
    assert "not a regular file" in refused("pipe", folder)
    (folder / "zero.toml").symlink_to("/dev/zero")
    assert "not a regular file" in refused("zero", folder)


@pytest.mark.parametrize(
    ("text", "place", "word"),
    [
        ("[paralelism]\ntp = 1\n", "paralelism", "parallelism?"),
        ("[parallelism]\ntpp = 1\n", "parallelism.tpp", "tp?"),
        ("[limits]\nmax_total_tokens = 9999999999999\n", "limits.max_total_tokens", "less than or equal to 1099"),
        ('quantization = "-x"\n', "quantization", "a word of letters"),
        ("[bench]\nlevels = []\n", "bench.levels", "too few items (minimum 1)"),
        ("[bench]\nrepeats = 0\n", "bench.repeats", "greater than or equal to 1"),
        ("[bench]\nbudget = 0.5\n", "bench.budget", "greater than or equal to 1"),
        ("[relative_gate]\nmax_loss = 0\n", "relative_gate.max_loss", "greater than 0"),
        ('[gate]\n"aggregate_tok_s@0" = 1\n', 'gate."aggregate_tok_s@0"', "expected 1 to 4096"),
        ('[gate]\n"ttft_p50_s@4097" = 1\n', 'gate."ttft_p50_s@4097"', "expected 1 to 4096"),
        ("[parallelism]\ntp = 0\n", "parallelism.tp", "greater than or equal to 1"),
        ("[pipeline]\nmax_micro_batch_size = \"al\"\n", "pipeline.max_micro_batch_size", "auto"),
        ("[memory]\nmem_fraction_static = 1.9\n", "memory.mem_fraction_static", "less than 1"),
        ("[cuda_graph]\nenabled = 1\n", "cuda_graph.enabled", "true or false"),
        ("name = \"x\"\n", "name", "unknown key"),
        ("environment.HF_TOKEN = \"x\"\n", "environment.HF_TOKEN", "secret"),
        ("environment.A = 1\n", "environment.A", "text"),
        ("bench.level = [1]\n", "bench.level", "levels?"),
        ("extends = 3\n", "extends", "text in quotes"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_own_file(save: Save, text: str, place: str, word: str) -> None:
    folder = save("parent", text)
    save("child", 'extends = "parent"\n')
    said = refused("child", folder)
    assert str(folder / "parent.toml") in said
    assert f"{place}: " in said
    assert word in said


def test_service_and_profile_together(save: Save, tmp_path: Path) -> None:
    folder = save("p", "[bench]\nlevels = [4]\n[gate]\nsingle_stream_tok_s = 3\n")
    (tmp_path / "i.toml").write_text(
        '[hosts.h]\n[services.s]\nhost = "h"\nmodel = "/m"\nengine.python = "/p"\nbench.singles = 5\n'
        'gate = {single_stream_tok_s = 1, "ttft_p95_s@4" = 2}\n'
    )
    profile, service = load_profile("p", [folder]), load_inventory(tmp_path / "i.toml").service()
    assert (effective_bench(service, profile).levels, effective_bench(service, profile).singles) == ([4], 5)
    assert effective_gate(service, profile) == {"single_stream_tok_s": 3, "ttft_p95_s@4": 2}


def test_gpus_and_loop() -> None:
    profile = Profile.model_validate({"name": "x", "parallelism": {"tp": 2, "pp": 2, "dp": 2}})
    assert (profile.gpus, profile.loop_size) == (8, 2)
    inside = Profile.model_validate(
        {
            "name": "x",
            "parallelism": {"tp": 4, "dp": 2, "dp_attention": True},
            "pipeline": {"async_batch_depth": 3},
        }
    )
    assert (inside.gpus, inside.loop_size) == (4, 4)


def test_shipped_profiles() -> None:
    folders = profile_folders()
    names = ["ep4-tp2", "ep8", "pp2", "pp2-async", "pp8", "pp8-async", "pp8-async-mb64", "tp1", "tp2", "tp8"]
    assert profile_names(folders) == names
    profiles = {profile.name: profile for profile in list_profiles(folders)}
    assert all(profile.description for profile in profiles.values())
    asynchronous = profiles["pp8-async"]
    assert asynchronous.gate == {"single_stream_tok_s": 30.0, "aggregate_tok_s@32": 230.0}
    assert (asynchronous.loop_size, asynchronous.cuda_graph.max_batch_size) == (16, 8)
    assert not profiles["pp8"].cuda_graph.enabled
    # A gate on a level that a short benchmark does not run would never be met.
    assert {key.partition("@")[2] for p in profiles.values() for key in p.gate} <= {"", "8", "32"}


def test_shipped_inventories_are_valid() -> None:
    for path in shipped("inventories").glob("*.toml"):
        assert load_inventory(path).services


def test_a_missing_folder_has_no_profiles(tmp_path: Path) -> None:
    assert profile_names([tmp_path / "none"]) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError):
        profile_names([tmp_path / "file"])
