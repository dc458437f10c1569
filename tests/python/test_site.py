"""The documentation site builds without a warning, its links lead somewhere, and its pages fit a phone."""

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

TOP = Path(__file__).resolve().parents[2]
PHONE = 390  # pixels
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
ADAPTERS = ("torch", "tensorflow", "keras")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    # Material for MkDocs prints an announcement of its own otherwise.
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=TOP, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    return folder


def test_hosted_ci_builds_the_site() -> None:
    jobs = yaml.safe_load((TOP / ".github/workflows/docs.yml").read_text())["jobs"]
    assert ".venv/bin/python dev docs" in [step.get("run") for step in jobs["site"]["steps"]]
    assert jobs["publish"]["needs"] == "site" and "refs/tags/v" in jobs["publish"]["if"]


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in ("href", "src") and value and (tag, name) != ("link", "href"):
                self.links.append(value)


def test_no_link_is_dead(site: Path) -> None:
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 30
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            named = not parts.fragment or target not in pages or unquote(parts.fragment) in pages[target].ids
            if not target.exists() or not named:
                dead.append(f"{path.relative_to(site)}: {link}")
    assert not dead


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_reference_has_every_public_name(adapter: str, site: Path) -> None:
    source = (TOP / f"frameworks/sirtaki/{adapter}/__init__.py").read_text()
    listed = re.search(r"__all__ = \[(.*?)\]", source, re.DOTALL)
    assert listed
    names = [name for name in re.findall(r'"(\w+)"', listed[1]) if not name.startswith("_")]
    page = Page((site / f"reference/{adapter}.html").read_text())
    assert len(names) > 20
    found = {identity.rpartition(".")[2].lower() for identity in page.ids}
    assert [name for name in names if name.lower() not in found] == ["elastic"], "a module"
    module = (
        TOP / f"frameworks/sirtaki/{adapter}/elastic.py",
        TOP / f"frameworks/sirtaki/{adapter}/elastic/__init__.py",
    )
    listed = re.search(r"__all__ = \[(.*?)\]", next(path for path in module if path.exists()).read_text(), re.DOTALL)
    assert listed
    shown = {identity.lower() for identity in page.ids}
    wanted = [f"sirtaki.{adapter}.elastic.{name}".lower() for name in re.findall(r'"(\w+)"', listed[1])]
    lazy = ["sirtaki.tensorflow.elastic.tensorflowkerasstate"]  # shown as KerasState
    assert [name for name in wanted if name not in shown] == (lazy if adapter == "tensorflow" else [])


@pytest.mark.long
@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_pages_fit_a_phone(site: Path) -> None:
    """Nothing is wider than the screen, but for blocks and tables that scroll on their own."""
    pages = [str(path.relative_to(site)) for path in sorted(site.rglob("*.html"))]
    frames = "".join(f'<iframe src="{page}" width="{PHONE}" height="800"></iframe>' for page in pages)
    script = """<script>onload = () => { document.title = JSON.stringify([...document.querySelectorAll("iframe")].map(
        (frame) => frame.contentDocument.documentElement.scrollWidth)) }</script>"""
    (site / "phone.html").write_text(f"<html><head><title></title></head><body>{frames}{script}</body></html>")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom")
    words = [BROWSER, *flags, "--virtual-time-budget=20000", (site / "phone.html").as_uri()]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout
    title = re.search(r"<title>(.*?)</title>", shown)
    assert title and title[1], "the script did not run"
    widths = dict(zip(pages, json.loads(title[1]), strict=True))
    assert {page: width for page, width in widths.items() if not 0 < width <= PHONE} == {}
