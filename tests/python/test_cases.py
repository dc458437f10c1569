"""Case numbers say nothing by themselves: docs/cases.md explains each one that a test or a document uses."""

import re
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
NUMBER = re.compile(r"\bC[1-9]\d{0,2}\b")


def test_every_case_number_is_explained() -> None:
    explained = re.findall(r"^\| (C\d+) \| \S", (TOP / "docs/cases.md").read_text(), re.MULTILINE)
    assert len(set(explained)) == len(explained), "a case is explained twice"
    used: dict[str, str] = {}
    for room in ("tests", "docs"):
        for file in (TOP / room).rglob("*"):
            if file.suffix in (".py", ".cc", ".h", ".md"):
                used |= dict.fromkeys(NUMBER.findall(file.read_text()), str(file.relative_to(TOP)))
    assert len(used) > 30
    assert {case: file for case, file in used.items() if case not in explained} == {}
