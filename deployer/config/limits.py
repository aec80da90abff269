"""How much a server serves at a time: said by a profile, or by a service for all its profiles."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from deployer.config.problems import Model

Count = Annotated[int, Field(ge=1, le=1_000_000)]


class Limits(Model):
    """How much is served at a time."""

    max_running_requests: Count | None = Field(None, description="requests that run at a time")
    max_total_tokens: Annotated[int, Field(ge=1, le=2**40)] | None = Field(
        None, description="tokens in the KV pool"
    )
    context_length: Annotated[int, Field(ge=1, le=2**40)] | None = Field(
        None, description="longest context, in tokens"
    )

    def over(self, base: Limits) -> Limits:
        """These limits, and those of ``base`` where these say nothing."""
        return base.model_copy(update=self.model_dump(exclude_none=True))
