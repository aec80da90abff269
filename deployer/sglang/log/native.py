"""Errors that native code prints itself, without a Python traceback: CUDA, HIP, NCCL, C++, Rust, compilers. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from deployer.sglang.log.record import message_of
from deployer.sglang.log.text import Line

#: Behind a progress bar, or where the line begins.
_START = r"(?:^|it/s\]|s/it\] ?|\?\] ?)\s{0,8}"
#: Each is proof that a process is ending or that a kernel failed.
_ERRORS = re.compile(
    rf"{_START}(?:"
    r"(?:CUDA|Cuda|HIP|NCCL|RCCL|NVSHMEM|cuBLAS|CUBLAS|cuDNN|CUDNN|CUTLASS|ROCm|MIOpen)"
    r" (?:runtime |driver |kernel )?(?:[Ee]rror|[Ff]ailure)\b ?(?:[:(\[']|at |in |\d)"
    r"|(?:hip|cuda)Error\w+\b"
    r"|terminate called (?:after throwing|without an active|recursively)"
    r"|F\d{4} \d\d:\d\d:[\d.]{2,20} +\d+ [^\s\]]{1,200}\] "
    r"|\[F\d{3}[^\]]{1,120}\] "
    r"|LLVM ERROR: |ptxas (?:fatal|error) |nvcc fatal |nvlink (?:fatal|error) "
    r"|Memory access fault by GPU|HW Exception by GPU|:0:rocdevice\.cpp"
    r"|thread '[^']{0,80}' (?:\(\d+\) )?panicked at |fatal runtime error: "
    r"|Failed: Assertion error \S|RuntimeError: Failed: Assertion error \S"
    r"|FATAL(?: ERROR)?: |\[FATAL(?: ERROR)?\]"
    r")"
    r"|Assertion [`'].{1,400}['`] failed|: Assertion failed: |\[FATAL ERROR\]: (?:HIP|CUDA)"
    r"|NCCL WARN (?:Cuda|HIP|CUDA|hip) failure"
    r"|\bCheck failed: .{1,300} \(.{1,80} vs\. "
)
#: Compilers: they say why, and the program that called them fails.
_COMPILER = re.compile(
    r"\.(?:cuh?|cpp|cc|c|h|hpp)(?:\(\d+\)|:\d+(?::\d+)?): (?:fatal )?error\b|^ninja: (?:error|fatal|build stopped)"
    r"|^collect2: error|^clang\S*: error|^\S*/ld: cannot find|: error: (?:LLVM|operation|'tt|'ttg|failed to legalize)"
)
#: Said by good launches, too: it explains a failure and proves none.
_HINTS = re.compile(r"NCCL WARN |NVSHMEM (?:ERROR|WARN)|\bWARN\b.{0,40}(?:ibv_|transport)|ibv_\w+ failed")
_WHAT = re.compile(r"\s*what\(\):\s*")
_ENDS = 8


def native_error(text: str) -> bool:
    """Return whether a line is an error of native code that ends its process."""
    message = message_of(text)
    return bool(_ERRORS.search(message, 0, 2000) or _COMPILER.search(message, 0, 2000))


def is_compiler(text: str) -> bool:
    """Return whether a line is a compiler's or a linker's error."""
    return bool(_COMPILER.search(message_of(text), 0, 2000))


def hint(text: str) -> bool:
    """Return whether a line of native code may explain a failure near it."""
    return native_error(text) or bool(_HINTS.search(text, 0, 2000))


def native_message(lines: Sequence[Line], index: int) -> tuple[str, int]:
    """Return what the error at ``index`` says, and the position of its last line."""
    text = message_of(lines[index].text).strip()
    if match := re.search(_START + r"(?=CUDA|HIP|Cuda|terminate|Assertion)", text):
        text = text[match.end() :]
    below = [line.text.strip() for line in lines[index + 1 : index + 1 + _ENDS]]
    if text.startswith("terminate called"):
        for offset, line in enumerate(below, 1):
            if match := _WHAT.match(line):
                return line[match.end() :], index + offset
    if "panicked at" in text and below and below[0] and not below[0].startswith(("note:", "[", "Traceback")):
        return f"{text} {below[0]}", index + 1
    return text, index
