"""Launches of the real SGLang that fail: one table, used by two tests.

Faults come into being between validation and start, as they do in life (a disk, an upgrade, somebody at the files): the
candidate's interpreter is a small program on the host that does the damage once the transition is recorded, and then
becomes the real interpreter. Until then everything is in order, so whatever deployer and the host's SGLang would have
refused beforehand gets past them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from deployer_rehearsal.real_engine import MODEL, PYTHON

FOLDER = "/srv/broken"
#: The copy of the checkpoint that a case may break.
COPY = f"{FOLDER}/model"
#: The candidate's interpreter.
WRAPPER = f"{FOLDER}/python"
#: The transition is recorded: from here on the fault is in force.
ARMED = "/var/lib/deployer/tiny/transition.json"

_WRAPPER = f"""#!/bin/sh
cd {COPY}
case "$*" in
*sglang.launch_server*) test ! -e {ARMED} || . {FOLDER}/fault ;;
esac
cd /
exec {PYTHON} "$@"
"""


@dataclass(frozen=True)
class Case:
    """One way to fail.

    ``fault``: shell, run in the folder of the copied checkpoint when the candidate starts; ``set -- "$@" ...`` adds
    arguments. ``said``: a piece of the line that tells the failure. ``signature`` (one of several, with ``or`` between
    them), ``phase``, ``cause``: what deployer makes of it (``cause``: words of it). ``refused``: parts of the inventory
    (`SglangSite.write_inventory`), or a ``profile``, that ask for the same openly, ``because``, words of what deployer
    says then, and ``exit``, its exit status (2: the configuration makes no sense); None where it cannot be known before
    the start. ``broken_before``: then the fault is there from the beginning. ``settings``: other parts of the
    inventory. ``memory``: bytes that the host has meanwhile.
    """

    id: str
    fault: str
    said: str
    signature: str
    phase: str
    cause: str
    refused: dict[str, Any] | None = None
    because: str = ""
    exit: int = 3
    settings: dict[str, Any] = field(default_factory=dict)
    memory: int | None = None
    broken_before: bool = False

    def prepare(self) -> str:
        """Shell that puts everything on the host: a good copy, the interpreter, the fault to come."""
        return interpreter(self.fault)


def interpreter(fault: str) -> str:
    """Shell that makes the copy of the checkpoint and an interpreter that runs ``fault`` before a candidate's start."""
    return f"""
rm -rf {FOLDER}
mkdir -p {FOLDER}
cp -a {MODEL} {COPY}
cat >{FOLDER}/fault <<'EOF'
{fault}
EOF
cat >{WRAPPER} <<'EOF'
{_WRAPPER}
EOF
chmod 755 {WRAPPER}
chown -R operator: {COPY}
"""


def _argument(text: str) -> str:
    return f'set -- "$@" {text}'


SHARD = "model-00003-of-00006.safetensors"

CASES = (
    Case(
        "wrong-path",
        _argument("--model-path /srv/broken/none"),
        "Repo id must be in the form",
        "model_path",
        "launch",
        "/srv/broken/none",
        {"model": "/srv/broken/none"},
        "there is no model at /srv/broken/none on the host",
    ),
    Case(
        "truncated-shard",
        f"truncate -s 100000 {SHARD}",
        "SafetensorError",
        "weights_corrupt",
        "load",
        "incomplete",
    ),
    Case("missing-shard", f"rm {SHARD}", "missing from", "weights_missing", "load", "model-00003-of-00006"),
    Case(
        "unreadable-shard",
        f"chmod 000 {SHARD}",
        f"No such file or directory: {COPY}/{SHARD}",  # safetensors says the same of both
        "weights_missing",
        "load",
        "may not read them",
        settings={"more": 'user = "operator"'},
    ),
    Case(
        "bad-config",
        "echo '{\"architectures\": [' >config.json",
        "JSONDecodeError",
        "model_config_invalid",
        "launch",
        "Expecting value",
        {},
        "has no readable config.json",
        broken_before=True,
    ),
    Case(
        "unknown-architecture",
        'sed -i \'s/"qwen3"/"qwen99"/\' config.json',
        "qwen99",
        "model_type_unknown",
        "launch",
        "qwen99",
    ),
    Case(
        "bad-tokenizer",
        "echo '{broken' >tokenizer.json",
        "JSONDecodeError",
        "tokenizer_invalid",
        "launch",
        "JSONDecodeError",
    ),
    Case(
        "wrong-shape",
        'sed -i \'s/"hidden_size": 128/"hidden_size": 64/\' config.json',
        "must match the size of tensor",
        "weights_shape",
        "load",
        "must match the size of tensor",
    ),
    Case(
        "unknown-flag",
        _argument("--no-such-flag 3"),
        "error: unrecognized arguments: --no-such-flag 3",
        "argparse",
        "launch",
        "unrecognized arguments: --no-such-flag 3",
        {"extra_args": "no-such-flag = 3"},
        "has no --no-such-flag",
        2,
    ),
    Case(
        "bad-value",
        _argument("--tp-size two"),
        "error: argument --tp-size",
        "argparse",
        "launch",
        "invalid int value: 'two'",
        {"profile": "[parallelism]\ntp = 'two'\n"},
        "parallelism.tp",
        2,
    ),
    Case(
        "tp3-of-2-kv-heads",
        _argument("--tp-size 3"),
        "exceeds dimension size",
        "shards_do_not_divide",
        "load",
        "exceeds dimension size",  # for a GPU it is refused; on the CPU SGLang means to add heads, and fails here
    ),
    Case(
        "micro-batch-0",
        _argument("--pp-size 2 --pp-max-micro-batch-size 0"),
        "AssertionError: pp_max_micro_batch_size must be a positive integer",
        "args_rejected",
        "launch",
        "must be a positive integer",
        {"profile": "[parallelism]\npp = 2\n[pipeline]\nmax_micro_batch_size = 0\n"},
        "max_micro_batch_size: found 0",
        2,
    ),
    Case(
        "no-quantisation-config",
        _argument("--quantization awq"),
        "Cannot find the config file for awq",
        "quantization",
        "load",
        "Cannot find the config file for awq",
    ),
    Case(
        "context-too-long",
        _argument("--context-length 1000000"),
        "is greater than the derived context_length",
        "context_too_long",
        "launch",
        "1000000",
        {"limits": "max_total_tokens = 16384\ncontext_length = 1000000"},
        "context",
    ),
    Case(
        "no-chat-template",
        _argument("--chat-template /srv/broken/none.jinja"),
        "is not a built-in template name",
        "chat_template",
        "launch",
        "none.jinja",
    ),
    Case(
        "out-of-memory",
        _argument("--max-total-tokens 4000000"),
        "exit code: -9",
        "host_oom or rank_killed",
        "kv-pool",
        "OOM killer",
        memory=5 << 30,
    ),
    Case(
        "mem-fraction-5",
        _argument("--mem-fraction-static 5 --max-total-tokens 100000000"),
        "exit code: -9",
        "host_oom or rank_killed",
        "kv-pool",
        "OOM killer",
        {"profile": "[memory]\nmem_fraction_static = 5.0\n"},
        "mem_fraction_static: found 5.0",
        2,
        memory=5 << 30,
    ),
    Case(
        "file-limit",
        "ulimit -n 48",
        "Too many open files",
        "too_many_files",
        "dist-init",
        "Too many open files",
    ),
    Case(
        "hub-id-offline",
        _argument("--model-path nobody/tiny-none"),
        "outgoing traffic has been disabled",
        "model_path",
        "launch",
        "outgoing traffic has been disabled",
    ),
    Case(
        "no-peer",
        _argument("--tp-size 2 --nnodes 2 --node-rank 0 --dist-init-addr 127.0.0.1:31999 --dist-timeout 15"),
        "waiting for clients",
        "rendezvous_timeout",
        "dist-init",
        "waiting for clients",
        {"extra_args": 'nnodes = 2\ndist-init-addr = "127.0.0.1:31999"'},
        "a service runs on one host",
        2,
    ),
)
