"""Detects interpreters that read the program from stdin: ranks have no stdin, and would succeed without running it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

_PYTHON = re.compile(r"(python|pypy)[0-9.]*[a-z]?")
_SHELL = re.compile(r"(ba|da|k|z)?sh")
# Options that a word follows, and options that give the program.
_WITH_WORD = {"python": ("-W", "-X", "--check-hash-based-pycs"), "shell": ("-o", "-O", "+o", "+O", "--rcfile")}
_PROGRAM = {"python": ("c", "m"), "shell": ("c",)}
_NO_PROGRAM = ("-V", "-VV", "-h", "-?", "--version", "--help", "--help-all", "--help-env", "--help-xoptions")


def is_needed(words: Sequence[str]) -> bool:
    """Whether this command is an interpreter that reads its program from stdin."""
    name = os.path.basename(words[0])
    kind = "python" if _PYTHON.fullmatch(name) else "shell" if _SHELL.fullmatch(name) else ""
    if not kind:
        return False
    rest = iter(words[1:])
    for word in rest:
        if word == "-" or word == "--" or not word.startswith(("-", "+")):
            return word == "-" or (word == "--" and next(rest, "") in ("", "-"))
        if word in _NO_PROGRAM or (not word.startswith("--") and any(letter in word for letter in _PROGRAM[kind])):
            return False
        if kind == "shell" and not word.startswith("--") and "s" in word:
            return True
        if word in _WITH_WORD[kind]:
            next(rest, "")
    return True
