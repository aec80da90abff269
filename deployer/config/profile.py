"""Profiles: ways to run a model, in SGLang's concepts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints

from deployer.config.bench import Gate, PartialBench
from deployer.config.fields import Text, check_environment
from deployer.config.problems import (
    Model,
)

Size = Annotated[int, Field(ge=1, le=1024)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=100)]


class Parallelism(Model):
    """How the model is spread over GPUs."""

    tp: Size = Field(1, description="tensor parallel size")
    pp: Size = Field(1, description="pipeline parallel size (stages)")
    dp: Size = Field(1, description="data parallel size: replicas, or attention groups with dp_attention")
    ep: Size = Field(1, description="expert parallel size; divides tp")
    dp_attention: bool = Field(False, description="data parallel attention inside the tensor parallel group")
    nnodes: Size = Field(1, description="number of hosts; only 1 is supported")


class Pipeline(Model):
    """How a pipeline is kept full."""

    async_batch_depth: int | None = Field(
        None, ge=0, le=1024, description="micro-batches in flight beyond pp; loop size = pp + depth"
    )
    max_micro_batch_size: Annotated[int, Field(ge=1, le=1_000_000)] | Literal["auto"] | None = Field(
        None, description='requests in a micro-batch; "auto" = max_running_requests // pp'
    )


class Limits(Model):
    """How much is served at a time."""

    max_running_requests: Count | None = Field(None, description="requests that run at a time")
    max_total_tokens: Annotated[int, Field(ge=1)] | None = Field(None, description="tokens in the KV pool")
    context_length: Annotated[int, Field(ge=1)] | None = Field(None, description="longest context, in tokens")


class CudaGraph(Model):
    """Capture of CUDA graphs for decoding."""

    enabled: bool = Field(True, description="false: no graphs; every step is launched kernel by kernel")
    max_batch_size: Count | None = Field(None, description="largest batch that is captured")


class Memory(Model):
    """GPU memory."""

    mem_fraction_static: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="share of GPU memory for weights and KV pool"
    )
    chunked_prefill_size: int | None = Field(
        None, ge=-1, description="tokens in a prefill chunk; -1: no chunks"
    )
    kv_cache_dtype: Word | None = Field(None, description="type of the KV cache")


class Attention(Model):
    """Attention kernels."""

    backend: Word | None = Field(None, description="attention backend")


class Moe(Model):
    """Mixture of experts."""

    a2a_backend: Word | None = Field(None, description="all-to-all backend")
    runner_backend: Word | None = Field(None, description="backend of the expert kernels")


class Profile(Model):
    """One way to run a model."""

    name: str = Field(exclude=True)
    description: Text = Field("", validate_default=False, description="one line about what it is for")
    extends: str | None = Field(
        None, description="profile whose values are taken where this one says nothing"
    )
    chain: list[str] = Field([], exclude=True)
    parallelism: Parallelism = Field(Parallelism(), description="how the model is spread over GPUs")
    pipeline: Pipeline = Field(Pipeline(), description="how a pipeline is kept full")
    limits: Limits = Field(Limits(), description="how much is served at a time")
    cuda_graph: CudaGraph = Field(CudaGraph(), description="capture of CUDA graphs")
    memory: Memory = Field(Memory(), description="GPU memory")
    attention: Attention = Field(Attention(), description="attention kernels")
    moe: Moe = Field(Moe(), description="mixture of experts")
    quantization: Word | None = Field(
        None, description="quantization method; default: as the checkpoint says"
    )
    gate: Gate = Field({}, description="thresholds of the smoke benchmark")
    bench: PartialBench = Field(
        PartialBench(), description="the smoke benchmark, where it differs from the service's"
    )
    extra_args: dict[str, Any] = Field(
        {}, description="further SGLang flags, checked against the version's own"
    )
    environment: Annotated[dict[str, str], AfterValidator(check_environment)] = Field(
        {}, description="further environment variables"
    )

    @property
    def gpus(self) -> int:
        """How many GPUs it takes."""
        sizes = self.parallelism
        return sizes.tp * sizes.pp * (1 if sizes.dp_attention else sizes.dp)

    @property
    def loop_size(self) -> int:
        """Micro-batches that take turns in the pipeline: pp + async depth."""
        return self.parallelism.pp + (self.pipeline.async_batch_depth or 0)
