"""What is in effect in a running server: each argument beside what was requested, and what SGLang computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deployer.records.codec import Tolerant, sparse


@dataclass(frozen=True, slots=True)
class ArgumentInEffect(Tolerant):
    """One argument: what was requested, what is in effect, and a verdict.

    ``equal``; ``changed`` (by SGLang, for the ``reason`` in its log, if there is one); ``missing`` (this version does
    not report it); or ``defaulted``: nobody requested it, and ``requested`` is the version's own default.
    """

    argument: str = ""
    requested: Any = None
    effective: Any = None
    verdict: str = ""
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Computed(Tolerant):
    """What SGLang made of its arguments. None: neither the server nor its log reports it.

    ``micro_batch_cap`` is in requests per micro-batch, as in force now; ``slots`` the micro-batches that take turns
    (1 without a pipeline); ``kv_tokens`` the tokens in the KV pool of one data-parallel rank; ``max_running`` the
    requests that can really run at once; ``graph_sizes`` the decode batch sizes with a captured graph, ascending
    (empty: none). Memory is GiB on each GPU: weights, KV pool, graphs, and what was free after the start.
    """

    slots: int = 1
    micro_batch_cap: int | None = None
    kv_tokens: int | None = None
    max_running: int | None = None
    graph_sizes: tuple[int, ...] | None = None
    context_length: int | None = None
    attention_backend: str | None = None
    weights_gib: float | None = None
    kv_gib: float | None = None
    graphs_gib: float | None = None
    free_gib: float | None = None

    @property
    def capacity(self) -> int | None:
        """Requests that can run at once, all slots together."""
        pipeline = self.slots * self.micro_batch_cap if self.slots > 1 and self.micro_batch_cap else None
        return min((limit for limit in (self.max_running, pipeline) if limit is not None), default=None)

    def sentences(self) -> list[str]:
        """Return the known values in words."""
        words = []
        if self.slots > 1:
            cap = "" if self.micro_batch_cap is None else f" of at most {self.micro_batch_cap} requests"
            words.append(f"{self.slots} micro-batches in turn{cap}")
        if self.max_running is not None:
            words.append(f"{self.max_running} requests at once")
        if self.kv_tokens is not None:
            words.append(f"{self.kv_tokens:,} tokens in the KV pool")
        if self.context_length is not None:
            words.append(f"context {self.context_length:,}")
        if self.graph_sizes:
            words.append(f"graphs of {len(self.graph_sizes)} batch sizes up to {self.graph_sizes[-1]}")
        elif self.graph_sizes is not None:
            words.append("no graphs")
        if self.attention_backend is not None:
            words.append(f"{self.attention_backend} attention")
        shares = zip(
            ("weights", "KV", "graphs", "free"),
            (self.weights_gib, self.kv_gib, self.graphs_gib, self.free_gib),
            strict=True,
        )
        memory = [f"{name} {value:.1f}" for name, value in shares if value is not None]
        return words + ([f"GiB per GPU: {', '.join(memory)}"] if memory else [])


@dataclass(frozen=True, slots=True)
class InEffect(Tolerant):
    """What was in effect when a release was verified: how many requested arguments are equal, and which are not.

    ``arguments`` are all of them, argument by argument; the manifest keeps the `summary`, which leaves them out.
    """

    computed: Computed | None = None
    changed: tuple[ArgumentInEffect, ...] = ()
    missing: tuple[str, ...] = ()
    equal: int = 0
    arguments: tuple[ArgumentInEffect, ...] = sparse(default=())

    @property
    def summary(self) -> InEffect:
        """The same without the single arguments."""
        return InEffect(self.computed, self.changed, self.missing, self.equal)

    @property
    def slots(self) -> int:
        """Micro-batches that take turns; 1 without a pipeline."""
        return self.computed.slots if self.computed else 1
