"""How long the stand-in's decode steps and prefills take: pure functions of the parallelism.

One formula, in milliseconds, for a decode step of ``n`` running requests in all (Kimi K2.6 on GPUs that reach each
other over PCIe, fitted to measurements on eight of them)::

    step(n) = weights / tp                            reading the weights of the experts that one token needs
            + growth * (n ** 0.427 - 1) / (tp * pp ** 0.146)    more experts touched, more attention; stages overlap
            + all_reduce(tp) + hops(pp)               collectives in every layer; one send per stage border
    step(n) *= expert parallelism, times the bubble of a pipeline without batches in flight
    step(n) += kernel launches where no graph is replayed, + per-slot bookkeeping (less with large micro-batches)

In a pipeline ``step(n)`` is one round of the whole loop: every micro-batch slot gives one result in it.
"""

from __future__ import annotations

import dataclasses
import random

WEIGHTS_MS = 25.8
GROWTH_MS = 39.25
GROWTH_POWER = 0.427
OVERLAP_POWER = 0.1462
ALL_REDUCE_MS = 35.24  # at 8 ranks; (tp - 1) / 7 of it at tp ranks
HOP_MS = 0.25
BUBBLE = 0.0354
EAGER_MS = 9.65
SLOT_MS = 14.6  # divided by the micro-batch cap
EXPERT_RANK = 0.011


@dataclasses.dataclass(frozen=True)
class Speeds:
    """The step-time model of one configuration.

    ``cap`` is the micro-batch cap, ``graph_max`` the largest captured batch (0: none), ``size`` scales everything with
    the model (1.0 is Kimi K2.6), ``slow_percent`` is a fault. ``noise`` is the relative standard deviation of a step,
    ``start_noise`` that of a whole start; both come from ``seed``.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    depth: int = 0
    cap: int = 64
    graph_max: int = 512
    size: float = 1.0
    slow_percent: float = 0.0
    noise: float = 0.0
    start_noise: float = 0.0
    seed: int = 0

    @property
    def slots(self) -> int:
        """Micro-batch slots of the scheduler's loop."""
        return self.pp + self.depth if self.pp > 1 else 1

    def factor(self) -> float:
        """The factor of every duration in this start."""
        start = 1.0 + random.Random(self.seed).gauss(0.0, self.start_noise) if self.start_noise else 1.0
        return max(start, 0.1) * (1.0 + self.slow_percent / 100.0) * self.size

    def decode_seconds(self, running: int, eager_share: float = 0.0, cap: int | None = None) -> float:
        """Return the seconds of one round in which each of ``running`` requests gets one token.

        ``eager_share`` is the share of micro-batches that are larger than the largest captured graph.
        """
        tp, pp = self.tp, self.pp
        growth = GROWTH_MS * (float(max(running, 1)) ** GROWTH_POWER - 1.0) / (tp * float(pp) ** OVERLAP_POWER)
        step = WEIGHTS_MS / tp + growth + ALL_REDUCE_MS * (tp - 1) / 7.0 + HOP_MS * (pp - 1)
        step *= 1.0 + EXPERT_RANK * (self.ep - 1)
        if pp > 1:
            step *= 1.0 + BUBBLE * max(0.0, 1.0 - self.depth / pp)
            step += SLOT_MS / max(self.cap if cap is None else cap, 1)
        step += EAGER_MS * (1.0 if self.graph_max <= 0 else eager_share)
        return float(step * self.factor() / 1000.0)

    def prefill_seconds(self, new_requests: int, new_tokens: int) -> float:
        """Return the seconds until ``new_requests`` admitted together have their first token.

        Long prompts cost more: above 256 tokens a request, in proportion.
        """
        one = self.decode_seconds(1, cap=self.cap)
        many = self.decode_seconds(new_requests, cap=self.cap)
        base = 0.85 * one if new_requests == 1 else 0.25 * one + 0.3 * (many - one)
        extra = max(0, new_tokens - 256 * new_requests) * 2.0e-5 * self.factor()
        return base + extra

    def is_eager(self, batch: int) -> bool:
        """Whether a micro-batch of this size runs without a captured graph."""
        return batch > self.graph_max
