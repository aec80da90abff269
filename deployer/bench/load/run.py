"""One run of the benchmark: its stages one after another, and the document that comes of them.

What it takes care of, because it distorts results otherwise: a new connection for each request; the time
stamp of a chunk before anything is done with it; no garbage collection during a level; no retries; several
processes where one core would not do; and a measure of the client's own saturation.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, fields

import httpx

from deployer.bench.load import server, stats, stream, traffic
from deployer.bench.load.budget import Pace, discard_fits, kind_of_cut, what_to_leave_out
from deployer.bench.load.drive import Done, Drive, Job, client, tls_context
from deployer.bench.load.levels import Pass, level_summary, pass_summary
from deployer.bench.load.progress import Progress
from deployer.bench.load.sanity import FIXED_PROMPT, FIXED_TOKENS, sanity
from deployer.bench.load.spec import API_KEY_VARIABLE, Json, Spec
from deployer.bench.load.workers import Child, Crew, command, processes_for, usable_cores

Emit = Callable[[Json], None]

SCHEMA = 2
#: Seconds that the server has to show its counters.
PATIENCE = 5.0


class Stop(Exception):
    """The run ends early; the message says why."""


class Run:
    """One run of the benchmark: warm-ups, single requests, then the levels."""

    def __init__(
        self,
        spec: Spec,
        emit: Emit,
        api_key: str | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.spec = spec
        self.clock = clock
        self.emit = emit
        self.api_key = api_key
        self.salt = spec.salt or os.urandom(6).hex()
        self.stop = asyncio.Event()
        self.interrupted: str | None = None
        self.length_factor = spec.length_factor or 1.0
        self.answers: list[stats.Request] = []
        self.pace = Pace()
        self.began = self.clock()
        self.cut: list[str] = []
        self.sent = self.failed = 0
        self.levels: dict[int, list[Pass]] = {}
        self.discarded: dict[int, Json] = {}
        self.outputs: list[stats.Request] = []
        self.foreign: list[Json] = []
        self.silent: set[str] = set()
        self.bench: Json = {}
        self.samples: list[Json] = []
        self.watching = False
        self.secret = {} if api_key is None else {API_KEY_VARIABLE: api_key}
        self.crew = Crew(asdict(spec), self.secret)
        self.tls = tls_context(spec)

    def interrupt(self, reason: str) -> None:
        """Stop at once; what is under way is cut."""
        self.interrupted = self.interrupted or reason
        self.stop.set()
        self.crew.stop()

    def notify(self, event: Json) -> None:
        """Report progress; a reader that is gone is a reason to stop loading the server."""
        try:
            self.emit(event)
        except OSError:
            self.interrupt("nobody reads the results")

    def left(self) -> float:
        """Return the seconds of the budget that are left."""
        return self.began + self.spec.budget - self.clock()

    async def everything(self) -> Json:
        """Run it all and return the bench document, partial when interrupted or without hope."""
        spec = self.spec
        self.began = self.clock()
        shown = {f.name: getattr(spec, f.name) for f in fields(spec) if f.name not in ("base_url", "model", "salt")}
        loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
        self.bench = {
            "schema": SCHEMA,
            "started": time.time(),
            "base_url": spec.base_url,
            "model": spec.model,
            "spec": {**shown, "levels": list(spec.levels), "salt": self.salt},
            "workload": spec.workload(),
            "client": {"python": platform.python_version(), "httpx": httpx.__version__, "loop": loop},
            "warmups": None,
            "singles": None,
            "fixed": None,
            "single_stream_tok_s": None,
            "levels": [],
            "over_time": [],
            "stopped": None,
        }
        watcher = await self._watcher()
        self.watching = True
        try:
            await self._stages()
        except Stop as reason:
            self.bench["stopped"] = str(reason)
        finally:
            self.watching = False
            await watcher.end(at_once=True)
            await self.crew.end()
        self.bench["levels"] = [self._level(level) for level in self.levels]
        self.bench["over_time"] = server.over_time(self.samples, self.began)
        self.bench["sanity"] = sanity(self.outputs, self.answers)
        self.bench["client"]["length_factor"] = round(self.length_factor, 4)
        self.bench["interrupted"] = self.interrupted
        self.bench["client_limited"] = any(level["client"]["client_limited"] for level in self.bench["levels"])
        self.bench["foreign_traffic"] = traffic.combined(self.foreign)
        seconds = round(self.clock() - self.began, 3)
        self.bench["budget"] = {"seconds": spec.budget, "used_s": seconds, "cut": self.cut}
        self.bench["seconds"] = seconds
        return self.bench

    async def _watcher(self) -> Child:
        """The process that looks at the server meanwhile."""

        def take(sample: Json | None) -> None:
            if sample is not None:
                self.samples.append(sample)
            elif self.watching:
                self.bench["client"]["sampler_ended_s"] = round(self.clock() - self.began, 3)
                text = "the process that looks at the server has ended: what it does from here on is not seen"
                self.notify({"event": "note", "text": text})

        settings = {
            "base_url": self.spec.base_url,
            "interval": self.spec.sample_interval,
            "nvidia_smi": self.spec.nvidia_smi,
            "gpus": self.spec.gpus,
        }
        return await Child.start(command("--sampler"), self.secret, settings, take)

    def _level(self, level: int) -> Json:
        summary = level_summary(self.levels[level], level, self.began)
        summary["discarded"] = self.discarded.get(level)
        spans = [span for one in self.levels[level] if (span := one.span())]
        summary["server"] = server.summary(self.samples, spans)
        return summary

    async def _stages(self) -> None:
        spec, bench = self.spec, self.bench
        if spec.warmups:
            warm = await self._stage("warmup", "warmup", 1, spec.warmups, spec.warmup_tokens)
            bench["warmups"] = stats.stage_summary(warm.requests)
            self._learn_length(warm.requests)
            self._hope("the warm-up", warm.requests)
        if spec.singles:
            alone = await self._stage("single", "single", 1, spec.singles, spec.output_tokens)
            seen = {"client": alone.client, "foreign_traffic": alone.foreign_traffic}
            bench["singles"] = {**stats.single_summary(alone.requests), **seen}
            bench["single_stream_tok_s"] = stats.single_stream_rate(alone.requests)
            self.pace.learn(1, bench["single_stream_tok_s"])
            self._hope("the single runs", alone.requests)
        if spec.fixed_prompt:
            await self._fixed_prompt()
        for repeat in range(spec.repeats):
            for place, level in enumerate(spec.levels):
                await self._level_pass(level, repeat, spec.levels[place:])
        await self._further_passes()
        if spec.fixed_prompt:
            await self._fixed_prompt()

    async def _further_passes(self) -> None:
        """More passes until ``requests_at_least`` were sent: of the highest level that the time is enough for.

        The highest one gets there soonest. Each is as large as the level's other passes, as all are compared. A
        request that failed ends it: no number of others would excuse that.
        """
        at_least, to_come = self.spec.requests_at_least, int(self.spec.fixed_prompt)
        kept = self.pace.seconds(1, FIXED_TOKENS * to_come)  # the fixed prompt's time
        before = -1
        while self.levels and not self.failed and before < self.sent < at_least - to_come:
            before = self.sent
            for level in sorted(self.levels, reverse=True):
                why = self._no_time_for(level, self.left() - kept)
                if why is None:
                    await self._level_pass(level, len(self.levels[level]), ())
                    break
            else:
                sent = f"{self.sent + to_come} of at least {at_least} requests"
                self.cut.append(f"{sent}: another pass of level {level} was left out, {why}")

    async def _fixed_prompt(self) -> None:
        """Send the fixed prompt; the second answer is compared with the first."""
        if self.left() <= 0:
            self.cut.append("the fixed prompt was not sent, the time was used up")
            return
        label = f"fixed/{len(self.answers)}"
        stage = await self._stage("fixed", label, 1, 1, FIXED_TOKENS, texts=[FIXED_PROMPT])
        self.answers += stage.requests
        self.bench["fixed"] = stats.stage_summary(self.answers)
        self._hope("the fixed prompt", stage.requests)

    async def _level_pass(self, level: int, repeat: int, ahead: tuple[int, ...]) -> None:
        spec = self.spec
        if repeat == 0 and spec.discard:
            await self._discard(level, ahead)
        elif repeat and level not in self.levels:
            return  # its first pass was left out, which is in `cut`
        why = self._no_time_for(level, self.left(), 0.0 if repeat else spec.grace())
        if why:
            self.cut.append(f"level {level}, pass {repeat + 1}: left out, {why}")
            return
        number = repeat + spec.first_repeat
        planned = level * spec.rounds(level)
        one = await self._stage("level", f"level {level}/{number}", level, planned, spec.output_tokens)
        one.repeat = number
        if not one.requests and not self.interrupted:
            self.cut.append(f"level {level}, pass {repeat + 1}: left out, the time was used up")
            return
        self.levels.setdefault(level, []).append(one)
        if one.cut_short:
            self.cut.append(f"level {level}, pass {repeat + 1}: {one.cut_short}")
        self.pace.learn(level, pass_summary(one, level, self.began)["aggregate_tok_s"])
        self._hope(f"level {level}", one.requests)

    def _no_time_for(self, level: int, left: float, grace: float = 0.0) -> str | None:
        """Return why a pass of this level is not begun with so many seconds left; None if it is."""
        tokens = level * self.spec.rounds(level) * self.spec.output_tokens
        return what_to_leave_out(self.pace, level, tokens, left, grace)

    async def _discard(self, level: int, ahead: tuple[int, ...]) -> None:
        """A wave that is not counted: what is compiled or captured for a batch size is compiled in its first."""
        spec = self.spec
        passes = [(n, n * spec.rounds(n) * spec.output_tokens) for n in ahead]
        if not discard_fits(self.pace, (level, level * spec.output_tokens), passes, self.left()):
            self.cut.append(f"level {level}: no wave was discarded, to have time for what counts")
            return
        wave = await self._stage("discard", f"level {level}/discarded", level, level, spec.output_tokens)
        summary = pass_summary(wave, level, self.began)
        names = ("requests", "completed", "failed", "output_tokens", "wall_s", "aggregate_tok_s", "cut_short")
        self.discarded[level] = {name: summary[name] for name in names}
        self.pace.learn(level, summary["aggregate_tok_s"])
        if wave.cut_short:
            self.cut.append(f"level {level}, the discarded wave: {wave.cut_short}")
        if not any(r.completed for r in wave.requests):
            self.levels[level] = [wave]  # nothing better will come: the level is what this wave was
        self._hope(f"level {level} (the discarded wave)", wave.requests)

    def _learn_length(self, requests: list[stats.Request]) -> None:
        """How many estimated tokens make one of the server's, from what it counted."""
        counted = [r.prompt_tokens for r in requests if r.completed and r.prompt_tokens]
        if counted:
            estimated = self.length_factor * (self.spec.prompt_tokens + self.spec.shared_prefix) * len(counted)
            self.length_factor = min(max(estimated / sum(counted), 0.1), 10.0)

    def _hope(self, name: str, requests: list[stats.Request]) -> None:
        if self.interrupted:
            raise Stop(f"interrupted ({self.interrupted}) during {name}")
        if not any(r.completed for r in requests):
            if not requests:
                raise Stop(f"no request of {name} was sent: the time was used up")
            first = requests[0]
            why = "the time was used up" if first.kind == "cut" else f"{first.kind}: {first.detail}"
            raise Stop(f"none of the {len(requests)} requests of {name} was completed ({why})")

    async def _stage(
        self, name: str, label: str, width: int, total: int, max_tokens: int, texts: list[str] | None = None
    ) -> Pass:
        """``total`` requests, ``width`` at a time, and what was seen beside them."""
        spec = self.spec
        deadline = spec.deadline(-(-total // width))
        if name == "level" and spec.level_deadline:
            deadline = spec.level_deadline
        end = self.began + spec.budget
        job = Job(
            label=label,
            width=width,
            total=total,
            max_tokens=max_tokens,
            length=spec.prompt_tokens * self.length_factor,
            shared=spec.shared_prefix * self.length_factor,
            salt=self.salt,
            deadline=deadline,
            streams=list(range(width)),
            texts=texts,
            stop_at=end,
            cut_at=end + spec.grace(),
        )
        before = await self._counters()
        began = self.clock()
        done = await self._perform(name, job)
        seconds = self.clock() - began
        short = self._cut_short(done, total)
        requests = done.requests
        self.sent += len(requests)
        self.failed += sum(not r.completed for r in requests)
        ours = sum(r.tokens or 0 for r in requests if r.completed)
        unsure = sum(r.max_tokens for r in requests if not r.completed and r.intent is not None)
        after = await self._counters(at_least=None if before.tokens is None else before.tokens + ours)
        foreign = traffic.judge(before, after, ours=ours, unsure=unsure, seconds=seconds)
        self.foreign.append({"stage": label, **foreign})
        for request in requests:
            request.detail = stream.sound(request.detail)
            if self.api_key:
                request.detail = request.detail.replace(self.api_key, "***")
        if name in ("single", "level"):
            self.outputs += requests
        return Pass(0, began, requests, done.client, foreign["value"], short)

    def _cut_short(self, done: Done, total: int) -> str | None:
        """Return what the end of the budget did to a stage; take out requests that were never sent."""
        if done.stopped or done.cut:
            sent = [r for r in done.requests if r.intent is not None]
            moved = [moment for r in sent for moment in (r.intent or 0.0, *r.stamps)]
            lost = [r for r in sent if r.kind == "cut"]
            kind, silent = kind_of_cut(moved, self.clock()) if done.cut else ("cut", 0.0)
            if kind != "cut":
                for request in lost:
                    request.kind = kind
                    request.detail = f"nothing had come for {silent:.0f} s when the time was used up"
            done.requests = sent
            return f"the time was used up with {len(sent)} of {total} requests sent" + (
                f", {len(lost)} of them not ended" if lost else ""
            )
        return None

    async def _perform(self, name: str, job: Job) -> Done:
        processes = processes_for(job.width, self.pace.rate(job.width), usable_cores())
        drive = Drive(self.spec, job, self.stop)
        counts = drive.counts if processes == 1 else self.crew.counts
        progress = Progress(self.notify, name, job.width, job.total, counts)
        async with progress.every(self.spec.progress_interval):
            if processes > 1:
                return await self.crew.run(job, processes)
            return await drive.run(self.tls, self.api_key)

    async def _counters(self, at_least: float | None = None) -> traffic.Counters:
        if self.stop.is_set():
            return traffic.Counters()
        async with client(self.tls, self.api_key, PATIENCE) as asker:
            looking = asyncio.ensure_future(traffic.settled(asker, self.spec.base_url, self.silent, at_least=at_least))
            stopped = asyncio.ensure_future(self.stop.wait())
            await asyncio.wait({looking, stopped}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if looking.done():
                return looking.result()
            looking.cancel()
            await asyncio.wait({looking})
            return traffic.Counters()
