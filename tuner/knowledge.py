"""What earlier studies learned about configurations that can never start, kept for the user.

One small JSON file under the user's cache, or where ``TUNER_KNOWLEDGE`` says. It only ever saves
starts: what cannot be read is set aside, and what it says can be forgotten.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tuner import machine
from tuner.config import EngineConfig, Json, digest
from tuner.engines.evidence import Shortage
from tuner.errors import TunerError
from tuner.events import Event, TrialFinished
from tuner.records import Infeasible, TrialRecord
from tuner.study import StudySpec
from tuner.tune import Check
from tuner.validity import model_digest

VARIABLE = "TUNER_KNOWLEDGE"
_FORMAT = 1
_LOCK_S = 10.0
#: The oldest go first; each is about a kilobyte.
_MOST = 2000
_DETAIL_CHARS = 2000
#: Reasons that hold whatever the workload is and whoever else uses the machine.
_LASTING = ("invalid_arguments", "unsupported_by_hardware")
#: Stages at which memory runs out by the configuration alone.
_LASTING_STAGES = ("weights", "activations", "kv_cache", "graphs")
#: A message that blames one argument's value -> that argument; the value is in the message.
_BLAMES = (
    (r"No common block size for (\d+)", "block_size"),
    (r"(\w+) quantization is currently not supported in", "quantization"),
)


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a verdict holds: nothing is known from another version, device or model."""

    vllm: str
    device: str
    #: Digest of the model, see ``validity.model_digest``.
    model: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A configuration, or all that share the values in ``region``, that can never start."""

    scope: Scope
    #: Digest of arguments and environment.
    config_key: str
    reason: str
    detail: str
    #: Arguments that are to blame by themselves; empty: only the whole configuration is.
    region: Mapping[str, Json] = field(default_factory=dict)
    args: Mapping[str, Json] = field(default_factory=dict)
    model: str = ""
    study: str = ""
    date: str = ""

    @property
    def key(self) -> str:
        """By which it is forgotten: 12 hex digits over scope and what it is about."""
        about = dict(self.region) or self.config_key
        return digest([asdict(self.scope), self.reason, about])[:12]

    def covers(self, config: EngineConfig) -> bool:
        """Whether it speaks of this configuration."""
        if self.region:
            return all(config.args.get(name) == value for name, value in self.region.items())
        return self.config_key == config_key(config)

    def to_json(self) -> dict[str, Json]:
        """Return a plain mapping."""
        return {"key": self.key, **asdict(self)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Verdict:
        """Rebuild what ``to_json`` gave. Raises TypeError or KeyError for anything else."""
        fields = {name: one for name, one in value.items() if name != "key"}
        return cls(**{**fields, "scope": Scope(**fields["scope"])})


def config_key(config: EngineConfig) -> str:
    """Return a digest of what is asked of the engine, whatever the model's path is."""
    return digest([dict(config.args), dict(config.env)])


def default_path(env: Mapping[str, str] = os.environ) -> Path:
    """Return the file of this user."""
    home = Path.home() / ".cache" / "vllm-tuner" / "knowledge.json"
    return Path(env.get(VARIABLE) or home)


def load(path: Path) -> tuple[list[Verdict], str]:
    """Return the verdicts of a file, and what is wrong with it: '' for nothing."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["format"] != _FORMAT:
            raise ValueError(f"format {stored['format']}, not {_FORMAT}")
        return [Verdict.from_json(one) for one in stored["verdicts"]], ""
    except FileNotFoundError:
        return [], ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [], f"{path} cannot be read and is not used: {type(error).__name__}: {error}"


def keep(path: Path, new: Sequence[Verdict]) -> str:
    """Add verdicts to a file, each once; return what went wrong, '' for nothing."""
    try:
        with _changing(path) as found:
            known = {one.key: one for one in [*found, *new]}
            found[:] = list(known.values())[-_MOST:]
    except (OSError, Timeout) as error:
        return f"{path} cannot be written: {error}"
    return ""


def forget(path: Path, keys: Collection[str] | None = None) -> list[Verdict]:
    """Take verdicts out of a file, all for None; return those taken out.

    Raises TunerError where the file cannot be changed.
    """
    try:
        with _changing(path) as found:
            gone = [one for one in found if keys is None or one.key in keys]
            found[:] = [one for one in found if one not in gone]
    except (OSError, Timeout) as error:
        raise TunerError(f"{path} cannot be written: {error}") from error
    return gone


@contextmanager
def _changing(path: Path) -> Iterator[list[Verdict]]:
    """Give the verdicts of a file to change; what cannot be read is set aside as ``.broken``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock", timeout=_LOCK_S):
        found, problem = load(path)
        if problem:
            path.replace(f"{path}.broken")
        yield found
        text = json.dumps({"format": _FORMAT, "verdicts": [one.to_json() for one in found]})
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.write_text(text + "\n", encoding="utf-8")
        draft.replace(path)


@dataclass(slots=True)
class Knowledge:
    """What is known where a study runs. Watches its trials, and keeps what they teach."""

    path: Path
    scope: Scope
    study: str
    say: Callable[[str], object]
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _known: list[Verdict] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, scope: Scope, study: str, say: Callable[[str], object]) -> Knowledge:
        """Read what is known of this scope; a file that cannot be read is told."""
        found, problem = load(path)
        if problem:
            say(problem)
        return cls(path, scope, study, say, _known=[one for one in found if one.scope == scope])

    def check(self, config: EngineConfig) -> Infeasible | None:
        """Return the verdict on a configuration, and whence it is known; None for none."""
        for one in self._known:
            if one.covers(config):
                whence = f"known from study {one.study} of {one.date}, not started again"
                way_out = f"`tuner knowledge forget {one.key}` forgets it"
                return Infeasible(one.reason, f"{one.detail}\n{whence}; {way_out}")
        return None

    def before(self, other: Check) -> Check:
        """Return a check that asks this knowledge first, then the other one."""
        return lambda config: self.check(config) or other(config)

    def on_event(self, event: Event) -> None:
        """Keep the verdict of a trial that was started in vain."""
        if isinstance(event, TrialFinished):
            verdict = self._verdict(event.record)
            if verdict is not None:
                self._known.append(verdict)
                if problem := keep(self.path, [verdict]):
                    self.say(problem)

    def _verdict(self, record: TrialRecord) -> Verdict | None:
        outcome = record.outcome
        if not isinstance(outcome, Infeasible) or not record.cost.total_s or not lasts(outcome):
            return None
        return Verdict(
            self.scope,
            config_key(record.config),
            outcome.reason,
            outcome.detail[:_DETAIL_CHARS],
            region(outcome, record.config),
            dict(record.config.args),
            record.config.model,
            self.study,
            self.now().date().isoformat(),
        )


def knowing(spec: StudySpec, version: str | None, say: Callable[[str], object]) -> Knowledge | None:
    """Return what is known where a study runs; ``version``: of vLLM there, None for a simulation.

    None for a simulated engine, which costs nothing to start, and for a cluster, whose devices
    cannot be seen from here.
    """
    if version is None or spec.engine.kind == "simulated" or spec.ray.address is not None:
        return None
    scope = Scope(version, _device(), model_digest(spec.base.model) or spec.base.model)
    return Knowledge.read(default_path(), scope, spec.name, say)


def _device() -> str:
    here = machine.hardware()
    if gpus := here["gpus"]:
        # Their number, too: what needs more of them starts where there are more.
        return f"{len(gpus)} x {gpus[0]}, {here['gpu_memory_bytes'][0] / 2**30:.0f} GiB"
    return f"{here['cpu']}, {here['cpu_cores']} cores, {here['memory_bytes'] / 2**30:.0f} GiB"


def lasts(outcome: Infeasible) -> bool:
    """Whether a verdict follows from the configuration alone.

    Not where memory was short before anything was loaded (somebody else's), nor under load or for
    too long a request (the workload's).
    """
    if outcome.reason == "out_of_memory":
        return Shortage.read(outcome.detail).stage in _LASTING_STAGES
    return outcome.reason in _LASTING


def region(outcome: Infeasible, config: EngineConfig) -> dict[str, Json]:
    """Return the argument that a message blames by its value, where the configuration asks so."""
    for pattern, name in _BLAMES:
        found = re.search(pattern, outcome.detail)
        if found and str(config.args.get(name)) == found[1]:
            return {name: config.args[name]}
    return {}
