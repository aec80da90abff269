"""Every text of an inventory or profile arrives in the unit verbatim, as systemd reads it, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from deployer.config.inventory import inventory_from
from deployer.config.profile import Profile
from deployer.errors import ConfigError
from deployer.units.bundle import Bundle, build_bundle
from deployer.units.text import section
from tests.unit.units import systemd
from tests.unit.units.cases import NASTY

JINJA = ["{{ 7 * 7 }}", "{% raw %}", "{# x #}", "{{ argv }}", "}}", "{%", "a{{b}}\n[Service]\nExecStart=/bin/sh"]
LINES = ["x\nExecStartPre=/bin/id", "x\r\nUser=root", "x\\\nUser=root", "x\u2028User=root", "x\n[Service]\nUser=root"]
PIECES = [*NASTY, *JINJA, *LINES]
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=6), min_size=1, max_size=3).map("".join)

Reader = Callable[[Bundle, str], list[str]]
"""Finds what became of a text. It has to be all that is found."""


def after(flag: str) -> Reader:
    """Return what finds a flag's value."""

    def read(made: Bundle, _: str) -> list[str]:
        pairs = zip(made.argv, made.argv[1:], strict=False)
        joined = [word.removeprefix(f"{flag}=") for word in made.argv if word.startswith(f"{flag}=")]
        return [value for word, value in pairs if word == flag] + joined

    return read


def variable(name: str, prefix: str = "") -> Reader:
    return lambda made, _: [made.environment[name].removeprefix(prefix)] if name in made.environment else []


def key(name: str) -> Reader:
    def read(made: Bundle, _: str) -> list[str]:
        return [value for _, found, value in systemd.assignments(made.unit) if found == name]

    return read


def on_path(made: Bundle, _: str) -> list[str]:
    return [folder.removeprefix("/q") for folder in made.environment["PATH"].split(":") if folder.startswith("/q")]


def secret(made: Bundle, _: str) -> list[str]:
    return [systemd.environment_file(made.files["env"]["text"])["HF_TOKEN"]]


Place = tuple[str, Callable[[str], dict[str, Any]], Callable[[str], dict[str, Any]], Reader]


def nothing(_: str) -> dict[str, Any]:
    return {}


def engine(name: str, wrap: Callable[[str], Any]) -> Callable[[str], dict[str, Any]]:
    return lambda text: {"engine": {"python": "/opt/sglang/bin/python", name: wrap(text)}}


PLACES: list[Place] = [
    ("service.model", lambda x: {"model": x}, nothing, after("--model-path")),
    ("service.served_model_name", lambda x: {"served_model_name": x}, nothing, after("--served-model-name")),
    ("service.bind", lambda x: {"bind": x}, nothing, after("--host")),
    ("service.user", lambda x: {"user": x}, nothing, key("User")),
    ("service.home", lambda x: {"home": "/h" + x}, nothing, variable("HOME", "/h")),
    ("service.hf_home", lambda x: {"hf_home": "/h" + x}, nothing, variable("HF_HOME", "/h")),
    ("engine.python", engine("python", lambda x: "/p" + x), nothing, lambda made, _: [made.argv[0][2:]]),
    ("engine.cuda_home", engine("cuda_home", lambda x: "/c" + x), nothing, variable("CUDA_HOME", "/c")),
    ("engine.ld", engine("ld_library_path", lambda x: ["/l" + x]), nothing, variable("LD_LIBRARY_PATH", "/l")),
    ("engine.path", engine("path", lambda x: ["/q" + x]), nothing, on_path),
    ("service.environment", lambda x: {"environment": {"A": x}}, nothing, variable("A")),
    ("service.secret", lambda x: {"environment": {"HF_TOKEN": {"env": "T"}}}, nothing, secret),
    ("service.extra_args", lambda x: {"extra_args": {"chat-template": x}}, nothing, after("--chat-template")),
    ("service.exclusive_with", lambda x: {"exclusive_with": [x]}, nothing, key("Conflicts")),
    ("profile.environment", nothing, lambda x: {"environment": {"A": x}}, variable("A")),
    ("profile.extra_args", nothing, lambda x: {"extra_args": {"chat-template": x}}, after("--chat-template")),
    ("profile.name", nothing, lambda x: {"name": x}, lambda made, _: [section(made.unit, "X-Deployer")["Profile"]]),
    ("profile.quantization", nothing, lambda x: {"quantization": x}, after("--quantization")),
    ("profile.attention", nothing, lambda x: {"attention": {"backend": x}}, after("--attention-backend")),
    ("profile.kv", nothing, lambda x: {"memory": {"kv_cache_dtype": x}}, after("--kv-cache-dtype")),
    ("profile.moe", nothing, lambda x: {"moe": {"runner_backend": x}}, after("--moe-runner-backend")),
]


def made_of(service: dict[str, Any], profile: dict[str, Any], text: str) -> Bundle:
    table = {"host": "box", "model": "/m", "engine": {"python": "/opt/sglang/bin/python"}, **service}
    site = inventory_from({"hosts": {"box": {"gpus": 8}}, "services": {"kimi": table}}, Path("/site/i.toml"))
    shape = Profile.model_validate({"name": "p", **profile})
    with patch("deployer.units.bundle.DIGEST_COST", 2):
        return build_bundle(site.service(), site.host("box"), shape, "0.5.12.post1", "0001-p", resolve=lambda _: text)


def settings_of(unit: str) -> list[tuple[str, str]]:
    return [(place, name) for place, name, _ in systemd.assignments(unit)]


@pytest.mark.parametrize("place", PLACES, ids=[item[0] for item in PLACES])
def test_a_text_arrives_verbatim_or_is_refused(place: Place) -> None:
    _, service, profile, read = place
    plain = "abc" if place[0] != "service.bind" else "127.0.0.2"
    usual: Bundle | None
    try:
        usual = made_of(service(plain), profile(plain), plain)
    except ConfigError:
        usual = None  # it has to name something else of the inventory
    assert usual is None or read(usual, plain) == [plain]

    @given(texts)
    def check(text: str) -> None:
        try:
            made = made_of(service(text), profile(text), text)
        except (ConfigError, ValidationError):
            return
        assert usual is not None
        assert read(made, text) == [text] or (text.endswith("/") and read(made, text) == [text.rstrip("/")])
        for unit, known in ((made.unit, usual.unit), (made.candidate, usual.candidate)):
            assert settings_of(unit) == settings_of(known), "it adds no setting, and hides none"
            assert systemd.command(section(unit, "Service")["ExecStart"]) == made.argv
            found: dict[str, str] = {}
            for _, name, value in systemd.assignments(unit):
                found |= systemd.environment(value) if name == "Environment" else {}
            assert found == made.environment

    for piece in [*JINJA, *LINES, *NASTY[::4]]:
        check = example(piece)(check)
    check()
