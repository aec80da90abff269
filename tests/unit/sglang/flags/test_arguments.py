from __future__ import annotations

from math import gcd
from pathlib import Path
from typing import Any

import pytest

from deployer.config.profile import list_profiles, load_profile, profile_folders
from deployer.errors import ConfigError
from deployer.sglang.flags.arguments import CONCEPTS, OWNED, log_interval
from deployer.sglang.flags.versions import known_versions
from deployer.sglang.profile_list import profile_listing
from tests.unit.sglang.flags.builders import PYTHON, launch_arguments, parser, profile, service
from tests.unit.sglang.flags.test_versions import KNOWN

SHIPPED = [shipped.name for shipped in list_profiles(profile_folders())]
#: Shipped profiles a version cannot run, and the version named as the first that can.
LACKING = {
    **{(version, name): "0.5.9" for version in KNOWN[:3] for name in ("pp2-async", "pp8-async", "pp8-async-mb64")},
    ("0.4.6.post5", "ep4-tp2"): "0.5.2",
}
#: What a concept's argument is called in a version's parser.
SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "expert_parallel_size")


@pytest.mark.parametrize("version", KNOWN)
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_are_understood_by_every_version(name: str, version: str) -> None:
    chosen = load_profile(name, profile_folders())
    if first := LACKING.get((version, name)):
        with pytest.raises(ConfigError, match=f"SGLang {first} is the first known version"):
            launch_arguments(chosen, service(), version)
        return
    arguments = launch_arguments(chosen, service(), version)
    assert arguments.argv[:3] == [PYTHON, "-m", "sglang.launch_server"]
    parsed = vars(parser(version).parse_args(arguments.argv[3:]))
    assert parsed["model_path"] == "/models/kimi"
    assert (parsed["host"], parsed["port"]) == ("127.0.0.1", 30000)
    tp, pp, ep = (parsed.get(long, parsed.get(f"{long[0]}p_size", 1)) for long in SIZES)
    assert (tp, pp, ep) == (chosen.parallelism.tp, chosen.parallelism.pp, chosen.parallelism.ep)
    assert parsed.get("pp_async_batch_depth", 0) == (chosen.pipeline.async_batch_depth or 0)
    micro = parsed.get("pp_max_micro_batch_size", parsed.get("max_micro_batch_size"))
    assert micro == chosen.pipeline.max_micro_batch_size
    assert parsed.get("max_running_requests") == chosen.limits.max_running_requests
    largest = parsed.get("cuda_graph_max_bs", parsed.get("cuda_graph_max_bs_decode"))
    assert largest == (chosen.cuda_graph.max_batch_size if chosen.cuda_graph.enabled else None)
    off = parsed.get("disable_cuda_graph", parsed.get("disable_decode_cuda_graph", False))
    assert off is not chosen.cuda_graph.enabled
    if pp > 1:
        assert gcd(parsed["decode_log_interval"], chosen.loop_size) == 1
    # What was parsed is what the server will be asked to have, by the names it shows.
    shown = {
        "tensor_parallel_size": "tp_size",
        "pipeline_parallel_size": "pp_size",
        "expert_parallel_size": "ep_size",
    }
    assert {shown.get(key, key): value for key, value in parsed.items()} == arguments.requested


@pytest.mark.parametrize(
    ("tables", "version", "words"),
    [
        ({"cuda_graph": {"max_batch_size": 8}}, "0.5.12.post1", ["--cuda-graph-max-bs", "8"]),
        ({"cuda_graph": {"max_batch_size": 8}}, "0.5.16", ["--cuda-graph-max-bs-decode", "8"]),
        ({"cuda_graph": {"max_batch_size": 8}}, "0.5.23", ["--cuda-graph-max-bs-decode", "8"]),
        ({"cuda_graph": {"enabled": False}}, "0.5.12.post1", ["--disable-cuda-graph"]),
        ({"cuda_graph": {"enabled": False}}, "0.5.23", ["--disable-decode-cuda-graph", "--disable-prefill-cuda-graph"]),
        ({"pipeline": {"max_micro_batch_size": 4}}, "0.5.2", ["--max-micro-batch-size", "4"]),
        ({"pipeline": {"max_micro_batch_size": 4}}, "0.5.5", ["--pp-max-micro-batch-size", "4"]),
        ({"parallelism": {"tp": 8, "dp": 4, "dp_attention": True}}, "0.5.16",
         ["--dp-size", "4", "--enable-dp-attention"]),
        ({"parallelism": {"tp": 8, "dp": 4, "dp_attention": True}}, "0.5.23", ["--attn-dp-size", "4"]),
        ({"parallelism": {"dp": 4}}, "0.5.23", ["--dp-size", "4"]),
        ({"parallelism": {"tp": 8, "ep": 8}}, "0.4.6.post5", ["--ep-size", "8", "--enable-ep-moe"]),
        ({"parallelism": {"tp": 8, "ep": 8}, "moe": {"a2a_backend": "deepep", "runner_backend": "auto"}}, "0.4.6.post5",
         ["--ep-size", "8", "--enable-deepep-moe"]),
        ({"parallelism": {"tp": 8, "ep": 4}}, "0.5.2", ["--ep-size", "4"]),
        ({"moe": {"a2a_backend": "mooncake"}}, "0.5.9", ["--moe-a2a-backend", "mooncake"]),
        ({"memory": {"mem_fraction_static": 0.9, "chunked_prefill_size": -1}}, "0.5.9",
         ["--mem-fraction-static", "0.9", "--chunked-prefill-size", "-1"]),
        ({"memory": {"kv_cache_dtype": "fp8_e4m3"}}, "0.5.9", ["--kv-cache-dtype", "fp8_e4m3"]),
        ({"attention": {"backend": "fa3"}, "quantization": "fp8"}, "0.5.2",
         ["--attention-backend", "fa3", "--quantization", "fp8"]),
        ({"limits": {"max_total_tokens": 5, "context_length": 6}}, "0.5.23",
         ["--max-total-tokens", "5", "--context-length", "6"]),
    ],
)  # fmt: skip
def test_spelling_by_version(tables: dict[str, Any], version: str, words: list[str]) -> None:
    argv = launch_arguments(profile(**tables), service(), version).argv
    place = argv.index(words[0])
    assert argv[place : place + len(words)] == words
    parser(version).parse_args(argv[3:])


def test_a_service_limits_profiles_that_say_nothing_themselves() -> None:
    small = service(limits={"max_total_tokens": 5, "context_length": 6})
    argv = launch_arguments(profile(limits={"context_length": 7}), small, "0.5.23").argv
    assert argv[argv.index("--max-total-tokens") + 1] == "5"
    assert argv[argv.index("--context-length") + 1] == "7"
    assert "--max-running-requests" not in argv


@pytest.mark.parametrize(
    ("tables", "version", "words"),
    [
        ({"parallelism": {"pp": 2}, "pipeline": {"async_batch_depth": 2}}, "0.5.5",
         ["pipeline.async_batch_depth", "no --pp-async-batch-depth", "0.5.9"]),
        ({"moe": {"a2a_backend": "mooncake"}}, "0.4.6.post5", ["no --moe-a2a-backend", "0.5.2"]),
        ({"moe": {"runner_backend": "triton"}}, "0.4.6.post5", ["no --moe-runner-backend", "0.5.2"]),
        ({"moe": {"runner_backend": "marlinn"}}, "0.5.23", ["moe.runner_backend", "did you mean marlin?"]),
        ({"attention": {"backend": "cutlass_mla"}}, "0.5.23", ["attention.backend", "not a choice"]),
        ({"parallelism": {"tp": 8, "ep": 3}}, "0.5.23", ["parallelism.ep", "does not divide tp = 8"]),
        ({"parallelism": {"tp": 8, "dp": 3, "dp_attention": True}}, "0.5.23", ["parallelism.dp", "divide tp = 8"]),
        ({"parallelism": {"nnodes": 2}}, "0.5.23", ["parallelism.nnodes", "one host"]),
        ({"pipeline": {"async_batch_depth": 2}}, "0.5.23", ["pipeline.async_batch_depth", "pp is 1"]),
        ({"limits": {"max_running_requests": 4}, "pipeline": {"max_micro_batch_size": 8}}, "0.5.23",
         ["pipeline.max_micro_batch_size", "more than"]),
    ],
)  # fmt: skip
def test_what_cannot_be(tables: dict[str, Any], version: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        launch_arguments(profile(**tables), service(), version)
    for word in ("profile test for service kimi", *words):
        assert word in caught.value.message


def test_all_problems_at_once() -> None:
    wrong = profile(parallelism={"tp": 8, "ep": 3}, attention={"backend": "x"}, extra_args={"foo": 1})
    with pytest.raises(ConfigError, match="3 problems"):
        launch_arguments(wrong, service(), "0.5.23")


def test_names_and_order_are_stable() -> None:
    one = profile(extra_args={"trust-remote-code": True, "log-level": "info"})
    two = profile(extra_args={"log_level": "info", "trust_remote_code": True})
    first = launch_arguments(one, service(served_model_name="k"), "0.5.9").argv
    assert first == launch_arguments(two, service(served_model_name="k"), "0.5.9").argv
    assert first[3:7] == ["--model-path", "/models/kimi", "--served-model-name", "k"]
    assert first[-3:] == ["--log-level", "info", "--trust-remote-code"]


def test_service_arguments_win() -> None:
    argv = launch_arguments(
        profile(extra_args={"log-level": "info"}), service(extra_args={"log-level": "debug"}), "0.5.9"
    ).argv
    assert argv[argv.index("--log-level") + 1] == "debug"
    assert argv.count("--log-level") == 1


def test_changes_are_allowed_by_known_names_only() -> None:
    assert launch_arguments(profile(verify={"allow_changed": ["page_size"]}), service(), "0.5.23").argv
    # A name of another version is one, too: profiles outlive versions.
    assert launch_arguments(profile(verify={"allow_changed": ["cuda_graph_max_bs"]}), service(), "0.5.23").argv
    with pytest.raises(ConfigError) as caught:
        launch_arguments(profile(verify={"allow_changed": ["page_sizes", "model_path"]}), service(), "0.5.23")
    assert "verify.allow_changed[0]: SGLang has no argument page_sizes; did you mean page_size?" in caught.value.message
    assert "verify.allow_changed[1]: model_path must be as requested" in caught.value.message


def test_log_interval() -> None:
    for loop in range(1, 200):
        assert gcd(log_interval(loop), loop) == 1
        assert 40 <= log_interval(loop) < 50
    assert (log_interval(16), log_interval(9)) == (41, 40)
    chosen = profile(parallelism={"pp": 8}, extra_args={"decode-log-interval": 7})
    argv = launch_arguments(chosen, service(), "0.5.9").argv
    assert argv.count("--decode-log-interval") == 1
    assert argv[argv.index("--decode-log-interval") + 1] == "7"
    assert "--decode-log-interval" not in launch_arguments(profile(), service(), "0.5.9").argv


def test_api_key_goes_to_the_config_file() -> None:
    keyed = service(api_key={"env": "KEY"})
    for version in KNOWN[2:]:
        arguments = launch_arguments(profile(), keyed, version)
        assert list(arguments.secret_config) == ["api-key"]
        assert "--api-key" not in arguments.argv
    for version in KNOWN[:2]:
        with pytest.raises(ConfigError, match=r"api_key: SGLang .* only on its command line.* 0\.5\.5 is the first"):
            launch_arguments(profile(), keyed, version)


def test_preview_without_a_version() -> None:
    arguments = launch_arguments(profile(), service(), None)
    assert arguments.notes == ["the SGLang version on the host is unknown; flags are those of 0.5.23"]
    assert "0.5.10.post1" in launch_arguments(profile(), service(), "0.5.11").notes[0]


def test_every_owned_option_exists_somewhere() -> None:
    everything = {name for version in known_versions() for name in parser(str(version))._option_string_actions}
    assert set(OWNED) <= everything
    assert len(CONCEPTS) == len(set(CONCEPTS))


def test_rows() -> None:
    rows = {row["name"]: row for row in profile_listing(profile_folders(), "0.5.5")}
    assert sorted(rows) == sorted(SHIPPED)
    assert (rows["tp8"]["arguments"] or [])[:2] == ["--tp-size", "8"]
    assert rows["pp8-async"]["arguments"] is None
    assert "0.5.9" in (rows["pp8-async"]["problem"] or "")
    assert rows["pp8-async-mb64"]["extends"] == ["pp8-async", "pp8"]


def test_a_broken_profile_does_not_hide_the_others(tmp_path: Path) -> None:
    good = {row["name"]: row for row in profile_listing(profile_folders(), "0.5.5")}
    (tmp_path / "sp ace.toml").write_text("[parallelism]\ntp = 2\n")
    (tmp_path / "broken.toml").write_text("nonsense = 1\n")
    rows = {row["name"]: row for row in profile_listing(profile_folders(tmp_path), "0.5.5")}
    assert {name: rows[name] for name in good} == good
    assert rows.keys() - good.keys() == {"sp ace", "broken"}
    assert all(row.keys() == rows["tp8"].keys() for row in rows.values())
    assert "unknown key" in str(rows["broken"]["problem"])
    assert "is not a valid profile name" in str(rows["sp ace"]["problem"])
    with pytest.raises(ConfigError):
        list_profiles(profile_folders(tmp_path))


@pytest.mark.parametrize("version", ["abc", "", "0.0.1"])
def test_listings_need_a_version(version: str) -> None:
    with pytest.raises(ConfigError) as caught:
        profile_listing([], version)
    assert caught.value.exit_code == 2
