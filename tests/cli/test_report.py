"""The report as a browser shows it."""

import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

BROWSER = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
# What is on the page at its size there, and whether the video plays.
LOOK = """<script>addEventListener("load", () => {
  const area = (e) => { const b = e.getBoundingClientRect(); return Math.min(b.width, b.height) };
  const film = document.querySelector("video");
  const tell = () => { document.title = JSON.stringify({
    heads: [...document.querySelectorAll("h2")].filter((e) => area(e) > 10).map((e) => e.innerText),
    figures: [...document.querySelectorAll("figure svg")].filter((e) => area(e) > 100).length,
    lines: document.body.innerText.split("\\n"),
    modules: [...document.querySelectorAll(".module")].filter((e) => area(e) > 10).length,
    width: document.body.scrollWidth - document.body.clientWidth,
    film: film && film.videoWidth }) };
  if (film && film.readyState < 1) film.addEventListener("loadedmetadata", tell); else tell() })</script>"""


@pytest.fixture
def page(command: Any, run: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    done = command("report", "run", "--output", "a.html")
    assert (done.code, done.out) == (0, "a.html\n"), done.err
    return Path("a.html").read_text()


def test_the_page_needs_no_other_file(page: str):
    assert re.findall(r"""(?:src|href)=["'](?!data:|#)[^"']*|@import|url\((?!#)[^)]*""", page) == []


@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_a_person_sees_curves_network_and_video(page: str, tmp_path: Path):
    import json

    (tmp_path / "look.html").write_text(page.replace("</body>", f"{LOOK}</body>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    flags += ["--window-size=1200,900", "--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run([str(BROWSER), *flags, f"file://{tmp_path / 'look.html'}"], capture_output=True, timeout=60)
    title = re.search("<title>(.*?)</title>", done.stdout.decode(), re.DOTALL)
    assert title, done.stderr.decode()[-2000:]
    seen = json.loads(unescape(title[1]))
    assert seen["heads"] == ["Returns", "Losses", "Policy", "Agreement of replay", "run"]
    assert seen["figures"] >= 9 and seen["modules"] > 8 and seen["width"] == 0
    text = "\n".join(seen["lines"])
    for words in ("CartPole-v1", "environment steps", "ratio/first_max_dev", "replay repeats the rollout\tyes, to"):
        assert words in text, words
    if "There is none" not in text:
        assert seen["film"] == 600
