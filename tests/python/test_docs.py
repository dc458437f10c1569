"""Files, links and functions that the documents name exist."""

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
CORE = TOP / "collectives"
DOCUMENTS = sorted([*TOP.glob("*.md"), *TOP.glob("docs/*.md"), CORE / "README.md"])
FOLDERS = ("benchmarks", "bindings", "collectives", "docs", "examples", "frameworks", "tests")
# Files of the recipes, which a reader would make.
INVENTED = re.compile(r"(?:^|/)(?:sockets|sockets_fabric|solo|solo_fabric|NAME)(?:[./]|$)")


def expanded(word: str) -> Iterator[str]:
    """`a/{b,c}.h` stands for a/b.h and a/c.h."""
    parts = [part.split(",") for part in re.split(r"[{}]", word)]
    yield from ("".join(choice) for choice in product(*parts))


def named_files(text: str) -> Iterator[str]:
    """Words in backticks that are paths of the repository, or file names of C++."""
    rooms = {folder.name for folder in CORE.iterdir() if folder.is_dir()}
    for span in re.findall(r"`([^`\n]+)`", text):
        for word in re.findall(r"(?<!\S)[\w./{},*-]+", span):
            first = word.partition("/")[0]
            if INVENTED.search(word):
                continue
            if "/" in word and (first in FOLDERS or first in rooms):
                yield from expanded(word)
            elif re.fullmatch(r"\w+\.(?:cc|h)", word):
                yield f"**/{word}"


def exists(path: str) -> bool:
    """From the top or within the core; a path of C++ may lack its suffix."""
    for base in (TOP, CORE) if "**" not in path else (CORE, TOP / "bindings", TOP / "tests", TOP / "benchmarks"):
        if any(any(base.glob(path.rstrip("/") + suffix)) for suffix in ("", ".h", ".cc")):
            return True
    return False


def anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings."""
    titles = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(TOP)))
def test_files_and_links_exist(document: Path) -> None:
    text = document.read_text()
    assert [path for path in named_files(text) if not exists(path)] == []
    broken = []
    for file, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", text):
        target = document.parent / file if file else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{file}#{anchor}")
    assert broken == []


def test_a_wrong_path_is_noticed() -> None:
    wrong = "`plane/rails.cc`, `rails.cc`, `collectives/settings.cc`, `tests/core/{doctest,missing}.cc`"
    missing = [path for path in named_files(wrong) if not exists(path)]
    assert missing == ["plane/rails.cc", "**/rails.cc", "collectives/settings.cc", "tests/core/missing.cc"]


def test_the_functions_on_the_way_of_a_gradient_exist() -> None:
    rows = re.findall(
        r"^\| \d+ \| `([\w:]+)` \| `([\w/.]+)` \|", (TOP / "docs/architecture.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 20
    for function, file in rows:
        path = TOP / file if (TOP / file).exists() else CORE / file
        assert re.search(rf"\b{function.rpartition('::')[2]}\(", path.read_text()), f"{file} has no {function}"


def test_every_variable_is_documented() -> None:
    """Those that the code names in full, and those of settings.py and settings.cc."""
    sources = [
        path
        for folder in ("frameworks", "collectives", "bindings")
        for path in (TOP / folder).rglob("*")
        if path.suffix in (".py", ".cc", ".h") and "include" not in path.parts
    ]
    named = set()
    for path in sources:
        text = path.read_text()
        named |= set(re.findall(r"\bSIRTAKI_[A-Z_]+[A-Z]\b", text))
        named |= {f"SIRTAKI_{name}" for name in re.findall(r'\b(?:look_up|flag|number)\(\s*"([A-Z_]+)"', text)}
    written = "\n".join(path.read_text() for path in [*TOP.glob("*.md"), *TOP.glob("docs/**/*.md")])
    assert len(named) > 40 and [name for name in sorted(named) if not re.search(rf"\b{name}\b", written)] == []
