from __future__ import annotations

import difflib
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from deployer.config.files import template_folders
from deployer.config.hardening import HARDENING, LEFT_OUT
from deployer.config.inventory import Inventory, inventory_from
from deployer.config.profile import load_profile, profile_folders
from deployer.config.secrets import Secret
from deployer.errors import ConfigError
from deployer.units.bundle import RESTART_SECONDS, Bundle, build_bundle, start_limit
from deployer.units.render import render
from deployer.units.text import comparable, restart_keys, section
from tests.unit.units import systemd

RELEASE = "0007-pp8-async"
TOKEN = "hunter2 $x"


@pytest.fixture(autouse=True)
def cheap_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployer.units.bundle.DIGEST_COST", 2)


def inventory(**service: Any) -> Inventory:
    table = {
        "host": "box",
        "model": "/models/kimi",
        "engine": {"python": "/opt/sglang/bin/python"},
        **service,
    }
    return inventory_from({"hosts": {"box": {"gpus": 8}}, "services": {"kimi": table}}, Path("/site/i.toml"))


def bundle(release: str = RELEASE, *, version: str = "0.5.12.post1", name: str = "pp8-async", **service: Any) -> Bundle:
    site = inventory(**service)
    profile = load_profile(name, profile_folders())

    def resolve(secret: Secret) -> str:
        return TOKEN if secret.env == "TOKEN" else "sk-hunter2"

    return build_bundle(site.service(), site.host("box"), profile, version, release, resolve=resolve)


FULL: dict[str, Any] = {
    "gpus": [1, 2, 3, 4, 5, 6, 7, 0],
    "engine": {
        "python": "/opt/sglang/bin/python",
        "cuda_home": "/usr/local/cuda",
        "ld_library_path": ["/opt/lib", "/usr/local/cuda/lib64"],
        "path": ["/opt/tools"],
    },
    "user": "sglang",
    "home": "/srv/sglang",
    "hf_home": "/models/hf",
    "api_key": {"env": "KEY"},
    "environment": {"HF_TOKEN": {"env": "TOKEN"}, "GREETING": 'a "b" 100% $HOME'},
    "extra_args": {"log-level": "a b;c"},
    "deadlines": {"stop": 90.5},
}


def environment_of(unit: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for _, key, value in systemd.assignments(unit):
        if key == "Environment":
            found |= systemd.environment(value)
    return found


def test_systemd_reads_what_was_meant() -> None:
    made = bundle(**FULL)
    for unit in (made.unit, made.candidate):
        entries = [(place, key) for place, key, _ in systemd.assignments(unit) if key != "Environment"]
        assert len(entries) == len(set(entries))
        assert systemd.command(section(unit, "Service")["ExecStart"]) == made.argv
        assert environment_of(unit) == made.environment
    assert made.environment == {
        "DEPLOYER_RELEASE": RELEASE,
        "PATH": "/opt/sglang/bin:/usr/local/cuda/bin:/opt/tools"
        ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/srv/sglang",
        "HF_HOME": "/models/hf",
        "CUDA_HOME": "/usr/local/cuda",
        "LD_LIBRARY_PATH": "/opt/lib:/usr/local/cuda/lib64",
        "CUDA_VISIBLE_DEVICES": "1,2,3,4,5,6,7,0",
        "PYTHONUNBUFFERED": "1",
        "GREETING": 'a "b" 100% $HOME',
    }


def test_what_a_unit_must_say() -> None:
    unit = bundle(**FULL).unit
    service, head = section(unit, "Service"), section(unit, "Unit")
    wanted = {
        "Type": "exec",
        "User": "sglang",
        "WorkingDirectory": "/srv/sglang",
        "Restart": "on-failure",
        "RestartSec": "10",
        "TimeoutStartSec": "infinity",
        "TimeoutStopSec": "121",
        "KillMode": "mixed",
        "LimitMEMLOCK": "infinity",
        "LimitNOFILE": "1048576",
        "LogRateLimitIntervalSec": "1ms",
        "LogRateLimitBurst": "1000000",
        "IOAccounting": "yes",
        "MemoryAccounting": "yes",
        "EnvironmentFile": f"/var/lib/deployer/kimi/releases/{RELEASE}/env",
    }
    assert {key: service.get(key) for key in wanted} == wanted
    assert int(head["StartLimitIntervalSec"]) > int(head["StartLimitBurst"]) * (2700 + RESTART_SECONDS)
    assert not {"StartLimitIntervalSec", "StartLimitBurst"} & set(service)
    # These take the GPUs, or the caches, away; and a server killed for memory has not ended well.
    assert not {"PrivateDevices", "ProtectHome", "ProtectClock", "DevicePolicy", "SuccessExitStatus"} & set(service)
    assert section(unit, "Install") == {"WantedBy": "multi-user.target"}
    mine = {"Release": RELEASE, "Service": "kimi", "Profile": "pp8-async", "Schema": "1"}
    assert section(unit, "X-Deployer") == mine


def test_candidate_and_live_differ_only_where_they_must() -> None:
    made = bundle(**FULL)
    lines = difflib.ndiff(made.unit.splitlines(), made.candidate.splitlines())
    changes = [line for line in lines if line[0] in "+-" and line[2:].strip()]
    assert changes == [
        "- Restart=on-failure",
        "+ Restart=no",
        "- [Install]",
        "- WantedBy=multi-user.target",
        "+ State=candidate",
    ]


def test_a_small_service() -> None:
    made = bundle()
    assert "User" not in section(made.unit, "Service")
    assert "EnvironmentFile" not in made.unit
    assert set(made.files) == {"unit", "unit.candidate"}
    assert made.environment["HOME"] == "/root"
    assert {"CUDA_VISIBLE_DEVICES", "CUDA_HOME", "LD_LIBRARY_PATH", "HF_HOME"}.isdisjoint(made.environment)
    assert "HOME" not in bundle(user="sglang").environment
    assert "--config" not in made.argv


def test_units_that_exclude_each_other_conflict() -> None:
    common = {"host": "box", "model": "/m", "engine": {"python": "/p"}}
    services = {"a": common, "b": {**common, "exclusive_with": ["a", "c"]}, "c": {**common, "exclusive_with": ["a"]}}
    site = inventory_from({"hosts": {"box": {"gpus": 8}}, "services": services}, Path("i.toml"))
    profile = load_profile("tp8", profile_folders())
    rendered = build_bundle(site.service("a"), site.host("box"), profile, "0.5.12.post1", "0001-tp8")
    for text in (rendered.unit, rendered.candidate):
        assert section(text, "Unit")["Conflicts"] == "sglang-b.service sglang-c.service"
    assert "Conflicts" not in section(bundle(**FULL).unit, "Unit")


def test_secrets_are_only_in_their_files() -> None:
    made = bundle(**FULL)
    assert made.files["config.yaml"] == {"text": 'api-key: "sk-hunter2"\n', "mode": 0o600}
    assert made.files["env"] == {"text": 'HF_TOKEN="hunter2 \\$x"\n', "mode": 0o600}
    assert systemd.environment_file(made.files["env"]["text"]) == {"HF_TOKEN": TOKEN}
    assert made.argv[-2:] == ["--config", f"/var/lib/deployer/kimi/releases/{RELEASE}/config.yaml"]
    open_parts = [repr(made), made.unit, made.candidate, *made.argv, *made.environment.values()]
    open_parts += [str(made.restart_keys), str(made.requested), *made.notes]
    assert not [part for part in open_parts if "hunter2" in part]
    assert set(made.secrets) == {TOKEN, "sk-hunter2"}


def test_a_changed_secret_is_a_change() -> None:
    site = inventory(**FULL)
    profile = load_profile("pp8-async", profile_folders())

    def keys(secret: str) -> dict[str, str]:
        return build_bundle(
            site.service(), site.host("box"), profile, "0.5.9", RELEASE, resolve=lambda _: secret
        ).restart_keys

    assert keys("one") == keys("one")
    assert keys("one") != keys("two")
    assert "secrets" not in bundle().restart_keys


@pytest.mark.parametrize("key", ["a b", "-a", "ä", "a\nb"])
def test_api_keys_that_cannot_be_used(key: str) -> None:
    site = inventory(api_key={"env": "KEY"})
    profile = load_profile("tp8", profile_folders())
    with pytest.raises(ConfigError, match="printable ASCII"):
        build_bundle(site.service(), site.host("box"), profile, "0.5.9", "0001-tp8", resolve=lambda _: key)


def test_nothing_to_change() -> None:
    """Releases that differ only in their number compare equal; others do not."""
    first, second = bundle(**FULL), bundle("0008-pp8-async", **FULL)
    assert first.argv != second.argv
    assert comparable(first.argv) == comparable(second.argv)
    assert first.restart_keys == second.restart_keys
    assert {**first.environment, "DEPLOYER_RELEASE": ""} == {**second.environment, "DEPLOYER_RELEASE": ""}
    other = bundle(**{**FULL, "extra_args": {"log-level": "debug"}})
    assert comparable(first.argv) != comparable(other.argv)
    assert comparable(["/var/lib/deployer/kimi/other", "/x/releases/0001-a/y"]) == [
        "/var/lib/deployer/kimi/other",
        "/x/releases/0001-a/y",
    ]


def test_restart_keys() -> None:
    keys = restart_keys(bundle(**FULL).unit)
    assert {"User", "WorkingDirectory", "LimitNOFILE", "NoNewPrivileges"} <= set(keys)
    assert not {
        "ExecStart",
        "Environment",
        "Restart",
        "TimeoutStopSec",
        "KillMode",
        "LogRateLimitBurst",
    } & set(keys)
    assert restart_keys("[Service]\nNice=1\nRestartSec=3\nNice=2\n[X]\nNice=3\n") == {"Nice": "1\n2"}


def test_requested_and_notes() -> None:
    made = bundle(**FULL)
    assert made.requested["pp_async_batch_depth"] == 8
    assert made.requested["log_level"] == "a b;c"
    assert "api_key" not in made.requested
    assert bundle(name="tp1", release="0001-tp1").notes[0].startswith("profile tp1 uses 1 of the 8 GPUs")
    with pytest.raises(ConfigError, match="needs 8 GPUs"):
        bundle(gpus=[0])


def test_start_limit() -> None:
    for seconds in (1.0, 80.0, 2700.0):
        limit = start_limit(seconds)
        assert limit["interval"] > limit["burst"] * (seconds + RESTART_SECONDS)
    site = inventory()
    profile = load_profile("tp8", profile_folders())
    made = build_bundle(site.service(), site.host("box"), profile, "0.5.9", "0001-tp8", start_seconds=80.0)
    assert section(made.unit, "Unit")["StartLimitIntervalSec"] == "405"


@pytest.mark.parametrize("release", ["", "7-x", "../x", "0007-", "0007-A", "0007-x\n", "0007-a/b"])
def test_names_of_releases(release: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid release name"):
        bundle(release)


def site_template(tmp_path: Path, change: tuple[str, str]) -> list[Path]:
    shipped = (template_folders()[0] / "sglang.service.j2").read_text()
    assert change[0] in shipped
    (tmp_path / "sglang.service.j2").write_text(shipped.replace(*change))
    return template_folders(tmp_path)


def built(folders: list[Path], **service: Any) -> Bundle:
    site = inventory(**service)
    profile = load_profile("tp8", profile_folders())
    return build_bundle(
        site.service(),
        site.host("box"),
        profile,
        "0.5.9",
        "0001-tp8",
        templates=folders,
        resolve=lambda _: "x",
    )


def test_a_site_template_comes_first(tmp_path: Path) -> None:
    made = built(site_template(tmp_path, ("Type=exec\n", "Type=exec\nNice=-5\n")))
    assert made.restart_keys["Nice"] == "-5"


@pytest.mark.parametrize(
    ("change", "line", "word"),
    [
        (("Type=exec\n", "Type={{ tpye }}\n"), "Type=exec", "'tpye' is undefined"),
        (("Type=exec\n", "{% if %}\n"), "Type=exec", "Expected an expression"),
        (("Type=exec\n", "Type={{ 1 // 0 }}\n"), "Type=exec", "ZeroDivisionError"),
        (("Type=exec\n", "Type={{ argv | no_such }}\n"), "Type=exec", "no_such"),
    ],
)
def test_a_broken_site_template_is_named_with_its_line(
    tmp_path: Path, change: tuple[str, str], line: str, word: str
) -> None:
    folders = site_template(tmp_path, change)
    shipped = (template_folders()[0] / "sglang.service.j2").read_text().split("\n")
    with pytest.raises(ConfigError) as caught:
        built(folders)
    assert f"{tmp_path / 'sglang.service.j2'}, line {shipped.index(line) + 1}" in caught.value.message
    assert word in caught.value.message


@pytest.mark.parametrize(
    "change",
    [
        ("Release={{ release | plain }}\n", ""),
        ("Profile={{ profile | plain }}\n", "Profile=other\n"),
        ("ExecStart={{ argv | command_line }}\n", "ExecStart=/bin/true\n"),
        ('Restart={{ "no" if candidate else "on-failure" }}\n', "Restart=always\n"),
        ("EnvironmentFile={{ environment_file | path }}\n", ""),
        ("Environment={{ value | assignment(name) }}\n", ""),
    ],
)
def test_a_template_without_what_deployer_needs(tmp_path: Path, change: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="lacks what deployer needs"):
        built(site_template(tmp_path, change), environment={"A": {"env": "B"}})


def test_a_template_with_two_commands(tmp_path: Path) -> None:
    line = "ExecStart={{ argv | command_line }}\n"
    with pytest.raises(ConfigError, match="has ExecStart= twice"):
        built(site_template(tmp_path, (line, line + "ExecStart=/bin/true\n")))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{% for a in range(10**9) %}x{% endfor %}", "turns"),
        ("{% for a in range(9**99) %}x{% endfor %}", "exponent"),
        ("{% for a in range(99999999999999999999999) %}{% endfor %}", "turns"),
        ("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "turns"),
        (
            "{% for a in range(9999) %}{% for b in range(0) %}{% endfor %}{{ 'x' * 999 }}{% endfor %}",
            "1048576 bytes",
        ),
        ("{{ 'x' * 10**12 }}", "too long"),
        ("{{ [0] * 9999999 }}", "too long"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "Recursion"),
        ("{{ release.__class__ }}", "unsafe"),
    ],
)
def test_a_template_without_end(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=r"template .*sglang\.service\.j2") as caught:
        built(site_template(tmp_path, ("Type=exec\n", text + "\n")))
    assert word in caught.value.message


def test_a_template_that_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.j2").write_text("{% for a in t %}{% for b in t %}{% endfor %}{% endfor %}")
    assert render("a.j2", {"t": "x"}, [tmp_path]) == ""
    monkeypatch.setattr("deployer.units.render.TIME_LIMIT", 0.005)
    (tmp_path / "b.j2").write_text("{{ wait() }}")
    end = threading.Event()
    with pytest.raises(ConfigError, match=r"template b\.j2: it did not finish within 0\.005 s"):
        render("b.j2", {"wait": end.wait}, [tmp_path])
    end.set()


@pytest.mark.timeout(10)
def test_templates_are_regular_files_in_a_folder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "sglang.service.j2")
    with pytest.raises(ConfigError, match="not a regular file"):
        built(template_folders(tmp_path))
    with pytest.raises(ConfigError, match=r"does not exist .*DEPLOYER_TEMPLATES"):
        template_folders(tmp_path / "none")


def test_templates_include_and_compute(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.j2").write_text("{{ 2 * 3 }} {{ 2 ** 4 }} {{ range(2) | list }} {{ 'ab' * 2 }}")
    (tmp_path / "b.j2").write_text("{% include 'sub/a.j2' %}")
    assert render("b.j2", {}, [tmp_path]) == "6 16 [0, 1] abab"
    (tmp_path / "b.j2").write_text("{% include '../a.j2' %}")
    with pytest.raises(ConfigError, match="there is no template"):
        render("b.j2", {}, [tmp_path])


@pytest.mark.parametrize(
    ("service", "key", "what"),
    [
        (
            {"environment": {f"V{n}": "x" * 9_000 for n in range(150)}},
            "services.kimi.environment",
            "environment takes",
        ),
        (
            {"environment": {f"V{n}": {"env": "A"} for n in range(1_500)}},
            "services.kimi.environment",
            "environment",
        ),
        (
            {"environment": {f"V{n}": "\u2028" * 10_000 for n in range(17)}},
            "services.kimi.environment",
            "unit takes",
        ),
        (
            {
                "environment": {f"V{n}": {"env": "B"} for n in range(8)},
                "extra_args": {"lora-paths": [f"/{n:0100000}" for n in range(7)]},
            },
            "services.kimi.extra_args",
            "arguments and environment take",
        ),
    ],
)
def test_too_much_for_a_program(service: dict[str, Any], key: str, what: str) -> None:
    site = inventory(**service)
    profile = load_profile("tp8", profile_folders())

    def resolve(secret: Secret) -> str:
        return "x" * (120_000 if secret.env == "B" else 1_000)

    with pytest.raises(ConfigError, match="is too large") as caught:
        build_bundle(site.service(), site.host("box"), profile, "0.5.9", "0001-tp8", resolve=resolve)
    assert caught.value.message.startswith(key)
    assert what in caught.value.message


def test_much_that_still_fits() -> None:
    made = bundle(environment={f"V{n}": "x" * 10_000 for n in range(80)})
    assert len(made.unit) > 800_000


def test_a_template_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no template x"):
        render("x", {}, [tmp_path])
    (tmp_path / "y").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        render("y", {}, [tmp_path])


def test_only_printable_text_in_units() -> None:
    made = bundle(**{**FULL, "extra_args": {"log-level": "\u202e\x1b"}})
    assert re.search(r"[^\n\x20-\x7e]", made.unit) is None
    assert systemd.command(section(made.unit, "Service")["ExecStart"]) == made.argv


def test_a_template_that_has_changed_is_compiled_anew(tmp_path: Path) -> None:
    for text in ("{{ 1 + 1 }}", "{{ 1 + 2 }}", "{{ 1 + 1 }}"):
        (tmp_path / "a.j2").write_text(text)
        assert render("a.j2", {}, [tmp_path]) == str(2 if text.endswith("1 }}") else 3)


def test_the_unit_is_as_tight_as_it_is_said_to_be() -> None:
    for text in (bundle(**FULL).unit, bundle(**FULL).candidate):
        settings = section(text, "Service")
        assert {name: settings[name] for name in HARDENING} == {name: item.value for name, item in HARDENING.items()}
        assert not LEFT_OUT.keys() - {"User"} & settings.keys()


@pytest.mark.parametrize("of", ["service", "profile"])
def test_a_directive_can_be_left_out(of: str) -> None:
    relax = ["ProtectSystem", "CapabilityBoundingSet"]
    site = inventory(relax=relax if of == "service" else ["LockPersonality"], hf_home="/usr/share/hub")
    profile = load_profile("tp8", profile_folders())
    if of == "profile":
        profile = profile.model_copy(update={"relax": relax})
    made = build_bundle(site.service(), site.host("box"), profile, "0.5.12.post1", "0001-tp8")
    gone = {name for name in HARDENING if name not in section(made.unit, "Service")}
    assert gone == {*relax, *(() if of == "service" else ["LockPersonality"])}


def test_what_is_not_hardening_cannot_be_left_out() -> None:
    with pytest.raises(ConfigError, match="did you mean ProtectSystem"):
        inventory(relax=["ProtectSytem"])


def test_folders_of_the_service_stay_writable_where_the_system_is_not() -> None:
    places = {"home": "/usr/local/kimi 100%", "hf_home": "/etc/hub", "user": "kimi"}
    assert section(bundle(**places).unit, "Service")["ReadWritePaths"] == '"-/usr/local/kimi 100%%"\n-/etc/hub'
    for elsewhere in ("/srv/hub", "/usr2/hub"):
        assert "ReadWritePaths" not in section(bundle(hf_home=elsewhere).unit, "Service")


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"api_key": {"env": "NO_SUCH_VARIABLE_HERE"}}, "services.kimi.api_key: "),
        ({"environment": {"HF_TOKEN": {"env": "NO_SUCH_VARIABLE_HERE"}}}, "services.kimi.environment.HF_TOKEN: "),
    ],
)
def test_a_missing_secret_is_named_with_its_place(settings: dict[str, Any], place: str) -> None:
    site = inventory(**settings)
    profile = load_profile("tp8", profile_folders())
    with pytest.raises(ConfigError) as caught:
        build_bundle(site.service(), site.host("box"), profile, "0.5.9", "0001-tp8")
    assert caught.value.message.startswith(place + "environment variable NO_SUCH_VARIABLE_HERE")
    assert caught.value.remedy == "set environment variable NO_SUCH_VARIABLE_HERE"
