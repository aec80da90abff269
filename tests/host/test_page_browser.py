"""The page of `compare --html` in a real browser: all plots are drawn, nothing is asked of the network, no error."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from deployer.report.interactive import library
from deployer.report.page import comparison_page
from tests.unit.report.test_comparison_view import compared
from tests.unit.report.test_page import ARGUMENTS, FIVE

#: Looks at the page once it is there, in a frame of a phone's width or a desktop's, and writes down what it saw.
PROBE = """
<body style="margin:0"><iframe style="border:0;width:WIDTHpx;height:900px" srcdoc="PAGE"></iframe>
<pre id="seen"></pre><script>
onload = function () {
  var frame = document.querySelector("iframe"), doc = frame.contentDocument, win = frame.contentWindow;
  var area = function (one) { var box = one.getBoundingClientRect(); return box.width * box.height; };
  var button = doc.querySelectorAll("[data-toggle]")[1];
  button.click();
  var hidden = [].filter.call(doc.querySelectorAll('[data-series="1"]'), function (one) { return area(one) === 0; });
  var bar = doc.querySelector(".waterfall i");
  bar.dispatchEvent(new win.MouseEvent("mouseover", { bubbles: true }));
  // At once: the browser's own pointer may move and take it away.
  var tip = doc.getElementById("tip"), said = tip.hidden ? "" : tip.textContent;
  doc.querySelector("details.data").open = true;
  var wide = [].filter.call(doc.querySelectorAll("body > *, figure, svg"), function (one) {
    return one.getBoundingClientRect().right > doc.documentElement.clientWidth + 1;
  });
  setTimeout(function () {
    document.getElementById("seen").textContent = JSON.stringify({
      plots: [].map.call(doc.querySelectorAll("svg.plot"), area),
      points: [].map.call(doc.querySelectorAll(".point"), area).length,
      hidden: hidden.length,
      tip: said,
      shown: doc.getElementById("shown").textContent.length,
      overflow: doc.documentElement.scrollWidth - doc.documentElement.clientWidth,
      wide: wide.map(function (one) { return one.className || one.tagName; }),
      text: parseFloat(win.getComputedStyle(doc.body).fontSize),
      columns: win.getComputedStyle(doc.querySelector(".plots")).gridTemplateColumns.split(" ").length,
      back: win.getComputedStyle(doc.body).backgroundColor,
      asked: win.performance.getEntriesByType("resource").map(function (one) { return one.name; })
    });
  }, 100);
};
</script>
"""

#: Runs LOOK in the frame and writes down what it returns.
LOOK = """
<body style="margin:0"><iframe style="border:0;width:WIDTHpx;height:900px" srcdoc="PAGE"></iframe>
<pre id="seen"></pre><script>
onload = function () {
  var doc = document.querySelector("iframe").contentDocument;
  var area = function (one) { var box = one.getBoundingClientRect(); return box.width * box.height; };
  var look = function () { LOOK };
  setTimeout(function () { document.getElementById("seen").textContent = JSON.stringify(look()); }, 100);
};
</script>
"""


def browser() -> str:
    """The browser's program; `tools/setup.sh browser` installs one."""
    names = ("chromium-headless-shell", "chromium", "google-chrome", "chromium-browser")
    found = os.environ.get("DEPLOYER_BROWSER") or next((path for name in names if (path := shutil.which(name))), None)
    assert found, "no headless browser is installed: run `tools/setup.sh browser`, or name one in DEPLOYER_BROWSER"
    return found


def opened(folder: Path, page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the browser on a file, with a profile of its own and no name that resolves."""
    return subprocess.run(
        [
            browser(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder / 'profile'}",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--enable-logging=stderr",
            "--virtual-time-budget=5000",
            "--window-size=1300,1000",
            *options,
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "HOME": str(folder)},
    )


@pytest.fixture(scope="module")
def page() -> str:
    return comparison_page(compared(*FIVE, arguments=ARGUMENTS))


def seen(folder: Path, page: str, width: int, *options: str, probe: str = PROBE) -> dict[str, Any]:
    """What the probe wrote down. No error may have been told on the console."""
    wrapper = folder / "probe.html"
    wrapper.write_text(probe.replace("WIDTH", str(width)).replace("PAGE", html.escape(page)), encoding="utf-8")
    ran = opened(folder, wrapper, "--dump-dom", *options)
    assert "CONSOLE" not in ran.stderr
    found = re.search(r'<pre id="seen">(.*?)</pre>', ran.stdout, re.S)
    assert found is not None
    document: dict[str, Any] = json.loads(html.unescape(found[1]))
    return document


@pytest.mark.parametrize(("width", "columns"), [(390, 1), (1200, 2)], ids=["phone", "desktop"])
def test_it_is_drawn_and_works(tmp_path: Path, page: str, width: int, columns: int) -> None:
    found = seen(tmp_path, page, width)
    assert len(found["plots"]) == 6
    assert all(area > 40_000 for area in found["plots"])
    assert found["points"] == 5 * (6 + 6 + 6 + 5 + 5 + 10)
    assert found["hidden"] == 6
    assert found["tip"] == "0001-profile-1, launch: 4.0 s, from 0.0 s on"
    assert found["shown"] > 10_000
    assert (found["overflow"], found["wide"]) == (0, [])
    assert found["columns"] == columns
    assert found["asked"] == []


def test_it_can_be_zoomed_into(tmp_path: Path) -> None:
    """The same page with plotly in it: its plots stand in place of ours, follow the buttons, and nothing is refused."""
    page = comparison_page(compared(*FIVE, arguments=ARGUMENTS), library=library())
    look = """
      var places = [].slice.call(doc.querySelectorAll(".zoom")), first = places[0];
      var drawn = function (one) { return one._fullData.filter(function (t) { return t.visible === true; }); };
      var count = function (one) { return drawn(one).length; }, all = places.map(count);
      var colours = drawn(first).map(function (t) { return t.marker.color; });
      var lines = drawn(places[5]).map(function (t) { return (t.line || t.marker).color; });
      doc.querySelectorAll("[data-toggle]")[1].click();
      return {
        all: all, without: places.map(count), colours: colours, lines: lines, x: first._fullLayout.xaxis.type,
        width: first.getBoundingClientRect().width, ours: [].map.call(doc.querySelectorAll("svg.plot"), area),
        buttons: doc.querySelectorAll(".zoom .modebar-btn").length
      };
    """
    found = seen(tmp_path, page, 1200, probe=LOOK.replace("LOOK", look))
    assert found["all"] == [10, 5, 5, 5, 5, 10], "a line each, and the dots of passes"
    assert found["without"] == [8, 4, 4, 4, 4, 8]
    assert found["width"] > 400
    assert found["ours"] == [0] * 6
    assert found["x"] == "log"
    assert len(set(found["colours"])) == len(set(found["lines"])) == 5
    assert found["buttons"] == 6 * 6


def test_the_dark_is_dark(tmp_path: Path, page: str) -> None:
    light = seen(tmp_path, page, 1200, "--blink-settings=preferredColorScheme=1")["back"]
    dark = seen(tmp_path, page, 1200, "--blink-settings=preferredColorScheme=0")["back"]
    assert light == "rgb(255, 255, 255)"
    assert sum(map(int, re.findall(r"\d+", dark))) < 120


def test_it_prints_and_asks_nothing_of_the_network(tmp_path: Path, page: str) -> None:
    file, paper, log = tmp_path / "page.html", tmp_path / "page.pdf", tmp_path / "net.json"
    file.write_text(page, encoding="utf-8")
    opened(tmp_path, file, f"--print-to-pdf={paper}", f"--log-net-log={log}")
    assert paper.read_bytes().startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes())) >= 2
    asked = re.findall(r'"url":"(https?://[^"]*)"', log.read_text(encoding="utf-8", errors="replace"))
    ours = [url for url in asked if "google" not in url and "gvt1" not in url]
    assert ours == []  # what the browser itself asks its maker is none of the page's
