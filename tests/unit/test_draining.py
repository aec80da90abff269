"""Which servers can refuse new requests while they drain."""

from __future__ import annotations

import pytest

from deployer.draining import cannot_refuse

SERVER = ("/opt/sglang/bin/python", "-m", "sglang.launch_server", "--model-path", "/m")


@pytest.mark.parametrize(
    ("more", "environment"),
    [
        ((), {}),
        (("--tokenizer-worker-num", "1"), {"SGLANG_RUST_SERVER": "0"}),
        (("--tokenizer-worker-num", "4", "--tokenizer-worker-num=1"), {}),
        (("--tokenizer-worker-num",), {}),
    ],
)
def test_one_that_uvicorn_serves_in_its_main_process_can(more: tuple[str, ...], environment: dict[str, str]) -> None:
    assert cannot_refuse((*SERVER, *more), environment) == ""
    assert cannot_refuse(("/opt/bin/sglang", "serve", *SERVER[3:], *more), environment) == ""


@pytest.mark.parametrize(
    ("argv", "environment", "why"),
    [
        ((*SERVER, "--tokenizer-worker-num", "4"), {}, "it has 4 HTTP workers"),
        ((*SERVER, "--tokenizer-worker-num=4"), {}, "it has 4 HTTP workers"),
        ((*SERVER, "--enable-http2"), {}, "--enable-http2"),
        (SERVER, {"SGLANG_RUST_SERVER": "true"}, "SGLANG_RUST_SERVER"),
        (("/usr/bin/python3", "server.py", "--a", "--b", "/opt/sglang"), {}, "not a server of SGLang's"),
        ((), {}, "not a server of SGLang's"),
    ],
)
def test_any_other_cannot_and_says_why(argv: tuple[str, ...], environment: dict[str, str], why: str) -> None:
    assert why in cannot_refuse(argv, environment)
