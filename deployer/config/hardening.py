"""What the unit takes away from a server that SGLang does not need, and what it leaves, with the reasons. Data.

docs/security.md is made from it, and a practice host's `systemd-analyze security` is held to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator

from deployer.config.wording import unknown


@dataclass(frozen=True)
class Hardening:
    """The value of a directive of the unit, and what it does for SGLang."""

    value: str
    why: str


#: Capabilities that root has and no inference server uses: clock, reboot, audit, other kernel matters.
_UNUSED = (
    "AUDIT_CONTROL", "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "LEASE", "LINUX_IMMUTABLE", "MAC_ADMIN",
    "MAC_OVERRIDE", "SYS_BOOT", "SYS_PACCT", "SYS_TIME", "SYS_TTY_CONFIG", "WAKE_ALARM",
)  # fmt: skip

#: The directives of the unit, in its order.
HARDENING: Mapping[str, Hardening] = MappingProxyType(
    {
        "NoNewPrivileges": Hardening(
            "yes",
            "no program that the server starts gains rights (setuid). With another user than root the driver's helper "
            "cannot either, so /dev/nvidia* and /dev/nvidia-uvm must exist before: nvidia-persistenced or "
            "nvidia-modprobe at boot",
        ),
        "ProtectSystem": Hardening(
            "full",
            "/usr, /boot and /etc are read-only; an engine in /usr/local works, but caches must not lie there (they "
            "are in HOME by default). `home` and `hf_home` stay writable wherever they are",
        ),
        "ProtectControlGroups": Hardening("yes", "the hierarchy of control groups is read-only"),
        "ProtectKernelTunables": Hardening("yes", "/proc/sys and /sys are read-only; CUDA and NCCL only read them"),
        "ProtectKernelLogs": Hardening("yes", "the kernel's messages are out of reach"),
        "ProtectHostname": Hardening("yes", "it cannot rename the host"),
        "RestrictSUIDSGID": Hardening("yes", "it cannot make files setuid or setgid"),
        "RestrictRealtime": Hardening("yes", "no real-time scheduling, with which a runaway thread would block a core"),
        "RestrictAddressFamilies": Hardening(
            "AF_UNIX AF_INET AF_INET6 AF_NETLINK",
            "TCP, UDP, local sockets, and the list of network interfaces that NCCL and RDMA ask for; RDMA itself goes "
            "through /dev/infiniband",
        ),
        "LockPersonality": Hardening("yes", "no other execution domain"),
        "SystemCallArchitectures": Hardening("native", "no system calls of 32-bit programs"),
        "CapabilityBoundingSet": Hardening(
            "~" + " ".join(f"CAP_{name}" for name in _UNUSED),
            "clock, reboot, audit and the like are taken even from root. What is left of root's rights: "
            "CAP_SYS_MODULE, CAP_MKNOD and CAP_SYS_ADMIN for the driver's helper, CAP_SYS_NICE for NUMA binding, "
            "CAP_IPC_LOCK for pinned memory, CAP_SYS_PTRACE for py-spy, which SGLang runs on itself when it hangs, "
            "CAP_DAC_* to read models of other accounts. With `user` set none of them is left",
        ),
    }
)

#: Directives that the unit does not have, by the names that `systemd-analyze security` uses, and why.
LEFT_OUT: Mapping[str, str] = MappingProxyType(
    {
        "User": "root unless the inventory sets `user`: another account must be able to read the model and to open "
        "/dev/nvidia*; setting it is the largest single gain",
        "DynamicUser": "its caches would belong to an account that changes with every start",
        "PrivateDevices": "takes /dev/nvidia* and /dev/infiniband away",
        "DeviceAllow": "the devices' names depend on driver and fabric (nvidia-uvm, nvidia-caps, gdrdrv, infiniband)",
        "ProtectClock": "implies a list of devices, which takes /dev/nvidia* away",
        "ProtectHome": "models, engines and caches (Triton, FlashInfer, DeepGEMM, the hub) lie in homes",
        "ProtectKernelModules": "the driver's helper loads nvidia-uvm where it is not loaded at boot",
        "MemoryDenyWriteExecute": "JIT compilers (Triton, FlashInfer, torch.compile) write memory and run it",
        "PrivateTmp": "what SGLang keeps in /tmp (profiler traces, crash dumps, a file cache of the KV pool) is read "
        "from outside, and would be lost with every stop; its sockets there are used by its own processes only",
        "PrivateNetwork": "it serves a port",
        "IPAddressDeny": "who may reach the port is for a firewall to say",
        "PrivateUsers": "devices and models belong to accounts of the host",
        "PrivateIPC": "shared memory with other services of the host (a router, a cache) would be cut off",
        "PrivateMounts": "the directives above give it a mount namespace of its own already",
        "RestrictNamespaces": "an engine in a container of its own (apptainer, bubblewrap) makes namespaces",
        "SystemCallFilter": "the driver, RDMA and JIT compilers use calls that no list has (set_mempolicy, "
        "userfaultfd, process_vm_readv); one that is missing shows as a crash deep in CUDA",
        "ProtectProc": "not tried on enough hosts: nvidia-smi and py-spy look at other processes",
        "ProcSubset": "SGLang reads /proc/meminfo and /proc/cpuinfo",
        "RootDirectory": "the engine is the host's own",
        "UMask": "files of a shared hub cache must stay readable for the other accounts that use it",
        "RemoveIPC": "would remove shared memory of the account's other programs",
        "Delegate": "not needed, and so not set",
        "SupplementaryGroups": "none are set; those of the account apply",
        "KeyringMode": "systemd's default, a keyring of its own",
        "NotifyAccess": "systemd's default, none",
        "AmbientCapabilities": "none are given",
    }
)


def _relaxable(names: list[str]) -> list[str]:
    """Refuse names that are not directives of the unit's hardening."""
    for name in names:
        if name not in HARDENING:
            raise ValueError(unknown(name, HARDENING, kind=f"the unit does not have {name!r}"))
    return names


#: Directives to leave out.
Relaxed = Annotated[list[str], AfterValidator(_relaxable)]


def hardening(relaxed: Iterable[str]) -> dict[str, str]:
    """Return the unit's directives and their values, without those that are relaxed."""
    left_out = set(relaxed)
    return {name: item.value for name, item in HARDENING.items() if name not in left_out}
