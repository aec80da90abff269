"""The GPUs themselves, and how they reach each other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from deployer.sglang.rules.base import Hit, Need, Severity, Theme
from deployer.sglang.rules.facts import GIB, Facts

THEME = Theme("hardware", "Hardware")


@THEME.rule(
    "nccl-p2p",
    Severity.ADVICE,
    "GPUs that reach each other over PCIe",
    about="""Cards without NVLink copy to each other over PCIe. Behind an IOMMU or PCIe access control (ACS)
    such copies may never arrive: the start is silent after "sglang is using nccl==". NCCL_P2P_DISABLE=1 goes
    through host memory instead, which always works and is slower; turning off ACS and IOMMU is the real
    remedy.""",
    remedy="""if the start hangs in dist-init: environment.NCCL_P2P_DISABLE = "1" to confirm it, then turn off
    ACS and IOMMU in the firmware or by kernel arguments""",
    references=["rtx6kpro issue 15", "NCCL issue 2079"],
    needs=[Need.GPUS],
)
def nccl_p2p(facts: Facts) -> Iterator[Hit]:
    several = facts.profile.gpus > 1 and len(facts.used) > 1
    pcie = facts.card(lambda gpu: gpu.without_nvlink)
    if several and pcie and "NCCL_P2P_DISABLE" not in facts.environment:
        yield Hit(f"{pcie.short} has no NVLink, and NCCL_P2P_DISABLE is not set")


@THEME.rule(
    "nccl-p2p-disabled",
    Severity.WARNING,
    "NVLink is not used",
    about="""NCCL_P2P_DISABLE=1 keeps NCCL from direct copies between GPUs, also over NVLink: everything goes
    through host memory. It is a remedy for PCIe cards that was copied to a host that does not need it.""",
    remedy="remove NCCL_P2P_DISABLE from the environment on this host",
    references=["NCCL documentation, NCCL_P2P_DISABLE"],
    needs=[Need.GPUS],
)
def nccl_p2p_disabled(facts: Facts) -> Iterator[Hit]:
    if facts.truthy("NCCL_P2P_DISABLE") and all(gpu.with_nvlink for gpu in facts.used):
        yield Hit(f"{facts.gpu_name} has NVLink", ("environment", "NCCL_P2P_DISABLE"))


@THEME.rule(
    "custom-all-reduce-pcie",
    Severity.ADVICE,
    "custom all-reduce on more than two PCIe cards",
    about="""SGLang's own all-reduce is for two GPUs, or for more that are all joined by NVLink; otherwise it
    turns itself off with a warning and NCCL does the work. Some builds of May 2026 crashed there, or during
    capture.""",
    remedy="set extra_args.disable-custom-all-reduce = true: it makes explicit what happens anyway",
    references=["issue 25649", "issue 24740", "PR 8765", "issue 4814"],
    needs=[Need.GPUS],
)
def custom_all_reduce(facts: Facts) -> Iterator[Hit]:
    pcie = facts.card(lambda gpu: gpu.without_nvlink)
    if facts.tp > 2 and pcie and not facts.on("--disable-custom-all-reduce"):
        yield Hit(f"tp = {facts.tp} on {pcie.short}, which has no NVLink", ("parallelism", "tp"))


@THEME.rule(
    "mixed-gpus",
    Severity.WARNING,
    "GPUs of different kinds in one service",
    about="""The slowest GPU sets the pace, and the smallest one the room for tokens: the server's pool is the
    smallest among the pipeline stages, and all tensor parallel ranks get the same share.""",
    remedy="give the service GPUs of one kind (`gpus`)",
    references=["0.5.12.post1:srt/managers/scheduler.py (token capacity is the minimum over the stages)"],
    needs=[Need.GPUS],
)
def mixed_gpus(facts: Facts) -> Iterator[Hit]:
    kinds = Counter(f"{gpu.short} ({gpu.memory / GIB:.0f} GiB)" for gpu in facts.used)
    if len(kinds) > 1 and facts.profile.gpus > 1:
        shown = ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))
        yield Hit(shown, ("services", facts.service.name, "gpus"))


@THEME.rule(
    "cuda-device-order",
    Severity.WARNING,
    "CUDA and nvidia-smi number GPUs of different kinds differently",
    about="""CUDA lists the fastest GPU first unless CUDA_DEVICE_ORDER=PCI_BUS_ID; nvidia-smi lists by bus. On a
    host with several kinds, GPU 0 of `gpus` is then another card than GPU 0 of nvidia-smi, even for a service
    that gets cards of only one kind.""",
    remedy='set environment.CUDA_DEVICE_ORDER = "PCI_BUS_ID"',
    references=["CUDA programming guide, CUDA_DEVICE_ORDER"],
    needs=[Need.GPUS],
)
def cuda_device_order(facts: Facts) -> Iterator[Hit]:
    names = {gpu.name for gpu in facts.seen.machine or facts.seen.gpus}
    order = facts.environment.get("CUDA_DEVICE_ORDER")
    if len(names) > 1 and order != "PCI_BUS_ID":
        yield Hit(f"the host has {len(names)} kinds of GPUs, and CUDA_DEVICE_ORDER is {order or 'not set'}")


@THEME.rule(
    "sm120-old-build",
    Severity.ERROR,
    "a release without kernels for Blackwell cards",
    about="""SGLang 0.4.6 pins torch 2.6.0, whose builds have no code for SM120: "no kernel image is available
    for execution on the device". Releases from 0.5.2 on pin torch 2.8 or later, which has it; for builds of
    0.4.6 with torch 2.7 or later (the Blackwell images of that time) this is only a warning.""",
    remedy="install a newer SGLang",
    references=["issue 7249", "PR 5903"],
    needs=[Need.GPUS, Need.VERSION],
)
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
