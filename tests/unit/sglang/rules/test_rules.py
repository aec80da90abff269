"""The rules: each with a case that trips it and one that does not; what holds for all of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from deployer.bench.load import spec, stats
from deployer.errors import ConfigError, UsageError
from deployer.report.check_view import rule_document
from deployer.resources import knowledge
from deployer.sglang.rules import (
    RULES,
    Need,
    Severity,
    find_rule,
    judge,
    launch_arguments,
    measuring,
    shape_problems,
)
from deployer.sglang.rules.base import KNOWLEDGE
from deployer.sglang.rules.graphs import capture_sizes
from deployer.sglang.rules.shape import ModelShape, layer_split, model_shape, overridden
from tests.paths import DOCS
from tests.unit.sglang.rules.builders import DENSE, GIB, KIMI, env, extra, facts, gpus, pp, tp
from tests.unit.sglang.rules.cases import CASES
from tools.reference.rules import reference

PAGE = DOCS / "rules.md"


def test_every_rule_has_its_knowledge_and_both_cases() -> None:
    assert list(knowledge(KNOWLEDGE)) == list(RULES)
    assert set(CASES) == set(RULES)


@pytest.mark.parametrize("rule", CASES)
def test_trips(rule: str) -> None:
    found = RULES[rule].findings(facts(**CASES[rule][0]))
    assert found
    for finding in found:
        assert finding.rule == rule
        assert finding.severity.rank >= RULES[rule].severity.rank
        assert finding.text == re.sub(r"\s+", " ", finding.text)
        assert finding.as_dict()["message"] == finding.message


@pytest.mark.parametrize("rule", CASES)
def test_does_not_trip(rule: str) -> None:
    given = facts(**CASES[rule][1])
    assert not RULES[rule].lacks(given), "the case must have all that the rule needs"
    assert RULES[rule].findings(given) == []


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_says_what_is_known_and_from_where(rule: str) -> None:
    known = RULES[rule]
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule)
    assert known.references
    assert len(known.about) > 60
    assert not known.remedy.endswith(".")
    assert known.about.endswith(".")


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.needs])
def test_a_rule_that_lacks_a_fact_says_nothing(rule: str) -> None:
    given = CASES[rule][0]
    sources: dict[Need, dict[str, Any]] = {
        Need.GPUS: {"gpus": ()},
        Need.MODEL: {"model": None},
        Need.WEIGHTS: {"weight_bytes": None},
        Need.PACKAGES: {"packages": {}},
        Need.MEMORY: {"memory": None},
        Need.VERSION: {"version": None},
    }
    for need in RULES[rule].needs:
        lacking = facts(**{**given, **sources[need]})
        assert RULES[rule].findings(lacking) == []
        assert need in judge(lacking, [RULES[rule]]).skipped[rule]


def test_findings_come_the_gravest_first() -> None:
    report = judge(
        facts(
            profile={"parallelism": {"tp": 8, "ep": 3}, "cuda_graph": {"enabled": False}},
            service={"gpus": [0]},
        )
    )
    ranks = [finding.severity.rank for finding in report.findings]
    assert ranks == sorted(ranks)
    assert {"ep-divides-tp", "too-few-gpus"} == {finding.rule for finding in report.of(Severity.ERROR)}


def test_a_place_with_an_error_of_a_rule_has_no_problem_of_rendering() -> None:
    report = judge(facts(service={"extra_args": {"mem-frac": 0.9, "frob": 1, "api-key": "x"}}))
    found = {(finding.rule, finding.place) for finding in report.blocking + report.of(Severity.ERROR)}
    assert found == {
        ("abbreviated-flag", "services.kimi.extra_args.mem-frac"),
        ("rendering", "services.kimi.extra_args.frob"),
        ("secret-argument", "services.kimi.extra_args.api-key"),
    }


def test_problems_from_elsewhere_are_errors_among_the_others() -> None:
    report = judge(facts()).with_problems(["the template leaves out what deployer needs"])
    assert [finding.text for finding in report.blocking] == ["the template leaves out what deployer needs"]
    assert report.findings[0] in report.blocking


def test_errors_that_block_are_all_raised_by_rendering() -> None:
    wrong = {"parallelism": {"tp": 8, "ep": 3}, "attention": {"backend": "x"}, "extra_args": {"foo": 1}}
    with pytest.raises(ConfigError, match="profile p for service kimi: 4 problems") as caught:
        launch_arguments(facts(profile=wrong, service={"gpus": [0]}))
    for word in ("ep: 3 does not divide tp = 8", "attention.backend: ", "extra_args.foo: ", "needs 8 GPUs"):
        assert word in caught.value.message
    assert launch_arguments(facts()).argv


def test_the_services_limits_count() -> None:
    given = facts(
        profile=pp(2, pipeline={"max_micro_batch_size": 64}), service={"limits": {"max_running_requests": 16}}
    )
    [finding] = RULES["micro-batch-above-limit"].findings(given)
    assert finding.severity is Severity.WARNING
    assert launch_arguments(given).argv


def test_gpus_are_counted_where_they_are_set() -> None:
    eight = {"parallelism": {"tp": 8}}
    assert not RULES["too-few-gpus"].findings(facts(profile=eight))
    assert not RULES["too-few-gpus"].findings(facts(profile=eight, host={"gpus": None}))
    assert only("too-few-gpus", profile=eight, host={"gpus": 4}).endswith("service kimi has 4 (hosts.box.gpus)")
    assert only("too-few-gpus", profile=eight, service={"gpus": [6, 7]}).endswith("has 2 (services.kimi.gpus)")
    assert "uses 1 of the 2" in only("gpus-unused", service={"gpus": [6, 7]})


def test_shape_rules_need_nothing_but_the_profile() -> None:
    wrong = facts(profile={"parallelism": {"tp": 8, "ep": 3}, "pipeline": {"async_batch_depth": 2}}).profile
    places = [problem.path for problem in shape_problems(wrong)]
    assert places == [("parallelism", "ep"), ("pipeline", "async_batch_depth")]
    assert all(rule.severity is Severity.ERROR and not rule.needs for rule in RULES.values() if rule.shape)


# --- figures ----------------------------------------------------------------------------------------------------


def only(rule: str, **given: Any) -> str:
    """The text of a rule's one finding."""
    [finding] = RULES[rule].findings(facts(**given))
    return finding.text


def test_layers_are_split_as_sglang_does() -> None:
    assert layer_split(61, 8) == [7, 7, 7, 8, 8, 8, 8, 8]
    assert layer_split(8, 8) == [1] * 8
    assert "7,7,7,8,8,8,8,8" in only("uneven-layers", profile=pp(8), model=KIMI)


def test_the_micro_batch_cap_is_shown_at_each_level() -> None:
    text = only(
        "micro-batch-cap",
        profile=pp(8, pipeline={"async_batch_depth": 8}, limits={"max_running_requests": 64}),
        service={"bench": {"levels": [8, 32]}},
    )
    assert "64 // 8" in text
    assert "loop size 16" in text
    assert "at most 64 run at a time" in text
    assert "C=32: 32 run, about 2 in each of 16" in text


def test_what_can_run_at_a_time_limits_the_levels() -> None:
    text = only(
        "running-below-levels",
        profile=pp(2, pipeline={"max_micro_batch_size": 4}, limits={"max_running_requests": 64}),
        service={"bench": {"levels": [8, 16]}},
    )
    assert "at most 8 run at a time (loop 2 x cap 4), so C=16 would have 8 waiting" in text


def test_a_threshold_that_is_not_measured_is_told_with_its_place_and_remedy() -> None:
    def told(gate: dict[str, float], **bench: Any) -> tuple[str, str]:
        settings = {"levels": [8, 16], "requests_at_least": 0, **bench}
        [finding] = RULES["gate-not-measured"].findings(facts(profile={"bench": settings}, service={"gate": gate}))
        return finding.text, finding.remedy

    text, remedy = told({"itl_p50_s@32": 1.0})
    assert text == 'services.kimi.gate."itl_p50_s@32": level 32 is not among the benchmark\'s levels (8, 16)'
    assert "bench.levels" in remedy
    text, remedy = told({"ttft_p95_s@8": 1.0})
    assert "16 samples at C=8; a 95th percentile needs 20" in text
    assert "use ttft_p50_s" in remedy
    text, remedy = told({"tpot_p95_s@16": 1.0}, repeats=1)
    assert "16 samples at C=16" in text
    text, remedy = told({"itl_p95_s@8": 1.0}, repeats=1, output_tokens=3)
    assert "16 samples at C=8" in text
    assert told({"single_stream_tok_s": 1.0}, singles=0)[1] == "set bench.singles to 1 or more"
    text, _ = told({"steady_tok_s@8": 1.0, "aggregate_tok_s@8": 1.0}, output_tokens=4)
    assert "3 tokens a stream after the first; a steady rate needs 4" in text


def test_passes_that_are_run_for_200_requests_are_samples_too() -> None:
    gate = {"gate": {"ttft_p95_s@8": 1.0}}
    assert not RULES["gate-not-measured"].findings(facts(profile=gate))
    few = {**gate, "bench": {"requests_at_least": 0}}
    assert RULES["gate-not-measured"].findings(facts(profile=few))


def test_a_budget_that_cannot_be_kept_is_told_with_figures() -> None:
    text = only("budget-short", profile={"bench": {"output_tokens": 100_000}})
    assert text == ("services.kimi.bench.budget: 300 s, but 300032 tokens one after another take 300 s at 1000 tok/s")
    slow = {"gate": {"aggregate_tok_s@8": 20.0, "single_stream_tok_s": 5.0}, "bench": {"budget": 90.0}}
    assert only("budget-short", profile=slow) == (
        "bench.budget: 90 s, but a server that just meets the thresholds needs 102 s for one pass each "
        "(one 51 s, C=8 51 s)"
    )


def test_a_level_that_may_lose_less_than_all_is_told() -> None:
    given = {"profile": {"relative_gate": {"max_loss": 0.2}}}
    assert only("level-loss-below-loss", **given) == (
        "services.kimi.relative_gate.max_level_loss: 0.12 at one level, but 0.2 on average"
    )
    nothing = facts(profile={"relative_gate": {"max_loss": 0.2, "baseline": "none"}})
    assert not RULES["level-loss-below-loss"].findings(nothing), "nothing is compared"


def test_what_the_rules_know_of_the_benchmark_is_the_benchmarks_own() -> None:
    assert measuring.P95_SAMPLES == stats.SAMPLES_FOR_P95
    assert measuring.STEADY_TOKENS == stats.STEADY_TOKENS_PER_STREAM
    assert measuring.GRACE == spec.GRACE


def test_capture_sizes() -> None:
    assert capture_sizes(8) == [1, 2, 4, 8]
    assert capture_sizes(64) == [1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64]
    assert capture_sizes(3) == [1, 2, 3]
    assert capture_sizes(544)[-3:] == [496, 512, 544]


def test_weights_and_what_they_leave() -> None:
    given: dict[str, Any] = {"gpus": gpus(), "model": KIMI, "weight_bytes": 550 * GIB}
    assert "68.8 GiB of weights on each of 8 GPUs" in only(
        "weights-fit", profile=tp(8, memory={"mem_fraction_static": 0.7}), **given
    )
    spread = only("kv-room", profile=pp(8, memory={"mem_fraction_static": 0.9}), **given)
    together = only("kv-room", profile=tp(8, memory={"mem_fraction_static": 0.9}), **given)
    assert "96.0 GiB x 0.9 - 68.8 GiB of weights = 17.7 GiB a GPU" in together
    assert "tokens of 68.6 KiB" in together
    assert "tokens of 9.0 KiB" in spread


def test_moved_or_requantised_weights_are_not_judged() -> None:
    heavy: dict[str, Any] = {"gpus": gpus(), "weight_bytes": 2000 * GIB, "model": DENSE}
    assert RULES["weights-fit"].findings(facts(**heavy))
    assert not RULES["weights-fit"].findings(facts(service=extra(cpu_offload_gb=100), **heavy))
    assert not RULES["weights-fit"].findings(facts(profile={"quantization": "fp8"}, **heavy))


@pytest.mark.parametrize(
    ("profile", "flags"),
    [
        ({}, {"disable_cuda_graph": True}),
        ({}, {"disable_decode_cuda_graph": True}),
        ({}, {"cuda_graph_backend_decode": "disabled"}),
        ({}, {"cuda_graph_config": {"decode": {"backend": "disabled"}}}),
        ({"parallelism": {"tp": 8, "ep": 8}, "moe": {"a2a_backend": "deepep"}}, {"deepep_mode": "normal"}),
        ({"cuda_graph": {"enabled": False}}, {}),
        ({"extra_args": {"--disable_cuda_graph": True}}, {}),
    ],
)
def test_graphs_are_off_in_every_spelling(profile: dict[str, Any], flags: dict[str, Any]) -> None:
    assert RULES["graphs-off"].findings(facts(profile=profile, service=extra(**flags)))


@pytest.mark.parametrize(
    ("rule", "version", "severity"),
    [
        ("pp-speculative", "0.5.12.post1", Severity.ERROR),
        ("pp-speculative", "0.5.16", Severity.ERROR),
        ("pp-speculative", "0.5.20", Severity.WARNING),
        ("pp-speculative", "0.5.23", Severity.ERROR),
        ("pp-speculative", None, Severity.WARNING),
        ("pp-mixed-chunk", "0.5.9", Severity.ERROR),
        ("pp-mixed-chunk", "0.5.10.post1", Severity.ERROR),
        ("pp-mixed-chunk", "0.5.11", Severity.WARNING),
        ("pp-mixed-chunk", "0.5.12.post1", Severity.ADVICE),
        ("pp-mixed-chunk", "0.5.23", Severity.ADVICE),
        ("served-name-colon", "0.5.23", Severity.ERROR),
        ("served-name-colon", "0.5.9", Severity.ERROR),
        ("served-name-colon", "0.5.5", Severity.WARNING),
        ("async-depth-output", "0.5.7", Severity.WARNING),
        ("async-depth-output", "0.5.23", Severity.ADVICE),
        ("trtllm-mla-sm120", "0.5.30", Severity.WARNING),
    ],
)
def test_severity_follows_the_version(rule: str, version: str | None, severity: Severity) -> None:
    [finding] = RULES[rule].findings(facts(**{**CASES[rule][0], "version": version}))
    assert finding.severity is severity


def test_a_longer_context_can_be_allowed() -> None:
    case = {**CASES["context-above-model"][0], "service": env(SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN="1")}
    [finding] = RULES["context-above-model"].findings(facts(**case))
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize("text", ["", "7,7", "a,b,c", "1.5,2", "-1,33", "30,1,1"])
def test_layer_partitions(text: str) -> None:
    given = facts(profile=pp(2), service=env(SGLANG_PP_LAYER_PARTITION=text), model=DENSE)
    assert RULES["layer-partition"].findings(given)


def test_the_value_of_a_secret_is_not_repeated() -> None:
    given = facts(service=extra(admin_api_key="sk-verysecretverysecretverysecret"))
    assert "verysecret" not in str([finding.as_dict() for finding in judge(given).findings])


def test_cpu_hosts_have_no_gpus_to_count() -> None:
    given = facts(profile=tp(2), host={"gpus": 0})
    assert not RULES["too-few-gpus"].findings(given)
    assert not RULES["gpus-unused"].findings(given)


@pytest.mark.parametrize(
    ("name", "capability", "nvlink"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", (12, 0), False),
        ("NVIDIA GeForce RTX 5090", (12, 0), False),
        ("NVIDIA B200", (10, 0), True),
        ("NVIDIA H200", (9, 0), True),
        ("NVIDIA H100 80GB HBM3", (9, 0), True),
        ("NVIDIA A100-SXM4-80GB", (8, 0), True),
        ("NVIDIA L40S", (8, 9), False),
        ("NVIDIA GeForce RTX 4090", (8, 9), False),
        ("NVIDIA A10G", (8, 6), False),
        ("Something Else", None, False),
    ],
)
def test_cards_by_name(name: str, capability: tuple[int, int] | None, nvlink: bool) -> None:
    [gpu] = gpus(1, name=name)
    assert gpu.capability == capability
    assert gpu.with_nvlink is nvlink
    assert not (gpu.with_nvlink and gpu.without_nvlink)
    assert replace(gpu, compute_capability=(7, 5)).capability == (7, 5)


# --- models -----------------------------------------------------------------------------------------------------


def test_a_model_that_sees_has_its_sizes_under_text_config() -> None:
    shape = model_shape(
        {
            "architectures": ["KimiK25ForConditionalGeneration"],
            "auto_map": {"AutoConfig": "x.Y"},
            "text_config": {
                "architectures": ["DeepseekV3ForCausalLM"],
                "num_hidden_layers": 61,
                "n_routed_experts": 384,
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 64,
                "quantization_config": {"weight_block_size": [128, 128]},
            },
        }
    )
    assert shape.architecture == "KimiK25ForConditionalGeneration"
    assert (shape.layers, shape.experts, shape.block_n, shape.mla) == (61, 384, 128, True)
    assert shape.own_code
    assert shape.quantized
    assert shape.kv_values_per_token(8) == 576


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        (None, 1000),
        ({"factor": 4.0, "type": "yarn"}, 4000),
        ({"factor": 4.0, "original_max_position_embeddings": 250}, 1000),
        ({"factor": 8.0, "rope_type": "llama3"}, 1000),
        ({"factor": "x"}, 1000),
        ({"factor": float("nan")}, 1000),
        ("nonsense", 1000),
    ],
)
def test_context(scaling: Any, context: int) -> None:
    assert model_shape({"max_position_embeddings": 1000, "rope_scaling": scaling}).context == context


def test_an_empty_config_knows_nothing() -> None:
    assert model_shape({}) == ModelShape()
    assert model_shape({"num_hidden_layers": True, "architectures": [], "text_config": 3}) == ModelShape()


# --- names and reference ----------------------------------------------------------------------------------------


def test_an_unknown_rule_names_the_nearest() -> None:
    assert find_rule("graphs-off") is RULES["graphs-off"]
    with pytest.raises(UsageError, match="did you mean graphs-off"):
        find_rule("graph-off")
    with pytest.raises(UsageError):
        find_rule("\x00" * 500)


def test_the_reference_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run python -m tools.reference.rules"


def test_rules_as_documents() -> None:
    assert rule_document(RULES["weights-fit"])["needs"] == ["the GPUs", "the size of the model's weights"]
    assert rule_document(RULES["graphs-off"])["severity"] == "warning"


# --- what works in SGLang is no error ---------------------------------------------------------------------------

YARN = '{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "num_hidden_layers": 4}'


@pytest.mark.parametrize(
    ("rule", "given"),
    [
        ("pp-unsupported-model", {"profile": pp(8), "model": KIMI, "version": "0.5.10"}),
        ("base-gpu-id", {"profile": pp(8), "service": extra(gpu_id_step=2)}),
        ("base-gpu-id", {"profile": tp(4), "service": extra(gpu_id_step=2)}),
        ("heads-divide-tp", {"profile": tp(6), "model": KIMI, "service": extra(device="cpu")}),
        ("kv-heads-divide-tp", {"profile": tp(6), "model": DENSE, "host": {"gpus": 0}}),
        (
            "heads-divide-tp",
            {"profile": tp(8), "model": replace(KIMI, heads=12), "service": extra(attn_cp_size=2)},
        ),
        ("too-few-gpus", {"profile": tp(16), "service": extra(device="cpu")}),
        ("layer-partition", {"profile": tp(8), "service": env(SGLANG_PP_LAYER_PARTITION="7,7")}),
        ("micro-batch-above-limit", {
            "profile": pp(8, limits={"max_running_requests": 16}, pipeline={"max_micro_batch_size": 64}),
            "service": {"limits": {"max_running_requests": 16}},
        }),
        ("pp-unsupported-flag", {
            "profile": pp(8), "service": extra(elastic_ep_backend="mooncake"), "version": "0.5.9",
        }),
        ("sm120-old-build", {"gpus": gpus(), "version": "0.4.6.post5", "packages": {"torch": "2.7.0+cu128"}}),
        ("weights-fit", {
            "profile": tp(1), "gpus": gpus(1, gib=80), "weight_bytes": 120 * GIB,
            "model": replace(DENSE, dtype="float32"),
        }),
    ],
)  # fmt: skip
def test_what_works_is_no_error(rule: str, given: dict[str, Any]) -> None:
    assert all(found.severity is not Severity.ERROR for found in RULES[rule].findings(facts(**given)))


@pytest.mark.parametrize("rule", ["graphs-off", "graphs-above-cap", "graphs-below-cap", "graph-padding-off"])
def test_an_engine_on_the_cpu_has_no_graphs_to_speak_of(rule: str) -> None:
    given = CASES[rule][0]
    flags = {**given.get("service", {}).get("extra_args", {}), "device": "cpu"}
    assert only_severities(rule, **given)
    assert only_severities(rule, **{**given, "service": {"extra_args": flags}}) == []
    assert only_severities(rule, **given, host={"gpus": 0}) == []


@pytest.mark.parametrize("algorithm", ["EAGLE", "NEXTN", "DSPARK"])
def test_a_pipeline_that_only_prefills_may_speculate(algorithm: str) -> None:
    flags = extra(speculative_algorithm=algorithm, disaggregation_mode="prefill")
    assert only_severities("pp-speculative", profile=pp(8), service=flags, version="0.5.23") == []
    assert only_severities("pp-speculative", profile=pp(8), service=flags) == [Severity.ERROR]


def test_base_gpu_id_counts_stages_and_replicas() -> None:
    assert only_severities("base-gpu-id", profile=pp(4), service=extra(base_gpu_id=5)) == [Severity.ERROR]
    replicas = {"parallelism": {"tp": 2, "dp": 2}}
    assert only_severities("base-gpu-id", profile=replicas, service=extra(gpu_id_step=2)) == []
    assert only_severities("base-gpu-id", profile=replicas, service=extra(gpu_id_step=3)) == [Severity.ERROR]


def only_severities(rule: str, **given: Any) -> list[Severity]:
    """How grave what a rule finds is."""
    return [found.severity for found in RULES[rule].findings(facts(**given))]


@pytest.mark.parametrize("overrides", [YARN, json.loads(YARN)])
def test_the_config_is_judged_as_it_is_overridden(overrides: Any) -> None:
    config = {
        "max_position_embeddings": 9,
        "text_config": {
            "max_position_embeddings": 1000,
            "num_hidden_layers": 61,
            "rope_scaling": {"factor": 2.0},
        },
    }
    changed = overridden(config, overrides)
    assert changed is not None
    assert (model_shape(changed).context, model_shape(changed).layers) == (
        2000,
        61,
    )  # only {"text_config": ..} reaches it
    plain = overridden({"max_position_embeddings": 1000, "num_hidden_layers": 61}, overrides)
    assert plain is not None
    assert (model_shape(plain).context, model_shape(plain).layers) == (4000, 4)


@pytest.mark.parametrize("overrides", ["nonsense", "[1]", 3, "[" * 100_000])
def test_overrides_that_are_none_leave_nothing_known(overrides: Any) -> None:
    assert overridden({"num_hidden_layers": 61}, overrides) is None


def test_the_newer_name_of_a_scaling_counts_and_the_language_model_comes_first() -> None:
    config = {"max_position_embeddings": 1000, "rope_parameters": {"rope_type": "linear", "factor": 4.0}}
    assert model_shape(config).context == 4000
    sees = {"seq_length": 64, "text_config": {"max_position_embeddings": 1000}}
    assert model_shape(sees).context == 1000


@pytest.mark.parametrize(
    ("version", "who"),
    [
        (None, "every known version of SGLang prints"),
        ("0.5.5", "SGLang 0.5.5 prints"),
        ("0.5.23", "SGLang 0.5.23 prints"),
        ("0.6.0", "SGLang 0.6.0 probably prints"),
    ],
)
def test_which_version_prints_the_key_and_who_can_read_it(version: str | None, who: str) -> None:
    (finding,) = RULES["api-key-shown"].findings(facts(service={"api_key": {"env": "KEY"}}, version=version))
    assert finding.message == (
        f"{who} the key into the journal of box at each start, where root and the groups systemd-journal and adm can "
        "read it"
    )
