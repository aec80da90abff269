"""The server's routes: who may call them, and which code answers."""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Any

from . import generation, info
from .breaking import break_answer, break_counters
from .engine import Engine
from .web import Exchange, HttpError

_OPEN = ("/health", "/ready", "/metrics")
_ADMIN = ("/flush_cache", "/set_internal_state", "/abort_request", "/freeze_gc")
_RENAMED = {"/get_server_info": "/server_info", "/get_model_info": "/model_info"}
_GENERATING = ("/v1/completions", "/v1/chat/completions", "/generate")
_NOT_FOUND = {"detail": "Not Found"}


def _as_openai(error: HttpError) -> HttpError:
    """Return the error for an invalid body in the form of OpenAI's API, as 0.5.23 does."""
    detail = error.body.get("detail") if isinstance(error.body, dict) else None
    if not isinstance(detail, list):
        return error
    message = f"1 validation error:\n  {detail[0]}"
    body = {"object": "error", "message": message, "type": "Bad Request", "param": None, "code": 400}
    return HttpError(400, body)


class Api:
    """Answers every request of the server."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._routes: dict[tuple[str, str], Callable[[Exchange], Awaitable[None]]] = {
            ("POST", "/v1/completions"): lambda exchange: generation.completions(engine, exchange),
            ("POST", "/v1/chat/completions"): lambda exchange: generation.chat_completions(engine, exchange),
            ("POST", "/generate"): lambda exchange: generation.generate(engine, exchange),
            ("GET", "/health"): self._health,
            ("GET", "/health_generate"): self._health,
            ("GET", "/ping"): self._ping,
            ("GET", "/server_info"): self._server_info,
            ("GET", "/model_info"): self._model_info,
            ("GET", "/v1/models"): self._models,
            ("GET", "/v1/loads"): self._loads,
            ("POST", "/set_internal_state"): self._set_internal_state,
            ("POST", "/abort_request"): self._nothing,
            ("POST", "/flush_cache"): self._flush_cache,
            ("GET", "/flush_cache"): self._flush_cache,
            ("POST", "/freeze_gc"): self._nothing,
        }
        if engine.plan.modern:
            self._routes["GET", "/ready"] = self._ready
        else:
            self._routes["GET", "/get_load"] = self._get_load
        if engine.plan.fields.get("enable_metrics"):
            self._routes["GET", "/metrics"] = self._metrics

    async def __call__(self, exchange: Exchange) -> None:
        self._authorize(exchange)
        path = exchange.path
        if path in _RENAMED:
            self.engine.log(
                f"Endpoint '{path}' is deprecated and will be removed in a future version. "
                f"Please use '{_RENAMED[path]}' instead.",
                None,
            )
            path = _RENAMED[path]
        handler = self._routes.get((exchange.method, path))
        if handler is None:
            known = any(route == path for _, route in self._routes)
            raise HttpError(405, {"detail": "Method Not Allowed"}) if known else HttpError(404, _NOT_FOUND)
        try:
            if path in _GENERATING and await break_answer(self.engine, exchange):
                return
            await handler(exchange)
        except HttpError as error:
            raise _as_openai(error) if self.engine.plan.modern else error from None

    def _authorize(self, exchange: Exchange) -> None:
        """Check the bearer key. If there is an admin key, administration accepts only that one."""
        if exchange.method == "OPTIONS" or exchange.path.startswith(_OPEN):
            return
        fields = self.engine.plan.fields
        key = fields.get("api_key")
        if exchange.path in _ADMIN and fields.get("admin_api_key"):
            key = fields["admin_api_key"]
        if key is None:
            return
        given = exchange.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
            raise HttpError(401, {"error": "Unauthorized"})

    async def _health(self, exchange: Exchange) -> None:
        engine = self.engine
        if engine.draining:
            engine.log("Health check request received during shutdown. Returning 503.", None)
            raise HttpError(503)
        if engine.status == "Starting":
            raise HttpError(503)
        limit = float(os.environ.get("SGLANG_HEALTH_CHECK_TIMEOUT", "20"))
        if await engine.probe(limit):
            engine.status = "Up"
            exchange.send(200)
            return
        engine.log(
            "Health check failed. Server couldn't get a response from detokenizer for last "
            f"{limit:.0f} seconds. tic start time: ... last_heartbeat time: ...",
            None,
        )
        engine.status = "UnHealthy"
        raise HttpError(503)

    async def _ready(self, exchange: Exchange) -> None:
        exchange.send(200 if self.engine.status == "Up" and not self.engine.draining else 503)

    async def _ping(self, exchange: Exchange) -> None:
        if self.engine.plan.modern:
            await self._ready(exchange)
        else:
            exchange.send(200)

    async def _server_info(self, exchange: Exchange) -> None:
        while self.engine.hung:
            await asyncio.sleep(0.5)
        exchange.send(200, info.server_info(self.engine))

    async def _model_info(self, exchange: Exchange) -> None:
        exchange.send(200, info.model_info(self.engine.plan))

    async def _models(self, exchange: Exchange) -> None:
        exchange.send(200, info.models(self.engine))

    async def _loads(self, exchange: Exchange) -> None:
        exchange.send(200, await break_counters(self.engine, "loads", info.loads(self.engine)))

    async def _get_load(self, exchange: Exchange) -> None:
        load = info.loads(self.engine)["loads"][0]
        waiting = load["num_waiting_reqs"]
        exchange.send(
            200,
            [
                {
                    "dp_rank": 0,
                    "num_reqs": load["num_running_reqs"] + waiting,
                    "num_waiting_reqs": waiting,
                    "num_tokens": load["num_used_tokens"],
                }
            ],
        )

    async def _metrics(self, exchange: Exchange) -> None:
        shown = await break_counters(self.engine, "metrics", info.metrics(self.engine))
        exchange.send(200, shown, "text/plain; version=0.0.4; charset=utf-8")

    async def _flush_cache(self, exchange: Exchange) -> None:
        busy = self.engine.scheduler.in_flight
        text = (
            "Cache flushed.\nPlease check backend logs for more details. "
            "(When there are running or waiting requests, the operation will not be performed.)\n"
        )
        exchange.send(400 if busy else 200, text, "" if self.engine.plan.modern else "text/plain; charset=utf-8")

    async def _nothing(self, exchange: Exchange) -> None:
        exchange.send(200)

    async def _set_internal_state(self, exchange: Exchange) -> None:
        exchange.send(200, [self._change(exchange.json().get("server_args") or {})])

    def _change(self, wanted: dict[str, Any]) -> bool:
        """Only the micro-batch cap can change while serving, within 1 and max_running_requests // pp_size."""
        value = wanted.get("pp_max_micro_batch_size")
        if set(wanted) - {"pp_max_micro_batch_size"} or not isinstance(value, int):
            return False
        if not 1 <= value <= max(self.engine.plan.max_running // self.engine.plan.pp, 1):
            return False
        self.engine.scheduler.cap = value
        return True
