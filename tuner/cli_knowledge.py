"""``tuner knowledge``: what is known never to start, and how to forget it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from tuner import knowledge
from tuner.errors import Problem, StudyError
from tuner.report_text import settings_text

knowledge_app = typer.Typer(
    help="What earlier studies learned of configurations that can never start.",
    no_args_is_help=True,
    add_completion=False,
)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


@knowledge_app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List what is known never to start, by vLLM version, device and model."""
    from tuner.cli import err, errors_as_exit_codes, out, print_json

    with errors_as_exit_codes():
        path = knowledge.default_path()
        known, problem = knowledge.load(path)
        if problem:
            err.print(problem, style="yellow", markup=False, soft_wrap=True)
        if as_json:
            print_json([one.to_json() for one in known])
        elif not known:
            out.print(f"nothing is known; {path} will keep it", markup=False, soft_wrap=True)
        else:
            out.print(_table(known))


@knowledge_app.command("forget")
def forget_command(
    keys: Annotated[list[str] | None, typer.Argument(help="Keys as listed.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Forget all of it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Forget verdicts, so that the next study starts these configurations again."""
    from tuner.cli import errors_as_exit_codes, out, print_json

    with errors_as_exit_codes():
        if bool(keys) == everything:
            raise StudyError(Problem("", "KEY", "give keys, or --all."), "tuner knowledge list")
        gone = knowledge.forget(knowledge.default_path(), None if everything else keys)
        missing = set(keys or ()) - {one.key for one in gone}
        if missing:
            names = ", ".join(sorted(missing))
            raise StudyError(Problem("", "KEY", f"is not known: {names}"), "tuner knowledge list")
        if as_json:
            print_json({"forgotten": [one.key for one in gone]})
        else:
            out.print(f"forgotten: {len(gone)}")


def _table(known: list[knowledge.Verdict]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("key", "reason", "configuration", "where", "from"):
        table.add_column(name, overflow="fold", no_wrap=name == "key")
    for one in known:
        about = settings_text(one.region or one.args)
        where = f"{one.model}, vLLM {one.scope.vllm}, {one.scope.device}"
        table.add_row(one.key, one.reason, about, where, f"{one.study} {one.date}")
    return table
