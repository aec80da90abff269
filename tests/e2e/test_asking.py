"""The host's own SGLang is asked before anything is stopped, and its flags can be learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e.conftest import Site


def write_profile(site: Site, name: str, text: str) -> None:
    folder = site.folder / "profiles"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.toml").write_text(f'extends = "tp2"\n{text}')
    (site.folder / "deployer.toml").write_text('profiles = "profiles"\n')


def test_what_sglang_refuses_is_refused_before_the_old_server_is_touched(live_site: Site, cache: Path) -> None:
    site = live_site
    before = site.invocation()
    write_profile(site, "odd", "[extra_args]\ngpu-id-step = 0\n")
    wanted = "gpu_id_step must be positive"
    document = site.json("apply", "odd", "--yes", expect=3)
    assert (document["outcome"], document["failure"]["phase"]) == ("refused", "validate")
    assert wanted in document["message"]
    [kept] = [path for path in cache.glob("deployer/asked/*") if wanted in path.read_text()]

    # From then on the answer is the one that was kept.
    kept.write_text(kept.read_text().replace(wanted, "as it was said before"))
    assert "as it was said before" in site.json("apply", "odd", "--yes", expect=3)["message"]
    assert [item["code"] for item in site.json("plan", "odd", expect=3)["objections"]] == ["engine-refuses"]
    [checked] = site.json("check", "odd", "--on-host", expect=2)["checked"]
    assert checked["asked"]["verdict"] == "refused"

    assert site.invocation() == before
    assert site.live() == "0001-tp2"
    assert site.status()["drift"] == []


def test_what_sglang_resolves_is_in_the_manifest(site: Site) -> None:
    assert "accepts them" in site.run("apply", "tp2")
    read = site.host.run(["cat", "/var/lib/deployer/kimi/releases/0001-tp2/manifest.json"])
    resolved: dict[str, Any] = json.loads(read)["resolved"]
    assert resolved["requested"]["tp_size"] == resolved["engine"]["tp_size"] == 2
    assert resolved["engine"]["attention_backend"] == "triton"  # chosen by the engine
    assert resolved["engine"]["mem_fraction_static"] == 0.88


def test_flags_are_learned_and_come_first(live_site: Site) -> None:
    site = live_site
    [learned] = site.json("sglang", "learn", "--host", site.host.name)["learned"]
    assert (learned["version"], learned["flags"]) == ("0.5.12.post1", 387)
    assert learned["added"] == learned["removed"] == learned["changed"] == []
    path = site.folder / "flags" / "args-0.5.12.post1.json"
    assert learned["path"] == str(path)
    rows = {row["version"]: row for row in site.json("sglang", "versions")["versions"]}
    assert [name for name, row in rows.items() if row["learned"]] == ["0.5.12.post1"]

    # A damaged one is not passed over.
    path.write_text("{")
    assert "learn" in site.json("plan", "tp2", expect=2)["error"]["remedy"]
