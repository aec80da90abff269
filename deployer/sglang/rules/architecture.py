"""What a model's own sizes allow. All of these need its config.json."""

from __future__ import annotations

import re
from collections.abc import Iterator

from deployer.sglang.rules.base import Hit, Need, Severity, Theme
from deployer.sglang.rules.facts import Facts
from deployer.sglang.rules.shape import layer_split

THEME = Theme("model", "The model")

ADVICE, WARNING = Severity.ADVICE, Severity.WARNING
PARTITION = "SGLANG_PP_LAYER_PARTITION"
LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"


@THEME.rule(
    "heads-divide-tp",
    Severity.ERROR,
    "attention heads can be divided among the tensor parallel ranks",
    about="""Each rank computes whole attention heads, so their number is a multiple of the ranks that share one
    attention layer (tp, less with DP attention or context parallelism). The model's layers assert it when they
    are built. On the CPU SGLang adds empty heads instead.""",
    remedy="choose a tp that divides the number of heads; more GPUs can be used with pp or dp",
    references=[
        "0.5.12.post1:srt/models (num_heads % attn_tp_size == 0)",
        "0.5.23:srt/configs/update_config.py adjust_tp_num_heads_if_necessary",
    ],
    needs=[Need.MODEL],
)
def heads_divide_tp(facts: Facts) -> Iterator[Hit]:
    heads = facts.model.heads
    if heads and heads % facts.attention_tp and not facts.on_cpu:
        yield Hit(
            f"{heads} attention heads cannot be divided among {facts.attention_tp} ranks",
            ("parallelism", "tp"),
        )


@THEME.rule(
    "kv-heads-divide-tp",
    Severity.ERROR,
    "key/value heads fit the tensor parallel size",
    about="""Either the key/value heads are divided among the ranks, or each of them is copied to the same
    number of ranks: one number is a multiple of the other. The attention layers assert it.""",
    remedy="choose a tp that divides the number of key/value heads, or is a multiple of it",
    references=["0.5.12.post1:srt/models/llama.py"],
    needs=[Need.MODEL],
)
def kv_heads_divide_tp(facts: Facts) -> Iterator[Hit]:
    kv, tp = facts.model.kv_heads, facts.attention_tp
    if kv and not facts.model.mla and kv % tp and tp % kv and not facts.on_cpu:
        yield Hit(f"{kv} key/value heads and {tp} ranks: neither divides the other", ("parallelism", "tp"))


@THEME.rule(
    "kv-heads-replicated",
    Severity.ADVICE,
    "more tensor parallel ranks than key/value heads",
    about="""Where there are fewer key/value heads than ranks, each head's cache is kept on several GPUs, and
    the KV pool no longer grows with tp. DP attention or a pipeline keeps each token once.""",
    remedy="for room rather than single-stream speed: less tp with pp or dp_attention",
    references=["0.5.12.post1:srt/configs/model_config.py get_num_kv_heads"],
    needs=[Need.MODEL],
)
def kv_heads_replicated(facts: Facts) -> Iterator[Hit]:
    kv, tp = facts.model.kv_heads, facts.attention_tp
    if kv and not facts.model.mla and tp > kv and tp % kv == 0:
        yield Hit(f"{kv} key/value heads on {tp} ranks: each is kept {tp // kv} times", ("parallelism", "tp"))


@THEME.rule(
    "mla-kv-on-every-rank",
    Severity.ADVICE,
    "latent attention keeps the whole KV cache on every tensor parallel rank",
    about="""Multi-head latent attention (DeepSeek, Kimi) caches one compressed vector a token and layer, which
    cannot be split by heads: with tp = 8 all eight GPUs hold the same cache. A pipeline splits it by layers, DP
    attention by requests.""",
    remedy="where room for tokens matters: pp, or dp_attention with dp = tp",
    references=["0.5.12.post1:srt/model_executor/pool_configurator.py:105"],
    needs=[Need.MODEL],
)
def mla_everywhere(facts: Facts) -> Iterator[Hit]:
    model, tp = facts.model, facts.attention_tp
    if model.mla and tp > 1 and model.layers:
        values = (model.kv_values_per_token(tp) or 0) * -(-model.layers // facts.pp)
        yield Hit(
            f"each of {tp} GPUs keeps {values * 2 / 1024:.1f} KiB for every token (bf16), the same on all of them",
            ("parallelism", "tp"),
        )


@THEME.rule(
    "layers-at-least-pp",
    Severity.ERROR,
    "every pipeline stage has a layer",
    about="""Layers are dealt out to the stages; a stage without one cannot be built.""",
    remedy="choose a pp that is not larger than the number of layers",
    references=["0.5.12.post1:srt/distributed/utils.py:101"],
    needs=[Need.MODEL],
)
def layers_at_least_pp(facts: Facts) -> Iterator[Hit]:
    layers = facts.model.layers
    if layers and facts.pp > layers:
        yield Hit(f"{facts.pp} stages for {layers} layers", ("parallelism", "pp"))


@THEME.rule(
    "uneven-layers",
    Severity.ADVICE,
    "pipeline stages have different numbers of layers",
    about="""What does not divide goes to the last stages: 61 layers over 8 stages are 7,7,7,8,8,8,8,8. The
    largest stage sets the pace of the whole pipeline, and the smallest room for tokens among the stages is the
    room of the server. The first stage also has the embedding and the last one the output layer.""",
    remedy=f"to split it otherwise, set {PARTITION} (numbers that sum up to the layers) in the profile's environment",
    references=["0.5.12.post1:srt/distributed/utils.py:101"],
    needs=[Need.MODEL],
)
def uneven_layers(facts: Facts) -> Iterator[Hit]:
    layers = facts.model.layers
    if layers and 1 < facts.pp <= layers and layers % facts.pp and PARTITION not in facts.environment:
        split = layer_split(layers, facts.pp)
        yield Hit(
            f"{layers} layers over {facts.pp} stages are {','.join(map(str, split))}: "
            f"the pace is that of {max(split)} layers, {max(split) * facts.pp / layers - 1:.0%} above an even split",
            ("parallelism", "pp"),
        )


@THEME.rule(
    "layer-partition",
    Severity.ERROR,
    f"{PARTITION} fits pp and the model",
    about=f"""{PARTITION} has one number for each stage, and they sum up to the model's layers; SGLang raises
    ValueError otherwise, in every rank, when the model is built. Without a pipeline 0.5.23 does not look at it;
    earlier versions do in models that can run in a pipeline.""",
    remedy="give as many numbers as pp says, with the number of layers as their sum, or leave the variable out",
    references=["0.5.12.post1:srt/distributed/utils.py:101", "0.5.23:srt/distributed/utils.py:119"],
)
def layer_partition(facts: Facts) -> Iterator[Hit]:
    text = facts.environment.get(PARTITION)
    if text is None:
        return
    where = ("environment", PARTITION)
    if facts.pp == 1:
        if text.strip() != str(facts.model.layers):
            unread = facts.version is not None and not facts.before("0.5.23")
            yield Hit("it is set, but there is no pipeline: pp is 1", where, ADVICE if unread else WARNING)
        return
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,6}", part) for part in parts):
        yield Hit("is no list of whole numbers", where)
        return
    layers = facts.model.layers
    if len(parts) != facts.pp:
        yield Hit(f"{len(parts)} numbers for pp = {facts.pp} stages", where)
    elif layers and (total := sum(map(int, parts))) != layers:
        yield Hit(f"the numbers sum up to {total}, but the model has {layers} layers", where)


@THEME.rule(
    "context-above-model",
    Severity.ERROR,
    "the context is no longer than the model's own",
    about=f"""SGLang derives the longest context from config.json (max_position_embeddings, scaled where
    rope_scaling says so) and raises ValueError for a longer --context-length, unless {LONGER}=1 is set; then
    positions that the model never saw give wrong output or CUDA errors.""",
    remedy="leave limits.context_length out to use the model's own, or choose a smaller one",
    references=["0.5.12.post1:srt/configs/model_config.py"],
    needs=[Need.MODEL],
)
def context_above_model(facts: Facts) -> Iterator[Hit]:
    asked, own = facts.profile.limits.context_length, facts.model.context
    if asked and own and asked > own:
        allowed = facts.truthy(LONGER)
        yield Hit(
            f"found {asked}, but the model's own context is {own} tokens"
            + (f" ({LONGER} lets SGLang take it)" if allowed else ""),
            ("limits", "context_length"),
            Severity.WARNING if allowed else None,
        )


@THEME.rule(
    "pp-unsupported-model",
    Severity.ERROR,
    "the model's class can run in a pipeline",
    about="""A model takes part in a pipeline when its forward() takes pp_proxy_tensors.
    KimiK25ForConditionalGeneration (Kimi K2.5 and K2.6) does from 0.5.10 on; with 0.5.9 the server loads
    all weights and then ends with "Pipeline Parallel is not compatible with this model." (the pull request that
    added it tells of an hour lost that way).""",
    remedy="use SGLang 0.5.10 or later, or a profile with pp = 1",
    references=["PR 18925", "0.5.9:srt/models/kimi_k25.py", "0.5.10:srt/models/kimi_k25.py:780"],
    needs=[Need.MODEL, Need.VERSION],
)
def pp_unsupported_model(facts: Facts) -> Iterator[Hit]:
    kimi = facts.model.architecture == "KimiK25ForConditionalGeneration"
    if kimi and facts.pp > 1 and facts.before("0.5.10"):
        yield Hit(
            f"{facts.model.architecture} in SGLang {facts.version} has no pipeline parallelism; "
            "0.5.10 is the first known version that has it",
            ("parallelism", "pp"),
        )


@THEME.rule(
    "trust-remote-code",
    Severity.WARNING,
    "code that comes with the model is allowed exactly where it is needed",
    about="""A model whose config.json has auto_map brings Python of its own (Kimi: its tokenizer), and
    transformers refuses to run it without --trust-remote-code. Left on for a model that has none, it lets any
    file put into the model's folder later run as the server's account.""",
    remedy="set extra_args.trust-remote-code = true where the model needs it, and leave it out elsewhere",
    references=["log: requires you to execute the configuration file"],
    needs=[Need.MODEL],
)
def trust_remote_code(facts: Facts) -> Iterator[Hit]:
    on = facts.on("--trust-remote-code")
    if facts.model.own_code and not on:
        yield Hit("config.json has auto_map, but --trust-remote-code is not given", ("extra_args",))
    elif on and not facts.model.own_code and not (facts.model.architecture or "").startswith("Kimi"):
        yield Hit(
            "it is on, but config.json names no code of the model's own",
            facts.at("--trust-remote-code"),
            Severity.ADVICE,
        )
