"""Asking the host's own SGLang what it makes of command lines, before anything is stopped.

An answer costs the import of SGLang (5 to 16 s) once: it is kept in the operator's cache for as long as SGLang's files,
the model, the GPUs, the environment and the arguments are the same. Neither question nor answer holds secrets: the
``--config`` file of a release, which does, is left out of the question. Nothing is downloaded for it either: a model of
the hub that is not on the host yet cannot be judged.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployer.config.files import write_whole
from deployer.config.inventory import ServiceConfig
from deployer.errors import AgentError
from deployer.host.client import HostClient
from deployer.records.codec import Json
from deployer.records.host import HostState
from deployer.records.release import OWN_VARIABLE, Release
from deployer.resources import cache_folder
from deployer.sglang.flags.versions import SCHEMA, flag_table
from deployer.sglang.server.answers import Asked, find_answer, judge, program_text
from deployer.units.text import comparable

#: How long the host's SGLang may take to answer, in seconds. A cold disk takes 16 s.
ASK_SECONDS = 120.0
#: Answers that are kept; the oldest go first.
KEPT = 200
_MODULE = "sglang.launch_server"


@dataclass(frozen=True)
class Question:
    """A server that may be started: its argument vector (program first) and the environment its unit sets."""

    argv: Sequence[str]
    environment: Mapping[str, str]

    def __post_init__(self) -> None:
        variables = {name: value for name, value in self.environment.items() if name != OWN_VARIABLE}
        object.__setattr__(self, "environment", variables)

    def words(self) -> list[str] | None:
        """Return what SGLang parses, without the file of secrets; None if something else is run."""
        if _MODULE not in self.argv:
            return None
        words = comparable(self.argv[list(self.argv).index(_MODULE) + 1 :])
        if "--config" in words:
            place = words.index("--config")
            words = words[:place] + words[place + 2 :]
        return words


def ask_host(
    client: HostClient,
    service: ServiceConfig,
    observed: HostState,
    questions: Sequence[Question],
    *,
    cache: Path | None = None,
    timeout: float = ASK_SECONDS,
) -> list[Asked]:
    """Return what the host's SGLang makes of each of ``questions``, in their order.

    ``observed`` holds the facts (``observe`` with engine, model and GPUs). One process answers all that have the same
    environment; ``timeout`` is for each process, in seconds. A host that cannot be asked gives verdicts ``unknown``.
    Raise ChannelLost if the connection breaks, and nothing else.
    """
    why = _cannot(observed)
    if why is not None:
        return [Asked("unknown", why) for _ in questions]
    store = _Store(cache or cache_folder("asked"))
    keys = [_key(service, observed, question) for question in questions]
    answers: dict[str, Asked] = {}
    groups: dict[str, list[int]] = {}
    for index, question in enumerate(questions):
        if question.words() is None:
            answers[keys[index]] = Asked("unknown", f"the unit does not run {_MODULE}")
        elif (kept := store.read(keys[index])) is not None:
            answers[keys[index]] = kept
        else:
            groups.setdefault(json.dumps(dict(question.environment), sort_keys=True), []).append(index)
    for members in groups.values():
        fresh = _ask(client, service, [questions[index] for index in members], timeout)
        for index, answer in zip(members, fresh, strict=True):
            answers[keys[index]] = answer
            if answer.verdict != "unknown":
                store.write(keys[index], answer)
    return [answers[key] for key in keys]


def _cannot(observed: HostState) -> str | None:
    engine = observed.engine
    if engine is None or not engine.exists or engine.sglang is None:
        return "SGLang is not installed there"
    if engine.fingerprint is None:
        return "SGLang's files cannot be found in its environment"
    return None


def _ask(client: HostClient, service: ServiceConfig, questions: Sequence[Question], timeout: float) -> list[Asked]:
    argvs = [item.words() for item in questions]
    question = {"want": "arguments", "argvs": argvs, "cwd": service.home or "/"}
    environment = {**questions[0].environment, "HF_HUB_OFFLINE": "1"}
    try:
        answer = run_program(client, service, question, environment, timeout)
        return [judge(item) for item in answer["answers"]]
    except Unanswered as silence:
        return [Asked("unknown", str(silence)) for _ in questions]
    except (KeyError, TypeError, AttributeError):
        return [Asked("unknown", "its answer makes no sense") for _ in questions]


class Unanswered(Exception):
    """The host's SGLang could not be asked; callers report what it means. ``remedy``: if it is not SGLang's fault."""

    def __init__(self, why: str, remedy: str | None = None) -> None:
        super().__init__(why)
        self.remedy = remedy


def run_program(
    client: HostClient,
    service: ServiceConfig,
    question: Json,
    environment: Mapping[str, str],
    timeout: float = ASK_SECONDS,
) -> Json:
    """Run the program in the engine's environment as the service's account. Raise Unanswered or ChannelLost."""
    lines = []
    try:
        with client.run(
            [service.engine.python, "program.py"],
            stdin=json.dumps(question),
            env=environment,
            timeout=timeout,
            user=service.user,
            files={"program.py": program_text()},
        ) as stream:
            deadline = time.monotonic() + timeout + 30.0
            for event in stream.until_end(1.0):
                if event is not None:
                    lines.append(event.line)
                if time.monotonic() > deadline:
                    raise Unanswered(f"it took longer than {timeout:g} s")
            result = stream.result
    except AgentError as error:
        late = error.code == "timeout"
        remedy = error.remedy if error.remedy != error.default_remedy else None
        raise Unanswered(f"it took longer than {timeout:g} s" if late else error.message, remedy) from error
    answer = find_answer(lines)
    if answer is None:
        errors = [line for line in result.stderr.splitlines() if line.strip()]
        ended = f"it ended with status {result.status} and without an answer"
        raise Unanswered(ended + (f": {errors[-1].strip()[:300]}" if errors else ""))
    if "unavailable" in answer:
        raise Unanswered(f"SGLang cannot be imported there: {answer['unavailable']}")
    return answer


def _key(service: ServiceConfig, observed: HostState, question: Question) -> str:
    """Return everything that decides the answer, as a name of a file."""
    engine, model = observed.engine, observed.model
    facts: list[Any] = [
        hashlib.sha256(program_text().encode()).hexdigest(),
        [engine.python, engine.sglang, engine.fingerprint] if engine else None,
        [service.model, model.fingerprint if model else None],
        [[gpu.index, gpu.name, gpu.memory_total] for gpu in observed.gpus or ()],
        [service.user, service.home],
        dict(question.environment),
        question.words(),
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:40]


#: What to do about a refusal of SGLang's.
ENGINE_REMEDY = "correct the profile or extra_args; these are SGLang's own words about its arguments"


def engine_complaint(asked: Asked, version: str | None) -> str:
    """Return a refusal as a sentence. ``version`` is SGLang's."""
    return f"SGLang {version} on the host refuses these arguments: {asked.reason}"


def engine_notes(asked: Asked, release: Release) -> list[str]:
    """Return what the operator should know: why SGLang could not be asked, and what it warns of."""
    notes = [f"SGLang {release.sglang} warns: {text}" for text in asked.warnings]
    if asked.verdict == "unknown":
        notes.append(f"the host's SGLang could not judge the arguments beforehand: {asked.reason}")
    return notes


def kept_values(asked: Asked, release: Release, learned: Path | None) -> Json:
    """Return the resolved values to keep with a release: those requested, and those that are not the flag's default."""
    flags = {flag.info_name: flag.default for flag in flag_table(release.sglang, learned).flags}
    return {
        name: value
        for name, value in asked.resolved.items()
        if name in release.requested.arguments or (value not in (None, False, "", [], {}) and value != flags.get(name))
    }


class _Store:
    """Answers by key, a file each. What cannot be read or written is not kept: it is only a cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, key: str) -> Asked | None:
        try:
            data = json.loads((self.folder / f"{key}.json").read_text(encoding="utf-8"))
            if data["schema"] != SCHEMA or data["verdict"] not in ("accepted", "refused"):
                return None
            return Asked(data["verdict"], data["reason"], tuple(data["warnings"]), dict(data["resolved"]), cached=True)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def write(self, key: str, asked: Asked) -> None:
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / f"{key}.json", json.dumps({"schema": SCHEMA, **asked.as_dict()}))
            kept = sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for path in kept[:-KEPT]:
                path.unlink(missing_ok=True)
