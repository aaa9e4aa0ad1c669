"""``tuner trace``: look at a trace, turn formats into ours, cut it without breaking prefixes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner import traces
from tuner.errors import Problem, StudyError, TraceError
from tuner.trace import Trace

trace_app = typer.Typer(no_args_is_help=True, help="Look at, convert and cut workload traces.")

File = Annotated[Path, typer.Argument(help="The trace: a file, or a folder of sessions.")]
Format = Annotated[
    str | None, typer.Option("--format", "-f", help=f"One of {', '.join(traces.FORMATS)}.")
]
Option = Annotated[
    list[str] | None,
    typer.Option("--option", help="A reader's option: name=value, as in block_size=16."),
]
Out = Annotated[
    str, typer.Option("--out", "-o", help="JSONL or .parquet file to write, or - for stdout.")
]
BAD_INPUT = 2


@trace_app.command()
def info(
    file: File,
    format: Format = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Tell what does not fit.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with charts too.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write a picture with charts too.")] = None,
    option: Option = None,
) -> None:
    """Show span, rate, burstiness, lengths, prefix reuse, sessions and what does not fit."""
    from tuner.traces import picture
    from tuner.traces.describe import describe

    with _problems_told():
        trace = traces.read(file, format, **_options(option))
        facts = describe(trace, max_model_len)
        if html is not None:
            with _faults_of_files(html):
                html.write_text(picture.page(trace, facts), encoding="utf-8")
        if png is not None:
            with _faults_of_files(png):
                picture.png(trace, facts, png)
    if as_json:
        print(json.dumps(facts, indent=2, allow_nan=False))
    else:
        from rich.console import Console

        Console().print(picture.terminal(trace, facts))


@trace_app.command()
def convert(file: File, out: Out, format: Format = None, option: Option = None) -> None:
    """Write a trace of any format in ours, unchanged but for rows that cannot be replayed."""
    with _problems_told():
        _write(traces.read(file, format, **_options(option)), out)


@trace_app.command()
def sample(
    file: File,
    out: Out,
    format: Format = None,
    window: Annotated[
        str | None, typer.Option(help="START:DURATION[:LEAD_IN] in seconds; whole sessions.")
    ] = None,
    thin: Annotated[
        float | None, typer.Option(help="Share of sessions or prefixes to keep.")
    ] = None,
    thin_by: Annotated[str, typer.Option(help="auto, session, prefix or request.")] = "auto",
    head: Annotated[int | None, typer.Option(help="Keep the first N requests.")] = None,
    rate_scale: Annotated[
        float | None, typer.Option(help="Arrive this many times as fast.")
    ] = None,
    length_scale: Annotated[float | None, typer.Option(help="Scale token counts.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Drop requests with more tokens.")] = None,
    spread_ties: Annotated[
        bool, typer.Option(help="Spread ties of times recorded in steps of 1 s or more.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of thinning and spreading.")] = 0,
    option: Option = None,
) -> None:
    """Cut and scale a trace, in this order: window, thin, head, rate, lengths, max-tokens."""
    from tuner.traces.transforms import apply

    with _problems_told():
        steps: list[dict[str, Any]] = [{"spread_ties": False}] if not spread_ties else []
        steps += [{"window": _window(window)}] if window is not None else []
        steps += [{"thin": {"keep": thin, "by": thin_by, "seed": seed}}] if thin is not None else []
        single = {
            "head": head,
            "rate_scale": rate_scale,
            "length_scale": length_scale,
            "max_tokens": max_tokens,
        }
        steps += [{name: value} for name, value in single.items() if value is not None]
        _write(apply(traces.read(file, format, **_options(option)), steps, seed=seed), out)


@trace_app.command()
def record(
    upstream: Annotated[str, typer.Argument(help="The server: http://127.0.0.1:8000")],
    out: Annotated[Path, typer.Option("--out", "-o", help="JSONL file to write.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8001,
    session_header: Annotated[str | None, typer.Option(help="Header that names a session.")] = None,
) -> None:
    """Pass requests on to a server and record them, without any text, until Ctrl-C.

    For a server of your own, `vllm serve --middleware tuner.traces.record_asgi.RecordingMiddleware`
    does the same without another hop.
    """
    from aiohttp import web

    from tuner.traces.record import SESSION_HEADERS, Recorder
    from tuner.traces.record_proxy import proxy

    names = (session_header.lower(),) if session_header else SESSION_HEADERS
    with _problems_told(), _faults_of_files(out), Recorder(out, session_headers=names) as recorder:
        print(f"{host}:{port} -> {upstream}, recording to {recorder.path}", file=sys.stderr)
        web.run_app(proxy(upstream, recorder), host=host, port=port, print=None)
    print(", ".join(f"{n} {what}" for what, n in recorder.counts.items()), file=sys.stderr)


@contextmanager
def _faults_of_files(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TraceError(Problem(str(path), "", error.strerror or str(error))) from error


def _window(text: str) -> dict[str, float]:
    names = ("start_s", "duration_s", "lead_in_s")
    try:
        values = [float(part) for part in text.split(":")]
        return dict(zip(names[: len(values)], values, strict=True))
    except ValueError:
        fault = f"expected START:DURATION[:LEAD_IN] in seconds, found {text!r}"
        raise TraceError(Problem("", "--window", fault)) from None


def _options(given: list[str] | None) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise TraceError(Problem("", "--option", f"expected name=value, found {text!r}"))
        try:
            options[name.replace("-", "_")] = json.loads(value)
        except ValueError:
            options[name.replace("-", "_")] = value
    return options


def _write(trace: Trace, out: str) -> None:
    from tuner.traces import own

    if out == "-":
        own.write_lines(trace, sys.stdout)
        return
    with _faults_of_files(Path(out)):
        own.write(trace, out)
    said = {**trace.provenance.dropped}
    print(f"{out}: {len(trace)} requests, dropped {said or 'none'}", file=sys.stderr)


@contextmanager
def _problems_told() -> Iterator[None]:
    """Turn bad input into ``file: field: message`` lines on stderr and exit code 2."""
    try:
        yield
    except StudyError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        if error.hint:
            print(error.hint, file=sys.stderr)
        raise typer.Exit(BAD_INPUT) from None
