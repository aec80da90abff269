"""The real SGLang tells its flags, and judges command lines without starting anything."""

from __future__ import annotations

from pathlib import Path

from deployer.config.inventory import load_inventory
from deployer.deploy.engine_preflight import Question, ask_host
from deployer.host.client import HostClient
from deployer.host.connect import connect
from deployer_rehearsal.real_engine import MODEL, PYTHON
from tests.e2e.sglang.conftest import SglangSite

BASE = ("--model-path", MODEL, "--device", "cpu", "--max-total-tokens", "16384")


def test_its_flags_are_those_that_ship(sglang_site: SglangSite) -> None:
    [learned] = sglang_site.json("sglang", "learn")["learned"]
    assert (learned["version"], learned["compared_with"]) == ("0.5.23", "0.5.23")
    assert learned["added"] == learned["removed"] == learned["changed"] == []
    text = (sglang_site.folder / "flags" / "args-0.5.23.json").read_text()
    assert "/root" not in text


def test_it_judges_many_command_lines_at_once(sglang_site: SglangSite, tmp_path: Path) -> None:
    inventory = load_inventory(sglang_site.inventory)
    service = inventory.service()
    cases: list[tuple[list[str], str, str]] = [
        ([], "accepted", ""),
        (["--pp-size", "2"], "accepted", ""),
        (["--tp-size", "3", "--nnodes", "2"], "refused", "tp_size must be divisible by number of nodes"),
        (["--pp-size", "2", "--pp-max-micro-batch-size", "0"], "refused", "pp_max_micro_batch_size"),
        (["--tp-size", "8", "--attn-dp-size", "3"], "refused", "AssertionError: assert "),
        (["--served-model-name", "a:b"], "refused", "colon"),
        (["--cuda-graph-max-bs", "8"], "refused", "ambiguous option: --cuda-graph-max-bs could match"),
        (["--no-such-flag"], "refused", "unrecognized arguments: --no-such-flag"),
        (["--model-path", "/models/none"], "unknown", "OSError"),
    ]
    questions = [
        Question([PYTHON, "-m", "sglang.launch_server", *BASE, *words], service.environment)  # type: ignore[arg-type]
        for words, _, _ in cases
    ]
    client = HostClient(connect(inventory.host(service.host).destination, password_prompt=None))
    try:
        observed = client.observe({service.name: service.port}, engine=PYTHON, model=MODEL)
        found = ask_host(client, service, observed, questions, cache=tmp_path / "asked")
        again = ask_host(client, service, observed, questions[:8], cache=tmp_path / "asked")
    finally:
        client.close()
    for (words, verdict, said), asked in zip(cases, found, strict=True):
        assert asked.verdict == verdict, (words, asked)
        assert said in (asked.reason or ""), words
    assert found[0].resolved["max_total_tokens"] == 16384
    assert found[0].resolved["attention_backend"] == "torch_native"  # its own choice
    assert "Pipeline parallelism is incompatible with overlap schedule." in found[1].warnings
    assert found[1].resolved["disable_overlap_schedule"] is True
    assert all(asked.cached for asked in again)
    assert sglang_site.server_processes() == []


def test_what_it_refuses_never_stops_the_live_server(tp1_site: SglangSite) -> None:
    site = tp1_site
    before = site.invocation()
    site.write_inventory(extra_args="gpu-id-step = 0")
    document = site.json("apply", "tp1", "--yes", expect=3)
    assert (document["outcome"], document["failure"]["phase"]) == ("refused", "validate")
    assert "gpu_id_step must be positive (srt/arg_groups/validation_hook.py:" in document["message"]
    assert site.invocation() == before
    assert site.live() == "0001-tp1"
