"""Requests generated with ServeGen. Its published files hold parameters, which are no requests."""

from __future__ import annotations

from tuner.trace import Trace
from tuner.traces import table
from tuner.traces.draft import Draft, ZeroOutput, finish
from tuner.traces.source import Head, Source, head_of

_ROWS = ("arrival_s", "input_tokens", "output_tokens")
_PARAMETERS = ("cv", "pattern", "shape", "scale")


def recognises(head: Head) -> bool:
    """Whether it is a file of generated requests, or one of parameters (which ``read`` refuses)."""
    return head.has_columns(*_ROWS) or _parameters(head)


def read(source: Source, *, zero_output: ZeroOutput = "drop") -> Trace:
    """Read ``arrival_s,input_tokens,output_tokens``; other columns are ignored.

    TraceError for ServeGen's own client windows and length distributions.
    """
    if _parameters(head_of(source)):
        raise source.fail(
            "holds ServeGen's parameters (rates and distributions of clients), not requests",
            hint="Generate requests from them first: arrival_s,input_tokens,output_tokens.",
        )
    found = table.columns(source, dict.fromkeys(_ROWS, "number"))
    draft = Draft(
        arrival_us=found["arrival_s"] * 1e6,
        prompt_tokens=found["input_tokens"],
        output_tokens=found["output_tokens"],
        notes=("arrivals and lengths are drawn from ServeGen's models, not recorded",),
    )
    return finish(source, "servegen", draft, zero_output=zero_output)


def _parameters(head: Head) -> bool:
    if head.has_columns(*_PARAMETERS):
        return True
    start = head.text[:200].replace(" ", "")
    return start.startswith('{"') and '"input_tokens":' in start and '"window":' in start
