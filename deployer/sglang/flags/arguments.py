"""From a profile's concepts to the command line of one SGLang version. Pure.

A concept is spelled differently from version to version; the flag tables say which spelling a version has. Flags are
written in full: SGLang's parser accepts abbreviations, which become ambiguous in a later version. Nothing raises here:
what does not fit is listed in the result, and the rules (`deployer.sglang.rules`) report it with all else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from pathlib import Path
from typing import Any

from deployer.config.inventory import ServiceConfig
from deployer.config.problems import Problem
from deployer.config.profile import Profile
from deployer.config.secrets import Secret
from deployer.config.wording import nearest
from deployer.sglang.flags import extra
from deployer.sglang.flags.versions import Flag, FlagTable, flag_table, history, known_versions, parse_version

#: SGLang's default of --decode-log-interval.
LOG_INTERVAL = 40
#: What identifies a server: it may not differ from what was requested, whatever a profile allows.
_NEVER_ALLOWED = frozenset({"model_path", "served_model_name", "host", "port", "api_key", "admin_api_key"})


@dataclass(frozen=True)
class Concept:
    """What a typed field controls, and its spellings, newest first. A spelling is one option or several together."""

    field: str
    spellings: tuple[tuple[str, ...], ...]


def _concept(field: str, *spellings: str) -> Concept:
    return Concept(field, tuple(tuple(spelling.split()) for spelling in spellings))


MODEL = _concept("the service's model", "--model-path")
NAME = _concept("the service's served_model_name", "--served-model-name")
BIND = _concept("the service's bind", "--host")
PORT = _concept("the service's port", "--port")
TP = _concept("parallelism.tp", "--tp-size")
PP = _concept("parallelism.pp", "--pp-size")
DP = _concept("parallelism.dp", "--dp-size")
DP_ATTENTION = _concept("parallelism.dp_attention", "--attn-dp-size", "--dp-size --enable-dp-attention")
EP = _concept("parallelism.ep", "--ep-size")
EP_MOE = _concept("parallelism.ep", "--enable-ep-moe")
DEEPEP = _concept("moe.a2a_backend", "--enable-deepep-moe")
DEPTH = _concept("pipeline.async_batch_depth", "--pp-async-batch-depth")
MICRO_BATCH = _concept("pipeline.max_micro_batch_size", "--pp-max-micro-batch-size", "--max-micro-batch-size")
RUNNING = _concept("limits.max_running_requests", "--max-running-requests")
TOKENS = _concept("limits.max_total_tokens", "--max-total-tokens")
CONTEXT = _concept("limits.context_length", "--context-length")
GRAPHS_OFF = _concept(
    "cuda_graph.enabled", "--disable-decode-cuda-graph --disable-prefill-cuda-graph", "--disable-cuda-graph"
)
GRAPH_BATCH = _concept("cuda_graph.max_batch_size", "--cuda-graph-max-bs-decode", "--cuda-graph-max-bs")
FRACTION = _concept("memory.mem_fraction_static", "--mem-fraction-static")
CHUNK = _concept("memory.chunked_prefill_size", "--chunked-prefill-size")
KV_TYPE = _concept("memory.kv_cache_dtype", "--kv-cache-dtype")
ATTENTION = _concept("attention.backend", "--attention-backend")
A2A = _concept("moe.a2a_backend", "--moe-a2a-backend")
RUNNER = _concept("moe.runner_backend", "--moe-runner-backend")
QUANTIZATION = _concept("quantization", "--quantization")
CONFIG = _concept("deployer (it carries secrets)", "--config")
API_KEY = _concept("the service's api_key", "--api-key")
NODES = _concept("deployer (a service runs on one host)", "--nnodes", "--node-rank")
#: Not owned by a field: deployer chooses a value only if the profile and the service do not.
DECODE_LOG = _concept("extra_args.decode-log-interval", "--decode-log-interval")

CONCEPTS = (
    MODEL, NAME, BIND, PORT, TP, PP, DP, DP_ATTENTION, EP, EP_MOE, DEEPEP, DEPTH, MICRO_BATCH, RUNNING, TOKENS, CONTEXT,
    GRAPHS_OFF, GRAPH_BATCH, FRACTION, CHUNK, KV_TYPE, ATTENTION, A2A, RUNNER, QUANTIZATION, CONFIG, API_KEY, NODES,
)  # fmt: skip
#: Every option that a typed field renders, with that field.
OWNED: Mapping[str, str] = {
    option: concept.field for concept in reversed(CONCEPTS) for spelling in concept.spellings for option in spelling
}


@dataclass(frozen=True)
class LaunchArguments:
    """The command line of one server; not usable if it has ``problems``.

    ``secret_config`` is for SGLang's ``--config`` file (its keys are flags without the dashes); ``requested`` is what
    ``/server_info`` must show.
    """

    argv: list[str]
    secret_config: dict[str, Secret]
    notes: list[str]
    requested: dict[str, Any]
    table: FlagTable = field(repr=False)
    problems: tuple[Problem, ...] = ()


class _Rendering:
    """Collects words, what they request, and everything that is wrong."""

    def __init__(self, table: FlagTable, learned: Path | None) -> None:
        self.table = table
        self.learned = learned
        self.remarks: list[str] = []
        self.argv: list[str] = []
        self.requested: dict[str, Any] = {}
        self.problems: list[Problem] = []

    def flags(self, concept: Concept) -> Sequence[tuple[str, Flag]]:
        """Return the concept in this version's spelling; a deprecated one only if there is no other."""
        known = self.table.by_name
        fitting = [spelling for spelling in concept.spellings if all(option in known for option in spelling)]
        fitting.sort(key=lambda spelling: any(known[option].deprecated for option in spelling))
        return [(option, known[option]) for option in fitting[0]] if fitting else []

    def add(self, concept: Concept, value: Any, *, show: bool = True) -> None:
        """Set a concept, turning on the switches among its options; None leaves it out."""
        if value is None:
            return
        flags = self.flags(concept)
        if not flags:
            self.refuse(concept.field, self.lacking(concept))
            return
        for option, flag in flags:
            try:
                words, effective = extra.render(flag, option, True if flag.switch else value, self.remark)
            except ValueError as error:
                self.refuse(concept.field, f"{error} ({self.table.title})")
                return
            self.argv += words
            if show:
                self.requested[flag.info_name] = effective

    @property
    def remark(self) -> extra.Remark | None:
        """What takes a remark on a value outside the known choices; None if such a value is refused."""
        return None if self.table.strict else self.remarks.append

    def key_file(self, service: ServiceConfig) -> dict[str, Secret]:
        """Return the API key for the --config file; it must never be on the command line."""
        if service.api_key is None:
            return {}
        if self.flags(CONFIG):
            return {"api-key": service.api_key}
        first = history("--config", self.learned)[0]
        text = (
            f"service {service.name}: api_key: {self.table.title} accepts the key only on its command line, where "
            f"everybody on the host can read it; SGLang {first} is the first version that reads it from a file"
        )
        self.problems.append(Problem((), text))
        return {}

    def lacking(self, concept: Concept) -> str:
        """Return the sentence about a concept that this version does not have in any spelling."""
        options = [spelling[0] for spelling in concept.spellings]
        versions = sorted({version for option in options for version in history(option, self.learned)})
        return extra.lacking(options[0], versions, self.table)

    def refuse(self, path: str, text: str) -> None:
        if " " in path:
            self.problems.append(Problem((), f"{path}: {text}"))
        else:
            self.problems.append(Problem(tuple(path.split(".")), text))


def render(
    profile: Profile, service: ServiceConfig | None, table: FlagTable, learned: Path | None = None
) -> LaunchArguments:
    """Return the command line of ``profile`` for the version of ``table``, with what does not fit as ``problems``.

    Without a service there is no program, model and address in it: for lists of profiles. ``learned`` is the folder of
    the site's own flag tables.
    """
    out = _Rendering(table, learned)
    program, extra_args, secret_config = list[str](), profile.extra_args, dict[str, Secret]()
    if service is not None:
        program = [service.engine.python, "-m", "sglang.launch_server"]
        extra_args = {**profile.extra_args, **service.extra_args}
        out.add(MODEL, service.model)
        out.add(NAME, service.served_model_name)
        out.add(BIND, service.bind)
        out.add(PORT, service.port)
        secret_config = out.key_file(service)
    _concepts(out, profile)
    matched, wrong = extra.check_names(extra_args, table, OWNED, learned)
    if profile.parallelism.pp > 1 and DECODE_LOG.spellings[0][0] not in {option for option, *_ in matched}:
        out.add(DECODE_LOG, log_interval(profile.loop_size))
    argv, shown, wrong_values = extra.words(matched, out.remark)
    out.problems += [Problem(extra.place(key, service), text) for key, text in wrong + wrong_values]
    out.problems += check_allowed(profile.verify.allow_changed, learned)
    notes = [table.note] if table.note else []
    notes += [f"{text}; the list for {table.title} may be incomplete, so SGLang itself decides" for text in out.remarks]
    return LaunchArguments(
        [*program, *out.argv, *argv], secret_config, notes, out.requested | shown, table, tuple(out.problems)
    )


def _concepts(out: _Rendering, profile: Profile) -> None:
    sizes, pipeline, limits, memory = profile.parallelism, profile.pipeline, profile.limits, profile.memory
    out.add(TP, sizes.tp)
    out.add(PP, sizes.pp if sizes.pp > 1 else None)
    if sizes.dp_attention:
        out.add(DP_ATTENTION, sizes.dp)
    else:
        out.add(DP, sizes.dp if sizes.dp > 1 else None)
    _experts(out, profile)
    out.add(DEPTH, pipeline.async_batch_depth or None)
    # "auto" is SGLang's own choice: max_running_requests // pp.
    out.add(MICRO_BATCH, pipeline.max_micro_batch_size if pipeline.max_micro_batch_size != "auto" else None)
    out.add(RUNNING, limits.max_running_requests)
    out.add(TOKENS, limits.max_total_tokens)
    out.add(CONTEXT, limits.context_length)
    if not profile.cuda_graph.enabled:
        out.add(GRAPHS_OFF, True)
    else:
        out.add(GRAPH_BATCH, profile.cuda_graph.max_batch_size)
    out.add(FRACTION, memory.mem_fraction_static)
    # With DP attention SGLang divides the chunk by the number of groups, so it shows another value than requested.
    out.add(CHUNK, memory.chunked_prefill_size, show=not sizes.dp_attention)
    out.add(KV_TYPE, memory.kv_cache_dtype)
    out.add(ATTENTION, profile.attention.backend)
    out.add(QUANTIZATION, profile.quantization)


def _experts(out: _Rendering, profile: Profile) -> None:
    """Render expert parallelism. Before 0.5.2 it was on or off, over the whole tensor parallel group."""
    sizes, moe = profile.parallelism, profile.moe
    first = parse_version("0.5.2")
    if out.table.version >= first:
        out.add(EP, sizes.ep if sizes.ep > 1 else None)
        out.add(A2A, moe.a2a_backend)
        out.add(RUNNER, moe.runner_backend)
        return
    deepep = moe.a2a_backend == "deepep"
    if sizes.ep not in (1, sizes.tp):
        out.refuse(
            EP.field,
            f"found {sizes.ep}; {out.table.title} supports only ep = tp; "
            f"SGLang {first} is the first known version that has other sizes",
        )
    elif sizes.ep > 1:
        out.add(EP, sizes.ep)
        out.add(EP_MOE, None if deepep else True)
    out.add(DEEPEP, True if deepep else None)
    # What later versions call "none" and "auto" is what these versions do anyway.
    out.add(A2A, None if deepep or moe.a2a_backend == "none" else moe.a2a_backend)
    out.add(RUNNER, None if moe.runner_backend == "auto" else moe.runner_backend)


def check_allowed(names: Sequence[str], learned: Path | None = None) -> list[Problem]:
    """Return what is wrong with ``[verify] allow_changed``: names that no version has, or that must not change."""
    if not names:
        return []
    tables = [flag_table(version.text, learned) for version in known_versions(learned)]
    known = {flag.info_name for table in tables for flag in table.flags}
    problems = []
    for index, name in enumerate(names):
        path = ("verify", "allow_changed", index)
        if name in _NEVER_ALLOWED:
            problems.append(Problem(path, f"{name} must be as requested: with another value it is a different service"))
        elif name not in known:
            near = nearest(name, known)
            text = f"SGLang has no argument {name}" + (f"; did you mean {near}?" if near else "")
            problems.append(Problem(path, text))
    return problems


def log_interval(loop_size: int) -> int:
    """Return a --decode-log-interval that shows every micro-batch of the loop in turn: coprime to the loop's size.

    The counter runs over the micro-batches: with the default of 40, the log of a loop of 8 shows only one of them.
    """
    interval = LOG_INTERVAL
    while gcd(interval, loop_size) != 1:
        interval += 1
    return interval
