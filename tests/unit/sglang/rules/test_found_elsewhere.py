"""Commands that other people run, each with what is right about it in its version."""

from __future__ import annotations

from typing import Any

import pytest

from deployer.sglang.flags.variables import known_versions, read_as, spans, variables
from deployer.sglang.flags.versions import parse_version
from deployer.sglang.rules import Severity, judge
from deployer.sglang.server.answers import judge as judge_answer
from tests.unit.sglang.rules.builders import KIMI, env, extra, facts

SPEC_5 = extra(
    speculative_algorithm="EAGLE3",
    speculative_draft_model_path="/models/d",
    speculative_num_steps=5,
    speculative_eagle_topk=4,
    speculative_num_draft_tokens=8,
)


def found(rule: str, version: str, **given: Any) -> list[Severity]:
    """The severities of what one rule finds."""
    return [item.severity for item in judge(facts(version=version, **given)).findings if item.rule == rule]


def test_deepep_without_ep_is_the_official_command() -> None:
    profile = {"parallelism": {"tp": 8}, "moe": {"a2a_backend": "deepep"}}
    report = judge(facts(profile=profile, version="0.5.10.post1", model=KIMI))
    assert report.of(Severity.ERROR) == ()
    assert found("a2a-sets-ep", "0.5.10.post1", profile=profile) == [Severity.ADVICE]
    other = {"parallelism": {"tp": 8, "ep": 4}, "moe": {"a2a_backend": "deepep"}}
    assert found("a2a-sets-ep", "0.5.10.post1", profile=other) == [Severity.ERROR]
    allowed = {**other, "verify": {"allow_changed": ["ep_size"]}}
    assert found("a2a-sets-ep", "0.5.10.post1", profile=allowed) == [Severity.ADVICE]


@pytest.mark.parametrize(
    ("version", "name", "says"),
    [
        ("0.5.2", "SGL_ENABLE_JIT_DEEPGEMM", None),
        ("0.5.5", "SGL_ENABLE_JIT_DEEPGEMM", None),  # read as SGLANG_ENABLE_JIT_DEEPGEMM
        ("0.5.2", "SGLANG_ENABLE_JIT_DEEPGEMM", "0.5.5 is the first known that does; did you mean SGL_"),
        ("0.5.10.post1", "SGLANG_ENABLE_SPEC_V2", None),
        ("0.5.23", "SGLANG_ENABLE_SPEC_V2", "the last known version that reads it is 0.5.16"),
        ("0.5.10.post1", "SGLANG_ENABLE_SPECV2", "did you mean SGLANG_ENABLE_SPEC_V2?"),
        ("0.5.10.post1", "SGLANG_SOMETHING_OF_ITS_OWN", None),
    ],
)  # fmt: skip
def test_a_variable_is_judged_by_its_version(version: str, name: str, says: str | None) -> None:
    messages = [
        item.message
        for item in judge(facts(version=version, service=env(**{name: "1"}))).findings
        if item.rule == "sglang-variable"
    ]
    assert len(messages) == (says is not None)
    assert (says or "") in "".join(messages)


@pytest.mark.parametrize("version", [*map(str, known_versions()), None])
def test_no_variable_is_suggested_that_a_version_lacks(version: str | None) -> None:
    parsed = parse_version(version) if version else None
    known = variables(parsed)
    for name in sorted(spans())[::25]:
        wrong = name[:-2] + name[-1] + name[-2]
        for item in judge(facts(version=version, service=env(**{wrong: "1"}))).findings:
            if item.rule == "sglang-variable" and "did you mean" in item.message:
                suggested = item.message.rpartition(" ")[2].rstrip("?")
                assert read_as(suggested, parsed) in known


@pytest.mark.parametrize(
    ("rule", "given"),
    [
        ("no-generation", {"profile": {"extra_args": {"is-embedding": True}}}),
        ("half-a-server", {"profile": {"extra_args": {"disaggregation-mode": "prefill"}}}),
        ("half-a-server", {"profile": {"extra_args": {"language-only": True}}}),
        ("cannot-be-asked", {"service": extra(ssl_keyfile="/k", ssl_certfile="/c")}),
        ("cannot-be-asked", {"service": extra(grpc_mode=True)}),
    ],
)
def test_what_cannot_become_ready_is_refused(rule: str, given: dict[str, Any]) -> None:
    assert found(rule, "0.5.12.post1", **given) == [Severity.ERROR]


@pytest.mark.parametrize("version", ["0.4.6.post5", "0.5.5", "0.5.12.post1", "0.5.23"])
def test_steps_without_top_k(version: str) -> None:
    alone = extra(speculative_algorithm="EAGLE", speculative_num_steps=3)
    assert found("speculative-parameters", version, service=alone) == [Severity.ERROR]
    tokens = extra(speculative_algorithm="NEXTN", speculative_num_draft_tokens=3)
    assert found("speculative-parameters", version, service=tokens) == [Severity.ERROR]
    none = extra(speculative_algorithm="EAGLE")
    assert found("speculative-parameters", version, service=none) == []


@pytest.mark.parametrize(
    ("version", "severity"),
    [
        ("0.5.5", Severity.WARNING),
        ("0.5.9", Severity.ERROR),
        ("0.5.10.post1", Severity.ERROR),
        ("0.5.12.post1", Severity.ADVICE),
    ],
)
def test_the_overlapping_decoder_takes_top_k_one(version: str, severity: Severity) -> None:
    service = SPEC_5 | env(SGLANG_ENABLE_SPEC_V2="1")
    assert found("spec-v2-topk", version, service=service) == [severity]
    assert found("sglang-variable", version, service=service) == []
    assert found("spec-v2-topk", version, service=SPEC_5) == []


@pytest.mark.parametrize(
    ("bases", "verdict"),
    [
        (["TypeError", "Exception"], "refused"),
        (["KeyError", "LookupError", "Exception"], "refused"),
        (["ModuleNotFoundError", "ImportError", "Exception"], "refused"),
        (["AssertionError", "Exception"], "refused"),
        (["OSError", "Exception"], "unknown"),
        (["RuntimeError", "Exception"], "unknown"),
    ],
)
def test_what_breaks_the_hosts_own_sglang_is_an_objection(bases: list[str], verdict: str) -> None:
    error = {
        "kind": "exception",
        "type": bases[0],
        "bases": bases,
        "message": "'>' not supported between instances of 'NoneType' and 'int'",
        "root_type": bases[0],
        "root_message": "",
        "place": "srt/server_args.py:1592",
        "statement": "",
    }
    asked = judge_answer({"stage": "resolve", "error": error})
    assert asked.verdict == verdict
    assert "not supported between" in (asked.reason or "")
    if verdict == "refused" and "AssertionError" not in bases:
        assert judge_answer({"stage": "done", "error": error}).verdict == "unknown", "it is ours"
        secret = {**error, "statement": 'token = os.environ["HF_TOKEN"]'}
        assert judge_answer({"stage": "parse", "error": secret}).verdict == "unknown", "the server may have it"
