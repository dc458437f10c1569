"""The YAML file of --config-file: sections of options, with the names that horovodrun uses."""

from typing import Any

# Section -> key -> (name of the option, type). Other keys are refused.
_SECTIONS: dict[str, dict[str, tuple[str, type]]] = {
    "params": {
        "fusion_threshold_mb": ("fusion_threshold_mb", int),
        "cycle_time_ms": ("cycle_time_ms", float),
        "cache_capacity": ("cache_capacity", int),
        "hierarchical_allreduce": ("hierarchical_allreduce", bool),
        "hierarchical_allgather": ("hierarchical_allgather", bool),
        "torus_allreduce": ("torus_allreduce", bool),
    },
    "autotune": {
        "enabled": ("autotune", bool),
        "log_file": ("autotune_log_file", str),
        "warmup_samples": ("autotune_warmup_samples", int),
        "steps_per_sample": ("autotune_steps_per_sample", int),
        "bayes_opt_max_samples": ("autotune_bayes_opt_max_samples", int),
        "gaussian_process_noise": ("autotune_gaussian_process_noise", float),
    },
    "timeline": {"filename": ("timeline_filename", str), "mark_cycles": ("timeline_mark_cycles", bool)},
    "stall_check": {
        "enabled": ("stall_check", bool),
        "warning_time_seconds": ("stall_check_warning_time_seconds", int),
        "shutdown_time_seconds": ("stall_check_shutdown_time_seconds", int),
    },
    "library_options": {
        "mpi_threads_disable": ("mpi_threads_disable", bool),
        "num_nccl_streams": ("num_nccl_streams", int),
        "thread_affinity": ("thread_affinity", int),
        "gloo_timeout_seconds": ("gloo_timeout_seconds", int),
    },
    "logging": {"level": ("log_level", str), "with_timestamp": ("log_with_timestamp", bool)},
}
_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


def read(path: str) -> dict[str, Any]:
    """The options of the file, by name. ValueError with file and key for an unknown key or a wrong type."""
    import yaml  # imported here, since most launches have no such file

    with open(path, encoding="utf-8") as file:
        try:
            content = yaml.safe_load(file)
        except yaml.YAMLError as error:
            raise ValueError(f"{path}: not YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected sections ({', '.join(_SECTIONS)}), found {content!r}")
    options: dict[str, Any] = {}
    for section, keys in content.items():
        if section == "controller":
            options.update(_controller(path, keys))
        elif section == "restarts":
            options["restarts"] = _restarts(path, keys)
        else:
            options.update(_section(path, section, keys))
    return options


def _controller(path: str, value: Any) -> dict[str, Any]:
    if value not in ("mpi", "gloo"):
        raise ValueError(f"{path}: controller: {value!r} is neither mpi nor gloo")
    return {f"use_{value}": True}


def _restarts(path: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{path}: restarts: {value!r} is not a whole number of at least 0")
    return value


def _section(path: str, section: Any, content: Any) -> dict[str, Any]:
    if section not in _SECTIONS:
        known = ", ".join(("controller", "restarts", *_SECTIONS))
        raise ValueError(f"{path}: unknown key {section!r}; there are {known}")
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"{path}: {section}: expected keys ({', '.join(_SECTIONS[section])}), found {content!r}")
    options = {}
    for key, value in content.items():
        if key not in _SECTIONS[section]:
            raise ValueError(f"{path}: unknown key {section}.{key}; there are {', '.join(_SECTIONS[section])}")
        name, kind = _SECTIONS[section][key]
        options[name] = _value(f"{path}: {section}.{key}", value, kind)
    return options


def _value(where: str, value: Any, kind: type) -> Any:
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ValueError(f"{where}: {value!r} is not {'a number' if kind is float else f'of type {kind.__name__}'}")
    if where.endswith(" logging.level"):
        value = str(value).upper()
        if value not in _LEVELS:
            raise ValueError(f"{where}: {value!r} is none of {', '.join(_LEVELS)}")
    return value
