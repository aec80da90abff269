"""The clients: what is installed for each, how it is run, where its result lies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.client import results
from benchmarks.client.figures import Summary
from deployer.bench.runner import load_client

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Load:
    """What is asked of a client: ``streams`` at a time, each ``waves`` requests in turn. Lengths in tokens."""

    url: str
    streams: int
    waves: int
    tokens: int
    prompt_tokens: int = 128

    @property
    def requests(self) -> int:
        """How many in all."""
        return self.streams * self.waves


@dataclass(frozen=True)
class Command:
    """A program to run, what it is given, and the file in its folder that has the result (None: its stdout)."""

    argv: Sequence[str]
    stdin: str = ""
    result: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Tool:
    """A client. ``environment`` is the name of the one that it is run in.

    ``rate_tokens``: tokens of each of 64 answers where its highest rate is measured; enough for seconds of work.
    """

    name: str
    environment: str
    command: Callable[[str, Load, Path], Command]
    read: Callable[[str], Summary]
    rate_tokens: int
    ours: bool = False


def _deployer(python: str, load: Load, folder: Path) -> Command:
    """The load client as the runner starts it, with a level's discarded wave; one warm-up, no singles."""
    spec: dict[str, Any] = {
        "base_url": load.url,
        "model": "mock",
        "levels": [load.streams],
        "waves": load.waves,
        "repeats": 1,
        "requests_at_least": 0,
        "warmups": 1,
        "singles": 0,
        "fixed_prompt": False,
        "prompt_tokens": load.prompt_tokens,
        "output_tokens": load.tokens,
        "budget": 900.0,
    }
    client = load_client()
    (folder / client.file).write_text(client.text, encoding="utf-8")
    return Command([python, str(folder / client.file)], stdin=json.dumps(spec))


def _protocol(python: str, load: Load, folder: Path) -> Command:
    numbers = (load.streams, load.waves, load.tokens, load.prompt_tokens)
    return Command([python, str(_HERE / "protocol_client.py"), load.url, *map(str, numbers)])


def _on_asyncio(of: Callable[[str, Load, Path], Command]) -> Callable[[str, Load, Path], Command]:
    """The same where no uvloop can be imported."""

    def command(python: str, load: Load, folder: Path) -> Command:
        hidden = folder / "no-uvloop"
        hidden.mkdir(exist_ok=True)
        (hidden / "uvloop.py").write_text('raise ImportError("hidden for a measurement")\n')
        return Command(**{**vars(of(python, load, folder)), "env": {"PYTHONPATH": str(hidden)}})

    return command


def _bench_serving(python: str, load: Load, folder: Path) -> Command:
    return _of_sglang(python, load, folder, "sglang.bench_serving")


def _rust(python: str, load: Load, folder: Path) -> Command:
    return _of_sglang(python, load, folder, "sglang.benchmark.rust_client")


def _of_sglang(python: str, load: Load, folder: Path, module: str) -> Command:
    lengths = ("--random-input-len", str(load.prompt_tokens), "--random-output-len", str(load.tokens))
    return Command(
        [
            *(python, "-m", module, "--backend", "sglang-oai", "--base-url", load.url),
            *("--model", "mock", "--tokenizer", str(tokenizer(folder)), "--dataset-name", "random-ids"),
            *(*lengths, "--random-range-ratio", "1", "--num-prompts", str(load.requests)),
            *("--max-concurrency", str(load.streams), "--output-file", "result.jsonl", "--output-details"),
            "--disable-tqdm",
        ],
        result="result.jsonl",
        env={"HF_HUB_OFFLINE": "1"},
    )


def _guidellm(python: str, load: Load, folder: Path) -> Command:
    return Command(
        [
            *(python, "-m", "guidellm", "run", "--disable-console"),
            *("--backend", f"kind=openai_http,target={load.url},model=mock,request_format=/v1/completions"),
            *("--profile", f"kind=concurrent,streams={load.streams}"),
            *("--constraint", f"kind=max_requests,count={load.requests}"),
            *("--tokenizer", f"kind=hf_auto,model={tokenizer(folder)}"),
            *(
                "--data",
                f"kind=synthetic_text,prompt_tokens={load.prompt_tokens},output_tokens={load.tokens}",
            ),
            *("--output", "kind=json,path=result.json"),
        ],
        result="result.json",
        env={"HF_HUB_OFFLINE": "1"},
    )


def _aiperf(python: str, load: Load, folder: Path) -> Command:
    return Command(
        [
            *(python, "-m", "aiperf", "profile", "-m", "mock", "--url", load.url, "--ui", "none"),
            *("--endpoint-type", "completions", "--streaming", "--tokenizer", str(tokenizer(folder))),
            *("--concurrency", str(load.streams), "--request-count", str(load.requests)),
            *(
                "--num-prompts",
                str(load.requests),
                "--isl",
                str(load.prompt_tokens),
                "--osl",
                str(load.tokens),
            ),
            *("--extra-inputs", "ignore_eos:true", "--use-legacy-max-tokens", "--use-server-token-count"),
            *("--no-gpu-telemetry", "--no-server-metrics", "--output-artifact-dir", "."),
        ],
        result="profile_export.jsonl",
    )


TOOLS = (
    Tool("Protocol by hand", "deployer", _protocol, results.of_protocol, 5000),
    Tool("deployer", "deployer", _deployer, results.of_deployer, 5000, ours=True),
    Tool("sglang.bench_serving", "bench_serving", _bench_serving, results.of_bench_serving, 5000),
    Tool("sglang's Rust client", "bench_serving", _rust, results.of_bench_serving, 5000),
    Tool("guidellm", "guidellm", _guidellm, results.of_guidellm, 2000),
    Tool("aiperf", "aiperf", _aiperf, results.of_aiperf, 4000),
    Tool(
        "Protocol by hand (asyncio)",
        "deployer",
        _on_asyncio(_protocol),
        results.of_protocol,
        5000,
    ),
    Tool(
        "deployer (asyncio)",
        "deployer",
        _on_asyncio(_deployer),
        results.of_deployer,
        5000,
        ours=True,
    ),
)


def tokenizer(folder: Path) -> Path:
    """A folder with the tokenizer that the others want: bytes and a few words, made here, nothing fetched."""
    where = folder / "tokenizer"
    if not where.exists():
        from deployer_rehearsal.checkpoint import CHAT, END, SPECIAL
        from deployer_rehearsal.checkpoint import tokenizer as words

        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": SPECIAL[0],
            "model_max_length": 131072,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT,
        }
        where.mkdir(parents=True)
        (where / "tokenizer_config.json").write_text(json.dumps(settings))
        (where / "tokenizer.json").write_text(json.dumps(words()))
    return where
