"""Unlike GPUs in one host, from what nvidia-smi prints there to what the rules say of a service on some of them."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.config.inventory import HostConfig, ServiceConfig
from deployer.config.profile import Profile
from deployer.deploy.facts import with_host
from deployer.deploy.preflight import objections
from deployer.host.agent.gpus import gpu_facts
from deployer.host.agent.machine import Machine
from deployer.records.hardware import Gpu, GpuProcess
from deployer.records.host import HostState
from deployer.sglang.flags.devices import MOST, last_place, rank_places, taken
from deployer.sglang.rules import Facts, Finding, judge
from tests.unit.deploy.builders import GIB, host_state, release, service_state
from tests.unit.deploy.test_preflight import config
from tests.unit.sglang.rules.builders import extra, facts, gpus, tp

#: Four RTX PRO 6000 and four H100 (driver 580), by bus: --query-gpu as `gpu_facts` asks, then index and compute_cap.
LIST = "".join(
    f"{index}, GPU-{index:08x}-0000-0000-0000-000000000000, {name}, {memory}, {used}, 0, {power}, {limit}\n"
    for index, (name, memory, used, power, limit) in enumerate(
        [("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887, 4, "18.02", "600.00")] * 4
        + [("NVIDIA H100 80GB HBM3", 81559, 1, "71.45", "700.00")] * 4
    )
)
CAPS = "0, 12.0\n1, 12.0\n2, 12.0\n3, 12.0\n4, 9.0\n5, 9.0\n6, 9.0\n7, 9.0\n"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> HostState:
    """What the agent makes of that output."""

    class Mixed(Machine):
        def execute(self, argv: list[str], *args: Any, **options: Any) -> subprocess.CompletedProcess[str]:
            text = "" if "compute-apps" in argv[1] else CAPS if "compute_cap" in argv[1] else LIST
            return subprocess.CompletedProcess(argv, 0, text, "")

    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    gpus, processes = gpu_facts(Mixed(), [])
    assert processes == []
    return host_state(service_state(), gpus=tuple(Gpu.from_json(item) for item in gpus or ()))


def said(host: HostState, *, service: dict[str, Any], profile: dict[str, Any]) -> dict[str, Finding]:
    """What the rules find, by their ids."""
    base = {"name": "kimi", "host": "box", "model": "/m", "engine": {"python": "/p"}}
    facts = Facts.of(
        Profile.model_validate({"name": "p", **profile}),
        ServiceConfig.model_validate(base | service),
        HostConfig.model_validate({"name": "box"}),
        "0.5.12.post1",
    )
    return {item.rule: item for item in judge(with_host(facts, host)).findings}


FA3 = {"parallelism": {"tp": 4}, "attention": {"backend": "fa3"}}
TRTLLM = {"parallelism": {"tp": 4}, "attention": {"backend": "trtllm_mla"}}
PCI = {"environment": {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}}


def test_a_service_is_judged_by_its_own_cards(host: HostState) -> None:
    pro, h100 = {"gpus": [0, 1, 2, 3], **PCI}, {"gpus": [4, 5, 6, 7], **PCI}
    assert "fa3-hardware" in said(host, service=pro, profile=FA3)
    assert "trtllm-mla-sm120" in said(host, service=pro, profile=TRTLLM)
    assert "nccl-p2p" in said(host, service=pro, profile=FA3)
    on_h100 = said(host, service=h100, profile=FA3)
    assert not {"fa3-hardware", "nccl-p2p", "mixed-gpus", "cuda-device-order"} & set(on_h100)
    assert "trtllm-mla-sm120" not in said(host, service=h100, profile=TRTLLM)


@pytest.mark.parametrize(
    ("service", "pro"),
    [
        ({}, True),
        ({"extra_args": {"base-gpu-id": 4}}, False),
        ({"gpus": [4, 5, 6, 7, 0, 1, 2, 3]}, False),
        ({"gpus": [4, 5, 6, 7, 0, 1, 2, 3], "extra_args": {"base-gpu-id": 4}}, True),
        ({"gpus": [0, 4, 1, 5, 2, 6, 3, 7], "extra_args": {"gpu-id-step": 2, "base-gpu-id": 1}}, False),
    ],
)
def test_of_all_that_it_sees_those_count_that_its_ranks_take(
    service: dict[str, Any], pro: bool, host: HostState
) -> None:
    found = said(host, service=PCI | service, profile=FA3)
    assert ("fa3-hardware" in found) == pro
    assert "mixed-gpus" not in found


def test_a_mix_is_told_and_each_of_its_kinds_has_to_work(host: HostState) -> None:
    eight = said(host, service=PCI, profile={**FA3, "parallelism": {"tp": 8}})
    assert (
        eight["mixed-gpus"].message
        == "4 x H100 80GB HBM3 (80 GiB), 4 x RTX PRO 6000 Blackwell Workstation Edition (96 GiB)"
    )
    # The H100 would do: it is the other cards on which the start fails.
    assert "fa3 on RTX PRO 6000" in eight["fa3-hardware"].message
    trtllm = said(host, service=PCI, profile={**TRTLLM, "parallelism": {"tp": 8}})
    assert "(SM120)" in trtllm["trtllm-mla-sm120"].message
    crossing = said(host, service=PCI | {"gpus": [2, 3, 4, 5]}, profile=FA3)
    assert "2 x H100" in crossing["mixed-gpus"].message


def test_cuda_counts_otherwise_also_for_a_service_of_one_kind(host: HostState) -> None:
    """`gpus = [0, 1, 2, 3]` are then the H100, whatever nvidia-smi calls 0 to 3."""
    found = said(host, service={"gpus": [0, 1, 2, 3]}, profile=FA3)
    assert "the host has 2 kinds of GPUs, and CUDA_DEVICE_ORDER is not set" in found["cuda-device-order"].message


def test_memory_is_that_of_the_cards_in_use() -> None:
    both = gpus(4) + gpus(4, name="NVIDIA H100 80GB HBM3", gib=80)
    assert facts(profile=tp(4), gpus=both).smallest_gpu == 96 * GIB
    assert facts(profile=tp(4), gpus=both, service=extra(base_gpu_id=4)).smallest_gpu == 80 * GIB
    assert facts(profile=tp(8), gpus=both).smallest_gpu == 80 * GIB
    # Out of the list: `base-gpu-id` objects, and whatever there is counts.
    assert facts(profile=tp(4), gpus=both, service=extra(base_gpu_id=9)).smallest_gpu == 80 * GIB


def test_a_sister_on_the_other_gpus_is_no_objection() -> None:
    sister = tuple(GpuProcess(index, 9, 80 * GIB, "python", "/x", "sglang-mini.service") for index in range(4))
    observed = host_state(service_state(), gpu_processes=sister)
    host, service = config()
    for base, held in ((0, 1), (4, 0)):
        requested = {"tp_size": 4, "base_gpu_id": base}
        found = objections(observed, host, service, release(requested=requested))
        assert [item.code for item in found].count("gpu-held") == held


@given(st.integers(1, 1024), st.integers(1, 1024), st.integers(1, 1024), st.integers(0, 9), st.integers(1, 3))
def test_any_layout_has_its_places(tp: int, pp: int, replicas: int, base: int, step: int) -> None:
    places = rank_places(tp=tp, pp=pp, replicas=replicas, base=base, step=step)
    ranks = tp * pp * replicas
    assert len(places) == (ranks if ranks <= MOST else 0)
    if places:
        assert places[0] == base
        assert places[-1] == last_place(tp=tp, pp=pp, replicas=replicas, base=base, step=step)
    assert taken("abcdefgh", places)
