"""The GPUs themselves, and how they reach each other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from deployer.sglang.rules.base import Hit, Severity, Theme
from deployer.sglang.rules.facts import GIB, Facts

THEME = Theme("hardware", "Hardware")


@THEME.rule("nccl-p2p")
def nccl_p2p(facts: Facts) -> Iterator[Hit]:
    several = facts.profile.gpus > 1 and len(facts.used) > 1
    pcie = facts.card(lambda gpu: gpu.without_nvlink)
    if several and pcie and "NCCL_P2P_DISABLE" not in facts.environment:
        yield Hit(f"{pcie.short} has no NVLink, and NCCL_P2P_DISABLE is not set")


@THEME.rule("nccl-p2p-disabled")
def nccl_p2p_disabled(facts: Facts) -> Iterator[Hit]:
    if facts.truthy("NCCL_P2P_DISABLE") and all(gpu.with_nvlink for gpu in facts.used):
        yield Hit(f"{facts.gpu_name} has NVLink", ("environment", "NCCL_P2P_DISABLE"))


@THEME.rule("custom-all-reduce-pcie")
def custom_all_reduce(facts: Facts) -> Iterator[Hit]:
    pcie = facts.card(lambda gpu: gpu.without_nvlink)
    if facts.tp > 2 and pcie and not facts.on("--disable-custom-all-reduce"):
        yield Hit(f"tp = {facts.tp} on {pcie.short}, which has no NVLink", ("parallelism", "tp"))


@THEME.rule("mixed-gpus")
def mixed_gpus(facts: Facts) -> Iterator[Hit]:
    kinds = Counter(f"{gpu.short} ({gpu.memory / GIB:.0f} GiB)" for gpu in facts.used)
    if len(kinds) > 1 and facts.profile.gpus > 1:
        shown = ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))
        yield Hit(shown, ("services", facts.service.name, "gpus"))


@THEME.rule("cuda-device-order")
def cuda_device_order(facts: Facts) -> Iterator[Hit]:
    names = {gpu.name for gpu in facts.seen.machine or facts.seen.gpus}
    order = facts.environment.get("CUDA_DEVICE_ORDER")
    if len(names) > 1 and order != "PCI_BUS_ID":
        yield Hit(f"the host has {len(names)} kinds of GPUs, and CUDA_DEVICE_ORDER is {order or 'not set'}")


@THEME.rule("sm120-old-build")
def sm120_old_build(facts: Facts) -> Iterator[Hit]:
    blackwell = facts.card(lambda gpu: gpu.capability is not None and gpu.capability >= (10, 0))
    if blackwell is not None and facts.before("0.4.7"):
        torch = re.match(r"(\d{1,3})\.(\d{1,3})", facts.seen.packages.get("torch", ""))
        newer = torch is not None and (int(torch[1]), int(torch[2])) >= (2, 7)
        yield Hit(
            f"{blackwell.short} has compute capability {'.'.join(map(str, blackwell.capability or ()))}; "
            f"SGLang {facts.version} is older than support for it",
            (),
            Severity.WARNING if newer else None,
        )
