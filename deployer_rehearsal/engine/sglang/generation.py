"""The generating endpoints: /v1/completions, /v1/chat/completions and /generate, streamed or whole."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from typing import Any

from . import words
from .engine import Engine
from .scheduler import Request
from .web import Exchange, HttpError, epoch


def _refuse(message: str) -> HttpError:
    return HttpError(
        400, {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
    )


@dataclasses.dataclass
class _Choice:
    """One answer in progress."""

    index: int
    request: Request
    limit: int
    texts: list[str] = dataclasses.field(default_factory=list)

    @property
    def reason(self) -> str | None:
        if not self.request.finished:
            return None
        return "length" if self.request.produced >= self.limit else "stop"

    @property
    def matched(self) -> int | None:
        return 163586 if self.reason == "stop" else None


class _Run:
    """The generations of one exchange; ``changed`` is called for every token."""

    def __init__(
        self, engine: Engine, exchange: Exchange, prompts: list[Any], options: dict[str, Any], limit: int
    ) -> None:
        self.engine = engine
        self.exchange = exchange
        self.done = asyncio.Event()
        self.choices: list[_Choice] = []
        self.first_token = 0.0
        self.begin = time.monotonic()
        self._by_request: dict[int, _Choice] = {}
        for index, prompt in enumerate(prompts):
            if words.count_tokens(prompt) >= engine.plan.context:
                raise _refuse(
                    f"The input ({words.count_tokens(prompt)} tokens) is longer than the model's context length "
                    f"({engine.plan.context} tokens)."
                )
            request = engine.submit(prompt, limit, options, self._token)
            choice = _Choice(index, request, limit)
            self.choices.append(choice)
            self._by_request[id(request)] = choice

    def _token(self, request: Request, text: str) -> None:
        choice = self._by_request[id(request)]
        choice.texts.append(text)
        self.first_token = self.first_token or time.monotonic()
        if self.exchange.gone:
            self.engine.abort(request)
        else:
            self.on_token(choice, text)
        if all(other.request.finished for other in self.choices):
            self.done.set()

    def on_token(self, choice: _Choice, text: str) -> None:
        """For streamed answers to override."""

    def usage(self) -> dict[str, Any]:
        prompt = sum(choice.request.prompt_tokens for choice in self.choices)
        output = sum(choice.request.produced for choice in self.choices)
        usage = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + output,
            "completion_tokens": output,
            "prompt_tokens_details": None,
            "reasoning_tokens": 0,
        }
        return usage | {"completion_tokens_details": None} if self.engine.plan.modern else usage

    def weights(self, tokens: int) -> dict[str, Any]:
        """The version of the weights."""
        version = self.engine.plan.fields.get("weight_version", "default")
        if not self.engine.plan.modern:
            return {"weight_version": version}
        spans = [{"version": version, "start": 0, "end": tokens}]
        return {"weight_version": version, "weight_versions": spans}


def _limit(body: dict[str, Any], names: tuple[str, ...], default: int) -> int:
    for name in names:
        value = body.get(name)
        if value is not None:
            if not isinstance(value, int) or value < 1:
                raise _refuse(f"{name} must be at least 1, got {value}.")
            return value
    return default


def _prompts(body: dict[str, Any]) -> list[Any]:
    prompt = body.get("prompt")
    if prompt is None or prompt in ("", []):
        raise _refuse("Prompt cannot be empty")
    if isinstance(prompt, list) and isinstance(prompt[0], (str, list)):
        return prompt
    return [prompt]


async def completions(engine: Engine, exchange: Exchange) -> None:
    """POST /v1/completions."""
    body = exchange.json()
    await _openai(engine, exchange, body, _prompts(body), _limit(body, ("max_tokens",), 16), chat=False)


async def chat_completions(engine: Engine, exchange: Exchange) -> None:
    """POST /v1/chat/completions."""
    body = exchange.json()
    try:
        prompt = words.chat_text(body.get("messages"))
    except ValueError as error:
        raise _refuse(str(error)) from None
    limit = _limit(body, ("max_completion_tokens", "max_tokens"), engine.plan.context - words.count_tokens(prompt))
    await _openai(engine, exchange, body, [prompt], limit, chat=True)


async def _openai(
    engine: Engine, exchange: Exchange, body: dict[str, Any], prompts: list[Any], limit: int, *, chat: bool
) -> None:
    name = str(body.get("model") or "default")
    head = {"id": os.urandom(16).hex(), "created": epoch(), "model": name}
    if body.get("stream"):
        await _Stream(engine, exchange, prompts, body, limit, head, chat).run()
        return
    run = _Run(engine, exchange, prompts, body, limit)
    await run.done.wait()
    choices = []
    for choice in run.choices:
        text = "".join(choice.texts)
        content: dict[str, Any] = {"text": text}
        if chat:
            message = {"role": "assistant", "content": text, "reasoning_content": None}
            content = {"message": message if engine.plan.modern else {**message, "tool_calls": None}}
        choices.append(
            {
                "index": choice.index,
                **content,
                "logprobs": None,
                "finish_reason": choice.reason,
                "matched_stop": choice.matched,
            }
        )
    kind = "chat.completion" if chat else "text_completion"
    exchange.send(
        200,
        {
            "id": head["id"],
            "object": kind,
            "created": head["created"],
            "model": name,
            "choices": choices,
            "usage": run.usage(),
            "metadata": run.weights(sum(choice.request.produced for choice in run.choices)),
        },
    )


class _Stream(_Run):
    """A streamed OpenAI answer: one event a token, an optional usage event, ``[DONE]``."""

    def __init__(
        self,
        engine: Engine,
        exchange: Exchange,
        prompts: list[Any],
        body: dict[str, Any],
        limit: int,
        head: dict[str, Any],
        chat: bool,
    ) -> None:
        self.chat = chat
        self.head = {
            "id": head["id"],
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": head["created"],
            "model": head["model"],
        }
        wanted = body.get("stream_options") or {}
        self.with_usage = bool(wanted.get("include_usage"))
        self.continuous = bool(wanted.get("continuous_usage_stats"))
        super().__init__(engine, exchange, prompts, body, limit)

    def on_token(self, choice: _Choice, text: str) -> None:
        if not self.exchange.streaming:
            self.exchange.start()
            if self.chat:
                for other in self.choices:
                    self._event(other, "", role="assistant", reason=None)
        if self.chat and self.engine.plan.modern:  # the end has an event of its own, without content
            self._event(choice, text, reason=None)
            if choice.reason:
                self._event(choice, None, reason=choice.reason)
            return
        self._event(choice, text, reason=choice.reason)

    def _event(self, choice: _Choice, text: str | None, *, reason: str | None, role: str | None = None) -> None:
        content: dict[str, Any] = {"text": text}
        usage: dict[str, Any] = {"usage": self.usage() if self.continuous else None}
        if self.chat and self.engine.plan.modern:
            said = {"role": role, "content": text}
            content = {
                "delta": {
                    "reasoning_content": None,
                    **{name: value for name, value in said.items() if value is not None},
                }
            }
            if role or text is None or not self.continuous:
                usage = {}
        elif self.chat:
            delta = {"role": role, "content": text, "reasoning_content": None, "tool_calls": None}
            content = {"delta": delta}
        self.exchange.event(
            {
                **self.head,
                "choices": [
                    {
                        "index": choice.index,
                        **content,
                        "logprobs": None,
                        "finish_reason": reason,
                        "matched_stop": choice.matched if reason else None,
                    }
                ],
                **usage,
            }
        )

    async def run(self) -> None:
        await self.done.wait()
        if self.with_usage:
            usage = self.usage()
            if self.engine.plan.modern and not self.chat:
                usage = {name: value for name, value in usage.items() if value is not None}
            self.exchange.event({**self.head, "choices": [], "usage": usage})
        self.exchange.event("[DONE]")
        self.exchange.finish()


async def generate(engine: Engine, exchange: Exchange) -> None:
    """POST /generate, SGLang's own endpoint. Streamed text is cumulative."""
    body = exchange.json()
    options = body.get("sampling_params") or {}
    prompt = body.get("text") if body.get("text") is not None else body.get("input_ids")
    if prompt is None:
        raise HttpError(400, {"error": {"message": "Either text, input_ids or input_embeds should be provided."}})
    many = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], (str, list))
    limit = _limit(options, ("max_new_tokens",), 128)
    prompts = prompt if many else [prompt]
    if body.get("stream"):
        run: _Run = _GenerateStream(engine, exchange, prompts, options, limit)
        await run.done.wait()
        exchange.event("[DONE]")
        exchange.finish()
        return
    run = _Run(engine, exchange, prompts, options, limit)
    await run.done.wait()
    answers = [_generated(run, choice) for choice in run.choices]
    exchange.send(200, answers if many else answers[0])


def _generated(run: _Run, choice: _Choice) -> dict[str, Any]:
    reason: dict[str, Any] | None = None
    if choice.reason == "length":
        reason = {"type": "length", "length": choice.limit}
    elif choice.reason == "stop":
        reason = {"type": "stop", "matched": choice.matched}
    about = _about_modern if run.engine.plan.modern else _about
    return {
        "text": "".join(choice.texts),
        "output_ids": [1000 + len(text) for text in choice.texts],
        "meta_info": about(run, choice, reason),
    }


def _about(run: _Run, choice: _Choice, reason: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "id": choice.request.rid,
        "finish_reason": reason,
        "prompt_tokens": choice.request.prompt_tokens,
        **run.weights(choice.request.produced),
        "total_retractions": 0,
        "completion_tokens": choice.request.produced,
        "cached_tokens": 0,
        "dp_rank": None,
        "e2e_latency": time.monotonic() - run.begin,
    }


def _about_modern(run: _Run, choice: _Choice, reason: dict[str, Any] | None) -> dict[str, Any]:
    """Return the figures of a generation as in 0.5.23: times in epoch seconds, all of them in the last piece only."""
    now, produced = time.time(), choice.request.produced
    began = now - (time.monotonic() - run.begin)
    first = now - (time.monotonic() - run.first_token)
    about: dict[str, Any] = {
        "id": choice.request.rid,
        "finish_reason": reason,
        "prompt_tokens": choice.request.prompt_tokens,
        "weight_version": run.engine.plan.fields.get("weight_version", "default"),
        "num_retractions": 0,
        "storage_prefetch_wait": 0.0,
        "storage_staging_wait": 0.0,
        "forward_entry_time": began,
        "prefill_finished_time": first,
        "queue_time": 0.0,
        "reasoning_tokens": 0,
        "completion_tokens": produced,
        "cached_tokens": 0,
        "cached_tokens_details": None,
        "dp_rank": None,
    }
    if reason is not None:
        about |= run.weights(produced)
        about |= {
            "e2e_latency": now - began,
            "request_received_ts": began,
            "first_token_latency": first - began,
            "api_server_dispatch_finish_ts": began,
            "request_finished_ts": now,
            "decode_throughput": (produced - 1) / (now - first) if now > first else 0.0,
        }
    if reason is not None or produced == 1:
        about["response_sent_to_client_ts"] = now
    return about


class _GenerateStream(_Run):
    def on_token(self, choice: _Choice, text: str) -> None:
        if not self.exchange.streaming:
            self.exchange.start()
        self.exchange.event(_generated(self, choice))
