"""Exceptions of ops: for calls that are not ops the same ones, and for elastic jobs Sirtaki's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from sirtaki.exceptions import SirtakiInternalError
from sirtaki.native import core

_OPS = "Sirtaki"  # the names of all ops begin with it


@contextlib.contextmanager
def as_of_an_op() -> Iterator[None]:
    """FailedPreconditionError if ranks disagree or init was not called, UnknownError if the job has failed."""
    try:
        yield
    except SirtakiInternalError as error:
        failed = core.is_initialized() and core.failure()
        kind = tf.errors.UnknownError if failed else tf.errors.FailedPreconditionError
        raise kind(None, None, str(error)) from error


@contextlib.contextmanager
def of_the_job() -> Iterator[None]:
    """Turns an UnknownError that reports the job's failure into HorovodInternalError; raises others as they are."""
    try:
        yield
    except tf.errors.UnknownError as error:
        if _OPS in str(error) or (core.is_initialized() and core.failure()):
            raise SirtakiInternalError(str(error)) from error
        raise
