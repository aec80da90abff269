"""Servers that can never become ready for deployer, which proves readiness with a generation."""

from __future__ import annotations

import re
from collections.abc import Iterator

from deployer.sglang.rules.base import Hit, Theme
from deployer.sglang.rules.facts import Facts

THEME = Theme("kind", "Kinds of servers")

#: Architectures that SGLang serves without generation (0.5.12.post1:srt/configs/model_config.py:1473).
_NO_GENERATION = re.compile(
    r"\w+For(Reward|SequenceClassification)\w*|LlamaEmbeddingModel|MistralModel|CLIPModel|BertModel|Contriever"
    r"|XLMRobertaModel|InternLM2ForRewardModel"
)


@THEME.rule("no-generation")
def no_generation(facts: Facts) -> Iterator[Hit]:
    if facts.on("--is-embedding"):
        yield Hit("an embedding or reward server answers no generation", facts.at("--is-embedding"))
    elif _NO_GENERATION.fullmatch(facts.model.architecture or ""):
        place = ("services", facts.service.name, "model")
        yield Hit(f"{facts.model.architecture} is served for embeddings or scores, without generation", place)


@THEME.rule("half-a-server")
def half_a_server(facts: Facts) -> Iterator[Hit]:
    mode = facts.word("--disaggregation-mode")
    if mode in ("prefill", "decode", "encode"):
        option = "--disaggregation-mode"
        yield Hit(f"{mode} is one half of a server: it answers no generation by itself", facts.at(option))
    for option in ("--encoder-only", "--language-only"):
        if facts.on(option):
            yield Hit(f"{option} is one half of a server: it answers no generation by itself", facts.at(option))
