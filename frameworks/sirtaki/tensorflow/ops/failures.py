"""For calls that are not ops: raises the exceptions that an op would raise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from sirtaki.exceptions import SirtakiInternalError
from sirtaki.native import core


@contextlib.contextmanager
def as_of_an_op() -> Iterator[None]:
    """FailedPreconditionError if ranks disagree or init was not called, UnknownError if the job has failed."""
    try:
        yield
    except SirtakiInternalError as error:
        failed = core.is_initialized() and core.failure()
        kind = tf.errors.UnknownError if failed else tf.errors.FailedPreconditionError
        raise kind(None, None, str(error)) from error
