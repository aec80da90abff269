"""A platform plug-in for SGLang 0.5.23: plain PyTorch on the CPU.

Installed into the environment of practice hosts and found there by its entry point (group ``sglang.srt.platforms``).
SGLang's own CPU platform wants kernels that no published wheel has; a platform from outside takes the native path of
every operation instead, and nothing of SGLang is changed.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform


class PracticePlatform(CpuDeviceMixin, SRTPlatform):
    """A CPU without Triton, graphs and communication libraries of its own."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()

    def get_default_attention_backend(self) -> str:
        """Attention in plain PyTorch."""
        return "torch_native"

    def is_pin_memory_available(self, device: Any = None) -> bool:
        """There is no device that pinned memory would be copied to."""
        return False


def activate() -> str:
    """Where SGLang finds the platform; it is always fit to be used."""
    return f"{__name__}.{PracticePlatform.__name__}"
