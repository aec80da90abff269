"""What a model's own sizes allow. Most of these need its config.json."""

from __future__ import annotations

import re
from collections.abc import Iterator

from deployer.sglang.rules.base import Hit, Severity, Theme
from deployer.sglang.rules.facts import Facts
from deployer.sglang.rules.shape import layer_split

THEME = Theme("model", "The model")

PARTITION = "SGLANG_PP_LAYER_PARTITION"
LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_TP, _PP = ("parallelism", "tp"), ("parallelism", "pp")


@THEME.rule("heads-divide-tp")
def heads_divide_tp(facts: Facts) -> Iterator[Hit]:
    heads, tp = facts.model.heads, facts.attention_tp
    if heads and heads % tp and not facts.on_cpu:
        yield Hit(f"{heads} attention heads cannot be divided among {tp} ranks", _TP)


@THEME.rule("kv-heads-divide-tp")
def kv_heads_divide_tp(facts: Facts) -> Iterator[Hit]:
    kv, tp = facts.model.kv_heads, facts.attention_tp
    if kv and not facts.model.mla and kv % tp and tp % kv and not facts.on_cpu:
        yield Hit(f"{kv} key/value heads and {tp} ranks: neither divides the other", _TP)


@THEME.rule("kv-heads-replicated")
def kv_heads_replicated(facts: Facts) -> Iterator[Hit]:
    kv, tp = facts.model.kv_heads, facts.attention_tp
    if kv and not facts.model.mla and tp > kv and tp % kv == 0:
        yield Hit(f"{kv} key/value heads on {tp} ranks: each is kept {tp // kv} times", _TP)


@THEME.rule("mla-kv-on-every-rank")
def mla_everywhere(facts: Facts) -> Iterator[Hit]:
    model, tp = facts.model, facts.attention_tp
    if model.mla and tp > 1 and model.layers:
        values = (model.kv_values_per_token(tp) or 0) * -(-model.layers // facts.pp)
        yield Hit(f"each of {tp} GPUs keeps the same {values * 2 / 1024:.1f} KiB (bf16) for every token", _TP)


@THEME.rule("layers-at-least-pp")
def layers_at_least_pp(facts: Facts) -> Iterator[Hit]:
    layers = facts.model.layers
    if layers and facts.pp > layers:
        yield Hit(f"{facts.pp} stages for {layers} layers", _PP)


@THEME.rule("uneven-layers")
def uneven_layers(facts: Facts) -> Iterator[Hit]:
    layers = facts.model.layers
    if layers and 1 < facts.pp <= layers and layers % facts.pp and PARTITION not in facts.environment:
        split = layer_split(layers, facts.pp)
        yield Hit(
            f"{layers} layers over {facts.pp} stages are {','.join(map(str, split))}: "
            f"the pace is that of {max(split)} layers, {max(split) * facts.pp / layers - 1:.0%} above an even split",
            _PP,
        )


@THEME.rule("layer-partition")
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


@THEME.rule("context-above-model")
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


@THEME.rule("pp-unsupported-model")
def pp_unsupported_model(facts: Facts) -> Iterator[Hit]:
    model = facts.model.architecture
    if model == "KimiK25ForConditionalGeneration" and facts.pp > 1 and facts.before("0.5.10"):
        yield Hit(
            f"{model} has no pipeline parallelism in SGLang {facts.version}; 0.5.10 is the first known version "
            "that has it",
            _PP,
        )


@THEME.rule("trust-remote-code")
def trust_remote_code(facts: Facts) -> Iterator[Hit]:
    on = facts.on("--trust-remote-code")
    if facts.model.own_code and not on:
        yield Hit("config.json has auto_map, but --trust-remote-code is not set", ("extra_args",))
    elif on and not facts.model.own_code and not (facts.model.architecture or "").startswith("Kimi"):
        place = facts.at("--trust-remote-code")
        yield Hit("on, but config.json names no code of the model's own", place, Severity.ADVICE)
