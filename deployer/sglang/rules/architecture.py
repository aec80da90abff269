"""What a model's own sizes allow. Most of these need its config.json."""

from __future__ import annotations

import re
from collections.abc import Iterator

from deployer.sglang.rules.base import Hit, Need, Severity, Theme
from deployer.sglang.rules.facts import Facts
from deployer.sglang.rules.shape import layer_split

THEME = Theme("model", "The model")

PARTITION = "SGLANG_PP_LAYER_PARTITION"
LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_TP, _PP = ("parallelism", "tp"), ("parallelism", "pp")


@THEME.rule(
    "heads-divide-tp",
    Severity.ERROR,
    "attention heads can be divided among the tensor parallel ranks",
    about="""Each rank computes whole attention heads, so their number must be a multiple of the ranks that
    share one attention layer (tp, or fewer with DP attention or context parallelism). The model's layers assert
    it when they are built. On the CPU SGLang adds empty heads instead.""",
    remedy="choose a tp that divides the number of heads; more GPUs can be used with pp or dp",
    references=[
        "0.5.12.post1:srt/models (num_heads % attn_tp_size == 0)",
        "0.5.23:srt/configs/update_config.py adjust_tp_num_heads_if_necessary",
    ],
    needs=[Need.MODEL],
)
def heads_divide_tp(facts: Facts) -> Iterator[Hit]:
    heads, tp = facts.model.heads, facts.attention_tp
    if heads and heads % tp and not facts.on_cpu:
        yield Hit(f"{heads} attention heads cannot be divided among {tp} ranks", _TP)


@THEME.rule(
    "kv-heads-divide-tp",
    Severity.ERROR,
    "key/value heads fit the tensor parallel size",
    about="""Either the key/value heads are divided among the ranks, or each of them is copied to the same
    number of ranks: one number must be a multiple of the other. The attention layers assert it.""",
    remedy="choose a tp that divides the number of key/value heads, or is a multiple of it",
    references=["0.5.12.post1:srt/models/llama.py"],
    needs=[Need.MODEL],
)
def kv_heads_divide_tp(facts: Facts) -> Iterator[Hit]:
    kv, tp = facts.model.kv_heads, facts.attention_tp
    if kv and not facts.model.mla and kv % tp and tp % kv and not facts.on_cpu:
        yield Hit(f"{kv} key/value heads and {tp} ranks: neither divides the other", _TP)


@THEME.rule(
    "kv-heads-replicated",
    Severity.ADVICE,
    "more tensor parallel ranks than key/value heads",
    about="""If there are fewer key/value heads than ranks, each head's cache is kept on several GPUs, and the
    KV pool no longer grows with tp. DP attention or a pipeline keeps each token once.""",
    remedy="for room rather than single-stream speed: less tp, with pp or dp_attention",
    references=["0.5.12.post1:srt/configs/model_config.py get_num_kv_heads"],
    needs=[Need.MODEL],
)
def kv_heads_replicated(facts: Facts) -> Iterator[Hit]:
    kv, tp = facts.model.kv_heads, facts.attention_tp
    if kv and not facts.model.mla and tp > kv and tp % kv == 0:
        yield Hit(f"{kv} key/value heads on {tp} ranks: each is kept {tp // kv} times", _TP)


@THEME.rule(
    "mla-kv-on-every-rank",
    Severity.ADVICE,
    "latent attention keeps the whole KV cache on every tensor parallel rank",
    about="""Multi-head latent attention (DeepSeek, Kimi) caches one compressed vector per token and layer,
    which cannot be split by heads: with tp = 8 all eight GPUs hold the same cache. A pipeline splits it by
    layers, DP attention by requests.""",
    remedy="if room for tokens matters: pp, or dp_attention with dp = tp",
    references=["0.5.12.post1:srt/model_executor/pool_configurator.py:105"],
    needs=[Need.MODEL],
)
def mla_everywhere(facts: Facts) -> Iterator[Hit]:
    model, tp = facts.model, facts.attention_tp
    if model.mla and tp > 1 and model.layers:
        values = (model.kv_values_per_token(tp) or 0) * -(-model.layers // facts.pp)
        yield Hit(f"each of {tp} GPUs keeps the same {values * 2 / 1024:.1f} KiB (bf16) for every token", _TP)


@THEME.rule(
    "layers-at-least-pp",
    Severity.ERROR,
    "every pipeline stage has a layer",
    about="""Layers are distributed over the stages; a stage without one cannot be built.""",
    remedy="choose a pp no larger than the number of layers",
    references=["0.5.12.post1:srt/distributed/utils.py:101"],
    needs=[Need.MODEL],
)
def layers_at_least_pp(facts: Facts) -> Iterator[Hit]:
    layers = facts.model.layers
    if layers and facts.pp > layers:
        yield Hit(f"{facts.pp} stages for {layers} layers", _PP)


@THEME.rule(
    "uneven-layers",
    Severity.ADVICE,
    "pipeline stages have different numbers of layers",
    about="""The remainder goes to the last stages: 61 layers over 8 stages are 7,7,7,8,8,8,8,8. The largest
    stage sets the pace of the whole pipeline, and the stage with the least room for tokens limits the server.
    The first stage also has the embedding, the last one the output layer.""",
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
            _PP,
        )


@THEME.rule(
    "layer-partition",
    Severity.ERROR,
    f"{PARTITION} fits pp and the model",
    about=f"""{PARTITION} has one number for each stage, and they must sum up to the model's layers; otherwise
    SGLang raises ValueError in every rank when the model is built. Without a pipeline 0.5.23 ignores it;
    earlier versions read it for models that can run in a pipeline.""",
    remedy="give one number for each stage, with the number of layers as their sum, or remove the variable",
    references=["0.5.12.post1:srt/distributed/utils.py:101", "0.5.23:srt/distributed/utils.py:119"],
)
def layer_partition(facts: Facts) -> Iterator[Hit]:
    text, layers = facts.environment.get(PARTITION), facts.model.layers
    if text is None:
        return
    where = ("environment", PARTITION)
    if facts.pp == 1:
        if text.strip() != str(layers):
            severity = Severity.ADVICE if facts.since("0.5.23") else Severity.WARNING
            yield Hit("set, but there is no pipeline: pp is 1", where, severity)
        return
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,6}", part) for part in parts):
        yield Hit("not a list of whole numbers", where)
    elif len(parts) != facts.pp:
        yield Hit(f"{len(parts)} numbers for pp = {facts.pp} stages", where)
    elif layers and (total := sum(map(int, parts))) != layers:
        yield Hit(f"the numbers sum up to {total}, but the model has {layers} layers", where)


@THEME.rule(
    "context-above-model",
    Severity.ERROR,
    "the context is no longer than the model's own",
    about=f"""SGLang derives the longest context from config.json (max_position_embeddings, scaled if
    rope_scaling says so) and raises ValueError for a longer --context-length unless {LONGER}=1 is set; then
    positions that the model never saw give wrong output or CUDA errors.""",
    remedy="leave limits.context_length out to use the model's own, or choose a smaller one",
    references=["0.5.12.post1:srt/configs/model_config.py"],
    needs=[Need.MODEL],
)
def context_above_model(facts: Facts) -> Iterator[Hit]:
    requested, own = facts.profile.limits.context_length, facts.model.context
    if requested and own and requested > own:
        allowed = facts.truthy(LONGER)
        yield Hit(
            f"{requested}, but the model's own context is {own} tokens"
            + (f" ({LONGER} makes SGLang accept it)" if allowed else ""),
            ("limits", "context_length"),
            Severity.WARNING if allowed else None,
        )


@THEME.rule(
    "pp-unsupported-model",
    Severity.ERROR,
    "the model's class can run in a pipeline",
    about="""A model can run in a pipeline if its forward() takes pp_proxy_tensors.
    KimiK25ForConditionalGeneration (Kimi K2.5 and K2.6) does from 0.5.10 on; with 0.5.9 the server loads all
    weights and then exits with "Pipeline Parallel is not compatible with this model." (the pull request that
    added it reports an hour lost that way).""",
    remedy="use SGLang 0.5.10 or later, or a profile with pp = 1",
    references=["PR 18925", "0.5.9:srt/models/kimi_k25.py", "0.5.10:srt/models/kimi_k25.py:780"],
    needs=[Need.MODEL, Need.VERSION],
)
def pp_unsupported_model(facts: Facts) -> Iterator[Hit]:
    model = facts.model.architecture
    if model == "KimiK25ForConditionalGeneration" and facts.pp > 1 and facts.before("0.5.10"):
        yield Hit(
            f"{model} has no pipeline parallelism in SGLang {facts.version}; 0.5.10 is the first known version "
            "that has it",
            _PP,
        )


@THEME.rule(
    "trust-remote-code",
    Severity.WARNING,
    "code that comes with the model is allowed exactly where it is needed",
    about="""A model whose config.json has auto_map brings its own Python code (Kimi: its tokenizer), and
    transformers refuses to run it without --trust-remote-code. Left on for a model that has none, it lets any
    file that is later put into the model's folder run as the server's user.""",
    remedy="set extra_args.trust-remote-code = true if the model needs it, and leave it out elsewhere",
    references=["log: requires you to execute the configuration file"],
    needs=[Need.MODEL],
)
def trust_remote_code(facts: Facts) -> Iterator[Hit]:
    on = facts.on("--trust-remote-code")
    if facts.model.own_code and not on:
        yield Hit("config.json has auto_map, but --trust-remote-code is not set", ("extra_args",))
    elif on and not facts.model.own_code and not (facts.model.architecture or "").startswith("Kimi"):
        place = facts.at("--trust-remote-code")
        yield Hit("on, but config.json names no code of the model's own", place, Severity.ADVICE)
