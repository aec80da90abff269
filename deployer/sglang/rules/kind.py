"""Servers that can never become ready for deployer, which proves readiness with a generation."""

from __future__ import annotations

import re
from collections.abc import Iterator

from deployer.sglang.rules.base import Hit, Severity, Theme
from deployer.sglang.rules.facts import Facts

THEME = Theme("kind", "Kinds of servers")

#: Architectures that SGLang serves without generation (0.5.12.post1 and 0.5.23: srt/configs/model_config.py).
_NO_GENERATION = re.compile(
    r"\w+For(Reward|SequenceClassification)\w*|LlamaEmbeddingModel|MistralModel|CLIPModel|BertModel|Contriever"
    r"|XLMRobertaModel|Qwen3Model|EmbeddingGemma2Model|Lfm2BidirectionalModel"
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
            # With its encoders named the language half seems to answer text; nobody has tried it with deployer.
            severity = Severity.WARNING if facts.flag("--encoder-urls") else None
            yield Hit(
                f"{option} is one half of a server: it answers no generation by itself", facts.at(option), severity
            )


#: Flags with which a server does not answer what deployer asks, and why.
_UNANSWERED = {
    "--ssl-keyfile": "the server speaks HTTPS only, and deployer asks over HTTP on the host",
    "--grpc-mode": "the server speaks gRPC and has no HTTP",
    "--skip-tokenizer-init": "the server takes token ids only, and deployer's requests are text",
    "--checkpoint-engine-wait-weights-before-ready": "the server waits for weights that somebody else sends",
}


@THEME.rule("cannot-be-asked")
def cannot_be_asked(facts: Facts) -> Iterator[Hit]:
    for option, why in _UNANSWERED.items():
        if facts.flag(option) not in (None, False):
            yield Hit(why, facts.at(option))
