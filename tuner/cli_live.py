"""``tuner live``: put a preset on a running server, without a restart where that can be."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

if TYPE_CHECKING:
    from tuner.config import Json
    from tuner.live_apply import Applied
    from tuner.live_plan import Difference
    from tuner.live_sources import Source
    from tuner.live_watch import Change, Pace

live_app = typer.Typer(
    no_args_is_help=True, help="Change a running `vllm serve` to a preset, without a restart."
)

TOKEN_ENV = "TUNER_LIVE_TOKEN"

Url = Annotated[str, typer.Option(help="The server, as http://127.0.0.1:port.")]
TokenEnv = Annotated[
    str, typer.Option("--token-env", help="Environment variable that holds the server's token.")
]
DrainS = Annotated[
    float,
    typer.Option(
        "--drain-s",
        min=0.0,
        max=600.0,
        help="Hold new requests back, for at most so many seconds, until the engine is idle.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


@live_app.command()
def apply(
    preset: Annotated[
        Path,
        typer.Argument(help="A preset's YAML file, or a results folder.", show_default=False),
    ],
    url: Url,
    name: Annotated[str, typer.Option("--preset", help="Which one of a results folder.")] = "",
    token_env: TokenEnv = TOKEN_ENV,
    drain_s: DrainS = 0.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    as_json: AsJson = False,
) -> None:
    """Change what can be changed live to a preset's values; say what needs a restart."""
    from tuner import live_preset
    from tuner.cli import NO_FRONT, errors_as_exit_codes, print_json
    from tuner.live_apply import apply as put
    from tuner.live_server import LiveServer

    with errors_as_exit_codes():
        file = live_preset.found(preset, name)
        wanted = live_preset.parsed(file.read_text(encoding="utf-8"), str(file))
        token = _token(token_env)

        async def main() -> Applied:
            async with LiveServer.open(url, token) as server:
                return await put(server, wanted, drain_s, dry_run=dry_run)

        done = asyncio.run(main())
    if as_json:
        print_json(done.to_json())
    else:
        _tell(done)
    raise typer.Exit(0 if done.ok else NO_FRONT)


@live_app.command()
def watch(
    source: Annotated[
        str, typer.Option(help="file:PATH or etcd://host:port/key, which holds a preset.")
    ],
    url: Url,
    token_env: TokenEnv = TOKEN_ENV,
    drain_s: DrainS = 0.0,
    quiet_s: Annotated[
        float, typer.Option("--quiet-s", min=0.0, help="Seconds without a change before it counts.")
    ] = 0.5,
    log: Annotated[Path, typer.Option(help="Takes one line of JSON per change.")] = Path(
        "live-changes.jsonl"
    ),
) -> None:
    """Follow a file or a key: validate and apply each new preset until Ctrl-C."""
    from tuner.cli import err, errors_as_exit_codes, out
    from tuner.live_sources import source_of
    from tuner.live_watch import Pace

    with errors_as_exit_codes():
        where = source_of(source)
        token = _token(token_env)
        with _lines_to(log) as file:
            out.print(f"following {where.name} for {url}; Ctrl-C ends it", soft_wrap=True)
            try:
                asyncio.run(_watching(where, (url, token), file, Pace(quiet_s, drain_s)))
            except KeyboardInterrupt:
                err.print("no longer followed; the server keeps what it has")


async def _watching(source: Source, server: tuple[str, str], log: TextIO, pace: Pace) -> None:
    from tuner.cli import out
    from tuner.live_server import LiveServer
    from tuner.live_watch import watch as follow

    def tell(change: Change) -> None:
        at = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
        line = {"time": at, "url": server[0], **change.to_json()}
        log.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
        out.print(f"{at} {_sentence(change)}", markup=False, soft_wrap=True)

    async with LiveServer.open(*server) as opened:
        await follow(source, opened, tell, pace)


def _token(name: str) -> str:
    from tuner.errors import Problem, StudyError

    token = os.environ.get(name, "")
    if not token:
        fault = f"the environment variable {name} is not set"
        raise StudyError(Problem("", "--token-env", fault))
    return token


@contextlib.contextmanager
def _lines_to(path: Path) -> Iterator[TextIO]:
    from tuner.errors import Problem, StudyError

    try:
        file = path.open("a", encoding="utf-8", buffering=1)
    except OSError as error:
        raise StudyError(Problem(str(path), "--log", str(error))) from error
    with file:
        yield file


def _tell(done: Applied) -> None:
    from tuner.cli import err, out

    for name, one in done.plan.live.items():
        out.print(f"live     {_line(name, one)}", markup=False, soft_wrap=True)
    for name, one in done.plan.restart.items():
        out.print(f"restart  {_line(name, one)}", markup=False, soft_wrap=True)
    out.print(done.result)
    for text in filter(None, (done.error, done.hint)):
        err.print(text, style="red", markup=False, soft_wrap=True)


def _line(name: str, one: Difference) -> str:
    why = f" ({one.why})" if one.why else ""
    return f"{name}: {_short(one.current)} -> {_short(one.wanted)}{why}"


def _short(value: Json) -> str:
    return json.dumps(value, default=str)


def _sentence(change: Change) -> str:
    parts = [f"{change.result} {change.digest}".strip()]
    if change.applied is not None:
        plan = change.applied.plan
        parts += [_line(name, one) for name, one in plan.live.items()]
        if plan.restart:
            parts.append(f"needs a restart: {', '.join(plan.restart)}")
    return "; ".join([*parts, *filter(None, [change.error])])
