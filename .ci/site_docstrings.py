"""Examples in docstrings, `>>> ...` and the lines after them, as blocks of code (an extension of griffe)."""

from typing import Any

import griffe


class Doctests(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            blocks = obj.docstring.value.split("\n\n")
            obj.docstring.value = "\n\n".join(map(_fenced, blocks))


def _fenced(block: str) -> str:
    return f"```pycon\n{block}\n```" if block.startswith(">>> ") else block
