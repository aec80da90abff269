"""Whatever a profile, a service, a model or a host says, no rule raises, and what is found is one printable line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from deployer.config.profile import Profile
from deployer.sglang.flags.variables import spans
from deployer.sglang.flags.versions import flag_table, known_versions
from deployer.sglang.rules import Facts, GpuFacts, HostFacts, judge, model_shape
from tests.unit.sglang.rules.builders import GIB, KIMI, facts, gpus

FLAGS = sorted({name for version in known_versions() for name in flag_table(version.text).by_name})
WORDS = [
    "triton",
    "fa3",
    "trtllm_mla",
    "deepep",
    "mooncake",
    "none",
    "auto",
    "fp8_e5m2",
    "fp8",
    "normal",
    "EAGLE",
]
VARIABLES = (*sorted(spans())[::40], "NCCL_P2P_DISABLE", "HF_HUB_OFFLINE", "CUDA_DEVICE_ORDER", "SGLANG_X")
SIZES = [
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size", "n_routed_experts",
    "moe_intermediate_size", "max_position_embeddings", "kv_lora_rank", "qk_rope_head_dim", "rope_scaling",
    "quantization_config", "architectures", "auto_map", "text_config",
]  # fmt: skip

leaves = (
    st.integers(-2, 1024)
    | st.sampled_from([0, 1, 8, 64, 1_000_000])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.sampled_from(WORDS)
    | st.text(max_size=8)
)
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
)


def tables(model: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    """Tables with keys of a model, most of them left out, with values that its fields may or may not allow."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for name, field in model.model_fields.items():
        inner = field.annotation
        known = isinstance(inner, type) and issubclass(inner, BaseModel)
        fields[name] = tables(inner) if known else leaves  # type: ignore[arg-type]
    return st.fixed_dictionaries({}, optional=fields)


profiles = tables(Profile).map(
    lambda table: {key: value for key, value in table.items() if key not in ("name", "chain", "extends", "gate")}
)
flags = st.dictionaries(st.sampled_from(FLAGS) | st.text(max_size=12), anything, max_size=5)
variables = st.dictionaries(st.sampled_from(VARIABLES), st.sampled_from(["", "0", "1", "nan", "1,2", "x"]) | st.text())
configs = st.dictionaries(st.sampled_from(SIZES), anything | st.integers(1, 100_000), max_size=15)
hosts = st.builds(
    HostFacts,
    gpus=st.lists(
        st.builds(
            GpuFacts,
            st.sampled_from(["NVIDIA H200", "NVIDIA RTX PRO 6000 Blackwell", "NVIDIA L4"]) | st.text(),
            st.integers(0, 1 << 40),
            st.none() | st.tuples(st.integers(0, 20), st.integers(0, 9)),
        ),
        max_size=4,
    ).map(tuple),
    model=st.none() | configs.map(model_shape),
    weight_bytes=st.none() | st.integers(0, 1 << 45),
    packages=st.dictionaries(st.sampled_from(["torch", "transformers", "sgl-kernel"]), st.text(max_size=8)),
    python=st.none() | st.text(max_size=8) | st.just("3.10.1"),
    memory=st.none() | st.integers(0, 1 << 45),
)
#: Profiles in which most rules have something to look at.
PROFILES: list[dict[str, Any]] = [
    {"parallelism": {"pp": 8}, "pipeline": {"async_batch_depth": 8}, "limits": {"max_running_requests": 64}},
    {"parallelism": {"tp": 8, "ep": 4}, "moe": {"a2a_backend": "deepep"}, "attention": {"backend": "fa3"}},
    {"parallelism": {"tp": 8, "dp": 8, "dp_attention": True}, "memory": {"chunked_prefill_size": 4096}},
    {
        "parallelism": {"tp": 2, "pp": 4},
        "limits": {"context_length": 65_536},
        "attention": {"backend": "trtllm_mla"},
    },
]
versions = st.none() | st.sampled_from([version.text for version in known_versions()] + ["0.5.14", "0.9"])


def drop_wrong(table: dict[str, Any]) -> dict[str, Any]:
    """A profile's table without the values that its model refuses, so that most of what is drawn counts."""
    while True:
        try:
            Profile.model_validate({"name": "p", **table})
        except ValidationError as error:
            for problem in error.errors():
                inner: Any = table
                path = [part for part in problem["loc"] if not str(part).startswith("<")]
                for part in path[:-1]:
                    inner = inner.get(part, {}) if isinstance(inner, dict) else {}
                if isinstance(inner, dict):
                    inner.pop(str(path[-1]), None)
                if len(path) < 1 or (len(path) > 1 and not isinstance(inner, dict)):
                    table.pop(str(path[0]), None)
            continue
        return table


def look(made: Facts) -> None:
    """Ask all rules, and look at what they say."""
    for finding in judge(made).findings:
        assert finding.text.isprintable()
        assert finding.as_dict()["rule"] == finding.rule


@given(profiles, variables, versions)
def test_no_profile_makes_a_rule_raise(table: dict[str, Any], environment: dict[str, str], version: str | None) -> None:
    seen: dict[str, Any] = {"gpus": gpus(), "model": KIMI, "weight_bytes": 550 * GIB, "memory": 500 * GIB}
    look(facts(profile=drop_wrong(table), service={"environment": environment}, version=version, **seen))


@given(st.sampled_from(PROFILES), flags, variables)
def test_no_flag_makes_a_rule_raise(table: dict[str, Any], extra: dict[str, Any], environment: dict[str, str]) -> None:
    look(facts(profile={**table, "extra_args": extra}, service={"environment": environment}, model=KIMI))


@given(st.sampled_from(PROFILES), hosts)
def test_no_host_makes_a_rule_raise(table: dict[str, Any], seen: HostFacts) -> None:
    look(replace(facts(profile=table), seen=seen))
