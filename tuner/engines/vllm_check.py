"""Checks configurations with vLLM's own code, in a process of its own: no engine, no GPU needed.

The caller never imports vLLM. Run as ``python -m tuner.engines.vllm_check`` this module is that
process: it answers JSON lines and ends when its input does, so it never outlives its owner.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

from tuner.config import EngineConfig, Json
from tuner.errors import ConfigRejected, EngineFault, Problem, StudyError
from tuner.memory import Demand

_END_S = 5.0
_CHUNK = 65536


@dataclass(frozen=True, slots=True)
class ArgumentInfo:
    """An engine argument of the installed vLLM, or one inside a nested argument (dotted name)."""

    name: str
    #: The type as vLLM writes it: "int | None".
    type: str
    #: "bool", "int", "float", "text", "list", "mapping" or "other".
    kind: str
    #: All values it takes, None where they cannot be listed.
    choices: tuple[Json, ...] | None = None
    default: Json = None
    optional: bool = False
    #: The option of ``vllm serve`` ("--max-num-seqs"), '' where there is none.
    flag: str = ""
    #: Whether a ``--no-...`` form exists. Without one, false is said by leaving the flag out.
    negatable: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What vLLM says to a configuration before any start."""

    ok: bool
    #: Why not, as a short class; "unchecked" (and ok) where this machine cannot tell.
    reason: str = ""
    #: vLLM's own words.
    detail: str = ""
    #: Dotted argument -> value in the configuration that vLLM built.
    effective: Mapping[str, Json] = field(default_factory=dict)
    #: Dotted argument -> [asked, got] where vLLM silently took another value.
    changed: Mapping[str, list[Json]] = field(default_factory=dict)
    #: Name of the attention backend that vLLM would choose.
    attention: str = ""
    #: What it asks of GPU memory; None where ``not_modelled`` says why.
    demand: Demand | None = None
    not_modelled: str = ""


class Checker:
    """Asks the installed vLLM. A context manager; its process starts with the first question.

    Every question raises EngineFault("checker_died" or "checker_hung") where the process gives no
    answer; the next one starts a new process.
    """

    def __init__(self, env: Mapping[str, str] | None = None, *, timeout_s: float = 300.0) -> None:
        self._env = {**os.environ, **(env or {})}
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._opened = contextlib.ExitStack()
        self._errors: IO[bytes] | None = None
        self._unread = b""
        self._arguments: dict[str, ArgumentInfo] | None = None
        self._version = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._end()

    @property
    def version(self) -> str:
        """The installed vLLM's version."""
        self._version = self._version or str(self._ask("version"))
        return self._version

    def arguments(self) -> dict[str, ArgumentInfo]:
        """Return all engine arguments by their Python names, nested ones by dotted names too."""
        if self._arguments is None:
            found = [_argument(item) for item in self._ask("arguments")]
            self._arguments = {info.name: info for info in found}
        return self._arguments

    def performance_modes(self) -> list[str]:
        """Return the values of ``--performance-mode``, [] where this version has none."""
        info = self.arguments().get("performance_mode")
        return [str(choice) for choice in (info and info.choices) or ()]

    def check(self, config: EngineConfig, also: Collection[str] = ()) -> Verdict:
        """Build the configuration as ``vllm serve`` would; ``also``: more arguments to read back.

        10 ms each, after some seconds for the first.
        """
        answer = self._ask("check", config=config.to_json(), also=list(also))
        asked = answer.pop("demand", None)
        return Verdict(**answer, demand=Demand(**asked) if asked else None)

    def defaults(self, config: EngineConfig) -> Mapping[str, Json]:
        """Return what vLLM makes of all arguments that ``config`` leaves open, and of its own.

        Raises ConfigRejected where the configuration cannot be built.
        """
        names = [name for name in self.arguments() if "." not in name]
        verdict = self.check(config, names)
        if not verdict.ok:
            raise ConfigRejected(verdict.reason, verdict.detail)
        return verdict.effective

    def temperatures(
        self, values: Mapping[str, Sequence[Json]], base: EngineConfig
    ) -> dict[str, str]:
        """Return "hot", "warm" or "cold" of each argument; see ``live.temperature.of``.

        ``values`` holds at least two values of each.
        """
        given = {name: list(options) for name, options in values.items()}
        return dict(self._ask("temperatures", values=given, config=base.to_json()))

    def parse_config_file(self, path: Path) -> dict[str, Json]:
        """Return every engine argument as ``vllm serve --config path`` would set it.

        Raises StudyError with the parser's words where vLLM does not load the file, and for a name
        that it would only take as an abbreviation.
        """
        answer = self._ask("parse", path=str(path))
        if "problems" in answer:
            raise StudyError([Problem(**problem) for problem in answer["problems"]])
        return dict(answer["args"])

    def _ask(self, question: str, **given: Json) -> Json:
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps([question, given]).encode() + b"\n")
            process.stdin.flush()
            answer = json.loads(self._line(process))
        except (BrokenPipeError, EOFError) as error:
            raise self._fault("checker_died", "the check process ended") from error
        except TimeoutError as error:
            what = f"the check process gave no answer for {self._timeout_s:g} s"
            raise self._fault("checker_hung", what) from error
        if "fault" in answer:
            raise EngineFault("checker_failed", answer["fault"])
        return answer["value"]

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            # Open until _end(): the process writes to it.
            errors = tempfile.TemporaryFile()  # noqa: SIM115
            self._errors = self._opened.enter_context(errors)
            self._unread = b""
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tuner.engines.vllm_check"],
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        return self._process

    def _line(self, process: subprocess.Popen[bytes]) -> bytes:
        """Return the next line. Raises EOFError where the process died, TimeoutError if silent."""
        assert process.stdout is not None
        until = time.monotonic() + self._timeout_s
        while b"\n" not in self._unread:
            left = until - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise TimeoutError
            chunk = os.read(process.stdout.fileno(), _CHUNK)
            if not chunk:
                raise EOFError
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _fault(self, reason: str, what: str) -> EngineFault:
        from tuner.engines.vllm_errors import last_lines

        text = ""
        if self._errors is not None:
            self._errors.seek(0)
            text = last_lines(self._errors.read().decode(errors="replace"))
        self._end()
        return EngineFault(reason, f"{what}\n{text}".strip())

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            process.kill()
            with contextlib.suppress(BrokenPipeError), process:
                pass  # waits, and closes the pipes
            self._opened.close()


def _argument(item: dict[str, Json]) -> ArgumentInfo:
    choices = item.pop("choices")
    return ArgumentInfo(choices=None if choices is None else tuple(choices), **item)


if __name__ == "__main__":
    from tuner.engines.vllm_check_answers import serve

    serve()
