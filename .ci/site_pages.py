"""Pages of the site that lie elsewhere in the checkout, and links to what is no page (mkdocs hooks)."""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

TOP = Path(__file__).resolve().parents[1]
# Where each of these files is in the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "collectives/README.md": "engine.md",
}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(TOP / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links between files of the checkout into links between pages. Of other files only the name stays."""
    place = page.file.src_uri
    source = next((file for file, known in PAGES.items() if known == place), f"docs/{place}")

    def link(found: re.Match[str]) -> str:
        mark, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        path = normpath(str(PurePosixPath(source).parent / target))
        if not (TOP / path).exists():
            return found[0]  # mkdocs reports it
        page_of = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if page_of is None:
            return text
        return f"{mark}[{text}]({relpath(page_of, str(PurePosixPath(place).parent))}{anchor})"

    return _LINK.sub(link, markdown)
