"""Thread counts of numerical libraries: as many as each local rank has cores, where the user has not said."""

import os
from collections.abc import Mapping

# MKL, OpenBLAS, numexpr and torch follow OMP_NUM_THREADS; TensorFlow has a variable of its own.
VARIABLES = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


def unset(environ: Mapping[str, str]) -> list[str]:
    return [name for name in VARIABLES if not environ.get(name)]


def note(environ: Mapping[str, str], ranks: int, local: bool) -> str:
    """One line about threads, and about ranks that share cores; "" when there is nothing to say.

    ranks: of the job. local: whether all run here; elsewhere each host counts its own cores.
    """
    names = unset(environ)
    if not local:
        return f"{' and '.join(names)}: cores / local ranks on each host" if names else ""
    cores = len(os.sched_getaffinity(0))
    parts = []
    if ranks > cores:
        parts.append(f"{ranks} ranks share {cores} core{'s' if cores > 1 else ''}")
    if names and ranks > 1:
        share = max(1, cores // ranks)
        parts.append(f"{' and '.join(names)} set to {share} ({cores} cores / {ranks} local ranks)")
    return "; ".join(parts)
