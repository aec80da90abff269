"""Which part of the engine a traceback comes from, and how to search the project's tracker for it. Pure."""

from __future__ import annotations

import re

#: The first that matches a traceback's text names its part: the outer roles before the inner ones.
_PARTS = (
    (r"maybe_init_draft_worker|eagle_worker|draft_worker|/speculative/", "the draft worker of speculative decoding"),
    (r"/lora/|lora_manager", "the LoRA manager"),
    (r"get_tokenizer|tokenization_|/tokenizer\.py", "the tokenizer"),
    (r"get_processor|/multimodal/", "the multimodal processor"),
    (r"/disaggregation/", "the disaggregation (prefill and decode servers)"),
    (r"server_args\.py|/arg_groups/", "the handling of arguments"),
    (r"/quantization/", "the loader of quantized weights"),
    (r"in (?:load_weights|load_model|weight_loader\w*|_load_\w+)\b", "the weight loader"),
    (r"deep_ep|/token_dispatcher/", "DeepEP (expert parallel communication)"),
    (r"in (?:_?capture\w*|init_(?:cuda|device)_graphs?)\b", "the graph capture"),
    (r"/mem_cache/|init_memory_pool", "the KV cache"),
    (r"flashinfer/", "FlashInfer"),
    (r"triton/", "Triton"),
    (r"init_torch_distributed|parallel_state\.py|init_process_group", "the set-up of the ranks"),
    (r"transformers/", "Transformers"),
    (r"in (?:event_loop\w*|run_event_loop|run_batch)\b", "the scheduler's loop"),
)
_STAGE = re.compile(r"\bPP(\d+)\b")
#: What differs from host to host and spoils a search.
_PRIVATE = re.compile(r"/[\w./+-]{3,}|0x[0-9a-f]+|\b\d{3,}\b|\([^)]{40,}\)")
_WORDS = 12


def component(text: str, rank: str) -> str:
    """Return the part of the engine that a traceback comes from, with the stage of ``rank``; empty if unknown."""
    part = next((name for pattern, name in _PARTS if re.search(pattern, text)), "")
    stage = _STAGE.search(rank)
    return f"{part}, pipeline stage {stage[1]}" if part and stage else part


def tracker_search(message: str, origin: str) -> str:
    """Return a search for the tracker, in the words of issue titles: the exception, and the function that raised it."""
    first = message.split("\n", 1)[0].split(" at `", 1)[0]
    words = " ".join(_PRIVATE.sub(" ", first).split()[:_WORDS]).strip(" :'\"`")
    function = re.search(r"line \d+, in (\w+)", origin)
    inside = f" {function[1]}" if function and function[1] not in ("forward", "__init__", "apply") else ""
    return " ".join(f"repo:sgl-project/sglang {words.replace(chr(34), '')}{inside}".split())
