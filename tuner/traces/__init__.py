"""Workload traces: readers of every common format, transforms, synthesis, tokens, description."""

from __future__ import annotations

import difflib
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from tuner.errors import TraceError
from tuner.trace import Trace
from tuner.traces.source import Head, Source, head_of

#: Format -> its module here: ``recognises(head) -> bool`` and ``read(source, **options) -> Trace``.
#: To add a format: one file and one line.
FORMATS = {
    "own": "own",
    "azure": "azure",
    "burstgpt": "burstgpt",
    "mooncake": "mooncake",
    "bailian": "bailian",
    "ragpulse": "ragpulse",
    "weka": "weka",
    "servegen": "servegen",
    "vidur": "vidur",
    "splitwise": "splitwise",
    "sharegpt": "sharegpt",
    "timed_trace": "timed_trace",
    "custom": "custom",
    "otel": "otel",
    "usage": "usage",
}
#: Formats that a folder may hold, one file a session.
FOLDERS = ("weka",)


def read(path: str | Path, format: str | None = None, **options: Any) -> Trace:
    """Read a trace file. The format is taken from the content unless it is named.

    ``options`` are the reader's own (see its docstring). Provenance says what was dropped and why.
    TraceError names file and line of what cannot be read, and asks where the format is unclear.
    """
    source = Source(Path(path))
    if not source.path.exists():
        raise source.fail("no such file")
    name = format or detect(path)
    module = _module(name, source)
    if source.path.is_dir() and name not in FOLDERS:
        raise source.fail(f"is a directory, but format {name} is read from one file")
    try:
        trace: Trace = module.read(source, **options)
    except TypeError as error:
        if "keyword argument" not in str(error):
            raise
        raise source.fail(f"format {name}: {_option_fault(error)}") from error
    return trace


def detect(path: str | Path) -> str:
    """Return the format of a file from its content; TraceError where none or several fit."""
    source = Source(Path(path))
    head = head_of(source)
    found = [name for name in FORMATS if _module(name, source).recognises(head)]
    if len(found) == 1:
        return found[0]
    if found:
        raise source.fail(f"could be {' or '.join(found)}", hint="Name the format.")
    raise source.fail(f"format not recognised{_seen(head)}", hint=_names())


def _module(name: str, source: Source) -> ModuleType:
    if name not in FORMATS:
        near = difflib.get_close_matches(name, FORMATS, 1)
        guess = f"; did you mean {near[0]}?" if near else ""
        raise source.fail(f"no format {name!r}{guess}", hint=_names())
    return import_module(f"{__name__}.{FORMATS[name]}")


def _names() -> str:
    return f"Name the format: one of {', '.join(FORMATS)}."


def _seen(head: Head) -> str:
    keys = list(head.first) or list(head.columns)
    shown = ", ".join(key[:30] for key in keys[:12])
    return f" (first line has: {shown})" if shown else ""


def _option_fault(error: TypeError) -> str:
    return str(error).split("()", 1)[-1].strip()


__all__ = ["FORMATS", "TraceError", "detect", "read"]
