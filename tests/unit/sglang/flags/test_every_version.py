"""One profile, every version: what the version's own parser reads is what the profile says, or it is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from deployer.config.profile import Profile, list_profiles, profile_folders
from deployer.errors import ConfigError
from deployer.sglang.flags.versions import flag_table, parse_version
from tests.unit.sglang.flags.builders import launch_arguments, parser, profile, service
from tests.unit.sglang.flags.test_versions import KNOWN

#: A concept -> what it is called in the parsers of the versions.
NAMES = {
    "tp": ("tensor_parallel_size", "tp_size"),
    "pp": ("pipeline_parallel_size", "pp_size"),
    "ep": ("expert_parallel_size", "ep_size"),
    "depth": ("pp_async_batch_depth",),
    "micro_batch": ("pp_max_micro_batch_size", "max_micro_batch_size"),
    "running": ("max_running_requests",),
    "tokens": ("max_total_tokens",),
    "context": ("context_length",),
    "fraction": ("mem_fraction_static",),
    "chunk": ("chunked_prefill_size",),
    "kv_type": ("kv_cache_dtype",),
    "attention": ("attention_backend",),
    "quantization": ("quantization",),
}


def read(version: str, argv: list[str]) -> dict[str, Any]:
    """What the version's parser, abbreviations and all, makes of a command line, by our concepts."""
    parsed = vars(parser(version, abbreviations=True).parse_args(argv))
    found: dict[str, Any] = {
        concept: next((parsed.pop(name) for name in names if name in parsed), None) for concept, names in NAMES.items()
    }
    for number in ("tokens", "context", "chunk"):  # later versions take 128K as well
        found[number] = int(found[number]) if found[number] is not None else None
    dp = parsed.pop("data_parallel_size", parsed.pop("dp_size", 1))
    groups = parsed.pop("attn_dp_size", dp if parsed.pop("enable_dp_attention", False) else 1)
    found["replicas"], found["groups"] = (1, groups) if groups > 1 else (dp, 1)
    found["graphs"] = not (parsed.pop("disable_cuda_graph", False) or parsed.pop("disable_decode_cuda_graph", False))
    parsed.pop("disable_prefill_cuda_graph", None)
    found["largest_graph"] = parsed.pop("cuda_graph_max_bs", parsed.pop("cuda_graph_max_bs_decode", None))
    deepep, on = parsed.pop("enable_deepep_moe", False), parsed.pop("enable_ep_moe", False)
    found["a2a"] = "deepep" if deepep else parsed.pop("moe_a2a_backend", None)
    found["runner"] = parsed.pop("moe_runner_backend", None)
    if parse_version(version) < parse_version("0.5.2"):
        assert ((found["ep"] or 1) > 1) <= (on or deepep), "expert parallelism has a size, but is not on"
    found["rest"] = {key: value for key, value in parsed.items() if key != "decode_log_interval"}
    return found


def meant(chosen: Profile, version: str) -> dict[str, Any]:
    """What the profile says, by our concepts."""
    sizes, micro = chosen.parallelism, chosen.pipeline.max_micro_batch_size
    old = parse_version(version) < parse_version("0.5.2")
    moe = chosen.moe
    return {
        "tp": sizes.tp,
        "pp": sizes.pp if sizes.pp > 1 else None,
        "ep": sizes.ep if sizes.ep > 1 else None,
        "depth": chosen.pipeline.async_batch_depth or None,
        "micro_batch": None if micro == "auto" else micro,
        "running": chosen.limits.max_running_requests,
        "tokens": chosen.limits.max_total_tokens,
        "context": chosen.limits.context_length,
        "fraction": chosen.memory.mem_fraction_static,
        "chunk": chosen.memory.chunked_prefill_size,
        "kv_type": chosen.memory.kv_cache_dtype,
        "attention": chosen.attention.backend,
        "quantization": chosen.quantization,
        "replicas": 1 if sizes.dp_attention else sizes.dp,
        "groups": sizes.dp if sizes.dp_attention else 1,
        "graphs": chosen.cuda_graph.enabled,
        "largest_graph": chosen.cuda_graph.max_batch_size if chosen.cuda_graph.enabled else None,
        "a2a": None if old and moe.a2a_backend == "none" else moe.a2a_backend,
        "runner": None if old and moe.runner_backend == "auto" else moe.runner_backend,
        "rest": {"model_path": "/models/kimi", "host": "127.0.0.1", "port": 30000},
    }


@pytest.mark.parametrize("version", KNOWN)
@pytest.mark.parametrize("chosen", list_profiles(profile_folders()), ids=lambda item: item.name)
def test_shipped_profiles(chosen: Profile, version: str) -> None:
    pipeline, sizes = chosen.pipeline, chosen.parallelism
    needs = "0.5.9" if pipeline.async_batch_depth else "0.5.2" if sizes.ep not in (1, sizes.tp) else KNOWN[0]
    if parse_version(version) < parse_version(needs):
        with pytest.raises(ConfigError, match=f"SGLang {needs} is the first known version that has"):
            launch_arguments(chosen, service(), version)
        return
    argv = launch_arguments(chosen, service(), version).argv
    assert read(version, argv[3:]) == meant(chosen, version)


def choices(option: str) -> st.SearchStrategy[str | None]:
    known = {str(value) for version in KNOWN for value in known_choices(version, option)}
    return st.none() | st.sampled_from(sorted(known))


def known_choices(version: str, option: str) -> tuple[Any, ...]:
    flag = flag_table(version).by_name.get(option)
    return (flag.choices or ()) if flag else ()


small = st.integers(1, 8)
profiles = st.builds(
    profile,
    parallelism=st.fixed_dictionaries(
        {}, optional={"tp": st.sampled_from([1, 2, 4, 8]), "pp": small, "dp": st.sampled_from([1, 2, 4]),
                      "ep": st.sampled_from([1, 2, 4, 8]), "dp_attention": st.booleans()},
    ),
    pipeline=st.fixed_dictionaries(
        {}, optional={"async_batch_depth": st.none() | st.integers(0, 16),
                      "max_micro_batch_size": st.none() | st.just("auto") | small},
    ),
    limits=st.fixed_dictionaries(
        {}, optional={"max_running_requests": st.integers(1, 10**6), "max_total_tokens": st.integers(1, 2**40),
                      "context_length": st.integers(1, 2**40)},
    ),
    cuda_graph=st.fixed_dictionaries({}, optional={"enabled": st.booleans(), "max_batch_size": st.integers(1, 512)}),
    memory=st.fixed_dictionaries(
        {}, optional={"mem_fraction_static": st.floats(0.001, 0.999), "chunked_prefill_size": st.integers(-1, 2**40),
                      "kv_cache_dtype": choices("--kv-cache-dtype")},
    ),
    attention=st.builds(lambda backend: {"backend": backend}, choices("--attention-backend")),
    moe=st.fixed_dictionaries(
        {}, optional={"a2a_backend": choices("--moe-a2a-backend"), "runner_backend": choices("--moe-runner-backend")}
    ),
    quantization=choices("--quantization"),
)  # fmt: skip


@given(profiles, st.sampled_from(KNOWN))
def test_any_profile(chosen: Profile, version: str) -> None:
    try:
        arguments = launch_arguments(chosen, service(), version)
    except ConfigError:
        event("refused")
        return
    if any("is not among the known choices" in note for note in arguments.notes):
        event("remarked")
        with pytest.raises(ValueError, match="invalid choice"):
            read(version, arguments.argv[3:])
        return
    event("rendered")
    assert read(version, arguments.argv[3:]) == meant(chosen, version)
    table = flag_table(version).by_name
    words = [word.partition("=")[0] for word in arguments.argv[3:] if word.startswith("--")]
    assert set(words) <= set(table), "only full names"


@pytest.mark.parametrize("asked", ["0.5.13", "0.5.20", "0.6.0"])
def test_between_and_beyond_the_known(asked: str) -> None:
    chosen = profile(cuda_graph={"max_batch_size": 8}, attention={"backend": "brand_new"})
    arguments = launch_arguments(chosen, service(), asked)
    assert arguments.notes[0].startswith(f"the flags of SGLang {asked} are not known exactly; those of ")
    assert "SGLang itself decides" in arguments.notes[1]
    with pytest.raises(ConfigError) as caught:
        launch_arguments(profile(extra_args={"brand-new": True}), service(), asked)
    assert f"SGLang {asked} (by the flags of {arguments.table.version}) has no --brand-new" in caught.value.message
    assert "deployer sglang learn" in (caught.value.remedy or "")
