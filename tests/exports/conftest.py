"""vLLM's own parser, the way ``vllm serve`` calls it, in one child process for all tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tuner.engines.vllm_check import Checker
from tuner.errors import TunerError

# The options hang on the sub-parser of "serve"; a file is read by the parser above it. It matters:
# the lower parser alone would understand `enable-prefix-caching: false`, the real path drops it.
_CHILD = """
import contextlib, dataclasses, enum, io, json, os, shlex, sys
out = os.fdopen(os.dup(1), "w"); os.dup2(2, 1)
import vllm.entrypoints.cli.serve as serve
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser(prog="vllm")
commands = parser.add_subparsers(dest="subparser")
for command in serve.cmd_init():
    command.subparser_init(commands)

def plain(value):
    if isinstance(value, enum.Enum):
        return value.name
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name, None)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(v) for v in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)

for line in sys.stdin:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            answer = {"ok": plain(vars(parser.parse_args(json.loads(line))))}
    except SystemExit:
        answer = {"error": said.getvalue().strip().splitlines()[-1]}
    except Exception as error:
        answer = {"error": repr(error)}
    print(json.dumps(answer), file=out, flush=True)
"""

Words = Callable[[list[str]], dict[str, Any]]


@pytest.fixture(scope="session")
def parse_words() -> Iterator[Words]:
    """Parse command-line words after ``vllm``; TunerError where vLLM refuses them."""
    pytest.importorskip("vllm")
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None

    def parse(words: list[str]) -> dict[str, Any]:
        child.stdin.write(json.dumps(words) + "\n")
        child.stdin.flush()
        answer = json.loads(child.stdout.readline())
        if "error" in answer:
            raise TunerError(answer["error"])
        return dict(answer["ok"])

    with child:
        yield parse
        child.stdin.close()


@pytest.fixture(scope="session")
def parse() -> Iterator[Callable[[Path], dict[str, Any]]]:
    """Parse a config file as ``vllm serve --config FILE`` does."""
    pytest.importorskip("vllm")
    with Checker() as checker:
        yield checker.parse_config_file
