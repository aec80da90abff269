"""Recognises logs that are not SGLang's, and the programs that wrote them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from deployer.sglang.log.text import Line

#: What only SGLang's logs have, of any version (`vllm` alone proves nothing: SGLang imported it until 0.4).
_OURS = re.compile(
    r"sgl[_-]?(?:ang|kernel)|server_args=|ServerArgs|Scheduler hit an exception|Init (?:torch distributed|parallel)"
    r"|Load weight (?:begin|end)|load weight begin|fired up and ready|Capture [\w ]{0,30}graph|Memory pool end"
    r"|max_total_num_tokens|(?:Prefill|Decode) batch|fill batch|--mem-fraction-static|mem_fraction_static|launch_server"
    r"|\[gpu_id=\d|Rank \d+ scheduler|from a child proces",
    re.IGNORECASE,
)
#: What a fragment of an SGLang log may consist of.
_MAYBE = re.compile(
    r"Traceback|File \"|Error\b|Exception|INFO:|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|NCCL|CUDA|torch"
    r"|Completed \| |^\W*Killed|Segmentation fault|Capturing batches|ninja|nvcc|Uvicorn"
)
_OTHERS = (
    (
        "vLLM",
        r"\((?:EngineCore|APIServer|Worker|VllmWorker)\w*(?: pid=\d{1,8})?\)"
        r"|\bvllm/(?:v1|engine|entrypoints|worker|executor)/"
        r"|\bEngineCore\b|vLLM API server|Starting vLLM|vLLM is |VLLM_[A-Z]",
    ),
    ("TensorRT-LLM", r"\[TensorRT-LLM\]|\[TRT-LLM\]|tensorrt_llm/"),
    ("text-generation-inference", r"text_generation_(?:launcher|router|server)"),
    (
        "llama.cpp",
        r"^(?:llama_(?:model_loader|new_context\w*|context)|llm_load_\w+|ggml_\w+|srv {2,}\w+|main: server)[:( ]",
    ),
    ("Ollama", r"source=\w+\.go:\d+"),
    (
        "nginx",
        r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d \[\w{4,6}\] \d+#\d+|\" [1-5]\d\d \d+ \"[^\"]{0,400}\" \"[^\"]{0,400}\""
        r"|\[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\] \"[A-Z]{3,7} ",
    ),
)
_THEIRS = tuple((name, re.compile(regex)) for name, regex in _OTHERS)
#: Characters of a line that are searched.
_LOOK = 2000


def may_be_sglang(lines: Sequence[Line]) -> bool | None:
    """Return whether anything in a log could be SGLang's; None if it is empty or a unit's journal."""
    printed = [line for line in lines if line.text.strip()]
    if not printed or any(line.source != "engine" for line in printed):
        return None
    return any(_OURS.search(line.text, 0, _LOOK) or _MAYBE.search(line.text, 0, _LOOK) for line in printed)


def other_program(lines: Sequence[Line]) -> str:
    """Return the program that wrote a log that is not SGLang's (``vLLM``, ``nginx``); empty if it is or may be."""
    names: dict[str, int] = {}
    for line in lines:
        if line.source != "engine":
            return ""  # a unit's journal
        if _OURS.search(line.text, 0, _LOOK):
            return ""
        for name, regex in _THEIRS:
            if regex.search(line.text, 0, _LOOK):
                names[name] = names.get(name, 0) + 1
                break
    return max(names, key=lambda name: names[name], default="")
