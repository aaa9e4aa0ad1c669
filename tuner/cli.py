"""The command line: each command is a thin function over a library call."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.console import Console

from tuner.cli_knowledge import knowledge_app
from tuner.cli_live import live_app
from tuner.cli_trace import trace_app
from tuner.config import Json
from tuner.errors import StoreError, StudyError, TunerError

app = typer.Typer(
    name="tuner",
    help="Find the Pareto front of vLLM configurations for your model, GPU and recorded traffic.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(trace_app, name="trace")
app.add_typer(knowledge_app, name="knowledge")
app.add_typer(live_app, name="live")

#: Columns where nobody looks: wide enough for the tables, whatever reads the pipe.
PIPE_WIDTH = 140


def _console(stream: TextIO, stderr: bool = False) -> Console:
    width = None if stream.isatty() else PIPE_WIDTH
    return Console(stderr=stderr, highlight=False, width=width)


out = _console(sys.stdout)
err = _console(sys.stderr, stderr=True)

NO_FRONT, BAD_INPUT, INTERRUPTED = 1, 2, 130

Study = Annotated[Path, typer.Argument(help="A study file.", show_default=False)]
Results = Annotated[Path, typer.Argument(help="A study's results folder.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change a value of the study file."),
]


@contextlib.contextmanager
def errors_as_exit_codes() -> Iterator[None]:
    """Print intended errors as people read them, and exit: 2 bad input, 1 else, 130 interrupted."""
    try:
        yield
    except StudyError as error:
        for problem in error.problems:
            err.print(str(problem), style="red", markup=False, soft_wrap=True)
        _hint(error)
        raise typer.Exit(BAD_INPUT) from None
    except TunerError as error:
        err.print(str(error), style="red", markup=False, soft_wrap=True)
        _hint(error)
        raise typer.Exit(BAD_INPUT if isinstance(error, StoreError) else NO_FRONT) from None
    except KeyboardInterrupt:
        err.print("interrupted; run the same command again to resume")
        raise typer.Exit(INTERRUPTED) from None


def _hint(error: TunerError) -> None:
    if error.hint:
        err.print(error.hint, markup=False, soft_wrap=True)


def print_json(value: Json) -> None:
    """Print one JSON document and nothing else."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


@app.command()
def run(
    study: Study,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Results folder; default results/<name>.")
    ] = None,
    sets: Sets = None,
    trials: Annotated[int | None, typer.Option(help="Budget of trials.", min=1)] = None,
    no_confirm: Annotated[
        bool, typer.Option("--no-confirm", help="Stop after the search.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a study, or resume it; confirm its front; then write front, presets, report."""
    from tuner.cli_run import run_command

    overrides = [*(sets or []), *([f"budget.trials={trials}"] if trials else [])]
    overrides += ["confirm.members=0"] if no_confirm else []
    with errors_as_exit_codes():
        code = run_command(study, out_dir, overrides, as_json, _command())
    raise typer.Exit(code)


@app.command()
def check(study: Study, sets: Sets = None, as_json: AsJson = False) -> None:
    """Show what would be tried, what can never start and why, and what it will cost."""
    from tuner.cli_check import check_command

    with errors_as_exit_codes():
        code = check_command(study, sets or [], as_json)
    raise typer.Exit(code)


@app.command()
def front(folder: Results, as_json: AsJson = False) -> None:
    """Print a study's front as a table."""
    from tuner.cli_report import front_command

    with errors_as_exit_codes():
        code = front_command(folder, as_json)
    raise typer.Exit(code)


@app.command()
def export(
    folder: Annotated[
        Path,
        typer.Argument(help="A results folder; with --check also a preset.", show_default=False),
    ],
    preset: Annotated[str | None, typer.Option(help="Only this preset.")] = None,
    kind: Annotated[
        str,
        typer.Option(
            "--format",
            help="vllm, shell, compose, kubernetes, kserve, production-stack or ray-serve.",
        ),
    ] = "vllm",
    profile: Annotated[
        str, typer.Option(help="local: one GPU of a workstation; production: a node of 8 GPUs.")
    ] = "local",
    minimal: Annotated[
        bool, typer.Option("--minimal", help="Without knobs that make no difference.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Say whether presets still hold here; write nothing.")
    ] = False,
    to: Annotated[Path | None, typer.Option("--to", help="Folder to write to.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write presets in the format of a tool; `vllm` files are parsed back by vLLM itself."""
    from tuner.cli_export import check_command, export_command
    from tuner.finish import Export

    with errors_as_exit_codes():
        if check:
            code = check_command(folder, preset, as_json)
        else:
            code = export_command(folder, Export(preset, kind, profile, minimal, to), as_json)
    raise typer.Exit(code)


@app.command()
def explain(
    folder: Results,
    trials: Annotated[int | None, typer.Option(help="About so many runs.", min=2)] = None,
    preset: Annotated[str | None, typer.Option(help="Of which preset; default: balanced.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure which knobs a preset's gain comes from: each set back to vLLM's default in turn."""
    from tuner.cli_explain import explain_command

    with errors_as_exit_codes():
        code = explain_command(folder, trials, preset, as_json)
    raise typer.Exit(code)


@app.command()
def report(
    folder: Results,
    kind: Annotated[str, typer.Option("--format", help="html or markdown.")] = "html",
    to: Annotated[
        Path | None, typer.Option("--out", help="File to write; Markdown goes to stdout.")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Write the front as a picture too.")] = None,
    svg: Annotated[Path | None, typer.Option(help="The same for slides that scale.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a study's report again: one self-contained HTML file, or Markdown."""
    from tuner.cli_report import Wanted, report_command

    pictures = tuple(path for path in (png, svg) if path is not None)
    with errors_as_exit_codes():
        code = report_command(folder, Wanted(kind, to, pictures), as_json)
    raise typer.Exit(code)


@app.command()
def dashboard(
    folder: Results,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8080,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Refuse every change: for sharing.")
    ] = False,
) -> None:
    """Open Optuna's dashboard on a study's storage."""
    from tuner.dashboard import serve
    from tuner.results import open_store

    def announce(address: str) -> None:
        out.print(f"dashboard at {address} (Ctrl-C ends it)", soft_wrap=True)

    with errors_as_exit_codes():
        study = open_store(folder).study
        serve(study, host, port, read_only=read_only, folder=folder, announce=announce)


@app.command()
def compare(
    folder: Results,
    a: Annotated[str, typer.Argument(help="A trial, a preset, its YAML file, or `defaults`.")],
    b: Annotated[str, typer.Argument(help="What is held against A.")],
    repeats: Annotated[int, typer.Option(help="Runs of each, in turns.", min=2)] = 4,
    difference: Annotated[
        float, typer.Option(help="The relative difference to be able to see.", min=0.001)
    ] = 0.05,
    engine: Annotated[
        str | None, typer.Option(help="server, vllm or simulated; default: the study's.")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Change one engine instead of starting it anew.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure two configurations in turns (ABBA) on the same requests; say which is better."""
    from tuner.cli_compare import compare_command
    from tuner.compare import Question

    with errors_as_exit_codes():
        question = Question(folder, (a, b), repeats, engine, live, difference)
        code = compare_command(question, as_json)
    raise typer.Exit(code)


@app.command()
def replay(
    workload: Annotated[Path, typer.Argument(help="A workload file.", show_default=False)],
    url: Annotated[str, typer.Option(help="The endpoint, as http://host:port.")],
    model: Annotated[str, typer.Option(help="The served model; default: the first.")] = "",
    measure: Annotated[str | None, typer.Option(help="Only paced or only saturated.")] = None,
    vocab_size: Annotated[
        int | None, typer.Option(help="Token ids below this are sent.", min=20)
    ] = None,
    api_key_env: Annotated[
        str, typer.Option(help="Environment variable that holds the API key.")
    ] = "",
    clients: Annotated[int, typer.Option(help="Processes that send.", min=1)] = 1,
    out_dir: Annotated[Path | None, typer.Option("--out", help="Keep the records here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure any OpenAI-compatible endpoint with a workload, as a trial would be."""
    from tuner.cli_replay import Endpoint, replay_command

    endpoint = Endpoint(url, model, vocab_size, api_key_env, clients)
    with errors_as_exit_codes():
        code = replay_command(workload, endpoint, measure, out_dir, as_json)
    raise typer.Exit(code)


@app.command()
def doctor(
    study: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RESULTS]", help="A study's results folder: look at what went wrong in it."
        ),
    ] = None,
    results: Annotated[Path, typer.Option(help="Where results are to be written.")] = Path(
        "results"
    ),
    port: Annotated[int, typer.Option(help="Port of the dashboard.")] = 8080,
    as_json: AsJson = False,
) -> None:
    """Say what is installed, missing or broken, or what went wrong in a study, and what to do."""
    from tuner.cli_doctor import doctor_command
    from tuner.doctor import Targets

    with errors_as_exit_codes():
        code = doctor_command(study, Targets(results=results, port=port), as_json)
    raise typer.Exit(code)


def _command() -> str:
    return shlex.join(["tuner", *sys.argv[1:]])
