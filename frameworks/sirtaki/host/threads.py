"""Thread counts of numerical libraries: each local rank's number of cores, unless the user has set them."""

from collections.abc import Mapping

from sirtaki.host import cores

# MKL, OpenBLAS, numexpr and torch use OMP_NUM_THREADS; TensorFlow has its own variable.
VARIABLES = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


def unset(environ: Mapping[str, str]) -> list[str]:
    return [name for name in VARIABLES if not environ.get(name)]


def note(environ: Mapping[str, str], ranks: int, local: bool) -> str:
    """One line about threads and about ranks that share cores; "" if there is nothing to report.

    ranks: number of ranks. local: whether all run on this host; other hosts count their own cores.
    """
    names = unset(environ)
    if not local:
        return f"{' and '.join(names)}: cores / local ranks on each host" if names else ""
    available = cores.available()
    parts = []
    if ranks > available:
        parts.append(f"{ranks} ranks share {_counted(available)}")
    if names and (ranks > 1 or available < cores.allowed()):
        share = max(1, available // ranks)
        parts.append(f"{' and '.join(names)} set to {share} ({_counted(available)} / {ranks} local ranks)")
    return "; ".join([*parts, *_about_binding(environ, ranks)])


def _counted(available: int) -> str:
    quota = " by the container's CPU quota" if available < cores.allowed() else ""
    return f"{available} core{'s' if available > 1 else ''}{quota}"


def _about_binding(environ: Mapping[str, str], ranks: int) -> list[str]:
    variable = cores.binding_variable(environ)
    if not variable or ranks < 2:
        return []
    if listing := cores.listing_variable(environ):
        return [
            f"{listing} gives all ranks the same cores: unset it, and set OMP_PROC_BIND=true for cores of their own"
        ]
    if ranks > cores.allowed():
        return [f"{variable} binds the threads of all ranks to the same cores: unset it where ranks share cores"]
    return [f"each rank gets cores of its own, because of {variable}"]
