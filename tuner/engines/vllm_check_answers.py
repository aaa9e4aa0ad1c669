"""The process behind ``Checker``: reads questions, asks vLLM's own classes and parser, answers."""

from __future__ import annotations

import contextlib
import enum
import io
import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml

from tuner.config import EngineConfig, Json
from tuner.engines import vllm_args, vllm_attention, vllm_device, vllm_memory
from tuner.engines.vllm_errors import refusal, unframed
from tuner.engines.vllm_process import environment_kept
from tuner.errors import ConfigRejected
from tuner.memory_weights import NotModelled

# vLLM on a machine without any device that it knows: nothing can be said there.
_NO_DEVICE = "Failed to infer device type"
# What vLLM refuses a configuration with; anything else is an accident of asking.
_REASONS = (ValueError, NotImplementedError, AssertionError)


def serve() -> None:
    """Answer ``[question, {given}]`` lines on standard input until it ends.

    The answers leave on what standard output was at the start; everything that vLLM prints goes
    to standard error.
    """
    questions = os.fdopen(os.dup(0))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    for line in questions:
        question, given = json.loads(line)
        try:
            answer = {"value": _ANSWERS[question](**given)}
        except Exception:
            answer = {"fault": traceback.format_exc()}
        print(json.dumps(answer), file=answers)


def _version() -> str:
    import vllm

    return str(vllm.__version__)


def _check(config: dict[str, Json], also: list[str]) -> dict[str, Json]:
    wanted, absent = EngineConfig(**config), vllm_device.problem()
    if absent:
        return {"ok": True, "reason": "unchecked", "detail": absent}
    device = vllm_device.wanted()
    if device is not None and wanted.gpus > device.gpus:
        detail = f"needs {wanted.gpus} GPUs, the host has {device.gpus}"
        return {"ok": False, "reason": "too_few_gpus", "detail": detail}
    if device is not None:
        from tuner.engines.vllm_stand_in import stand_in_for_triton

        stand_in_for_triton()
    with environment_kept():
        os.environ.update(wanted.env)
        try:
            args, vllm_config = vllm_args.built(wanted)
        except Exception as error:
            return _refused(error)
        try:
            backend = vllm_attention.settle(vllm_config)
        except _REASONS as error:
            return _refused(error)
        except Exception as error:  # cannot say, which is no reason against it
            backend = f"unknown: {type(error).__name__}: {error}"
        memory = _memory(vllm_config)  # whose model runner may be the environment's choice
    got = vllm_args.effective({**dict.fromkeys(also), **wanted.args}, args, vllm_config)
    answer = {"ok": True, "effective": got, "changed": vllm_args.changed(wanted.args, got)}
    return answer | {"attention": backend} | memory


def _memory(vllm_config: Any) -> dict[str, Json]:
    try:
        return {"demand": vllm_memory.demand(vllm_config)}
    except NotModelled as error:
        return {"not_modelled": str(error)}
    except Exception as error:  # a version that keeps its sizes elsewhere
        return {"not_modelled": f"{type(error).__name__}: {error}"}


def _temperatures(values: dict[str, list[Json]], config: dict[str, Json]) -> dict[str, Json]:
    from tuner.engines.live import temperature

    base = EngineConfig(**config)
    with environment_kept():
        os.environ.update(base.env)
        return dict(temperature.of(values, base))


def _refused(error: Exception) -> dict[str, Json]:
    known = refusal(error)
    refused = isinstance(known, ConfigRejected) and _NO_DEVICE not in known.detail
    reason = known.reason if refused else "unchecked"
    return {"ok": not refused, "reason": reason, "detail": known.detail}


def _arguments() -> list[dict[str, Json]]:
    from vllm import AsyncEngineArgs

    flags = _flags()
    found = []
    for item in _public(AsyncEngineArgs):
        flag, negatable = flags.get(item.name, ("", False))
        found.append(_described(item.name, item) | {"flag": flag, "negatable": negatable})
        nested = vllm_args.nested_class(item.name, item.type)
        inner = [] if nested is None else _public(nested)
        found += [_described(f"{item.name}.{each.name}", each) for each in inner]
    return found


def _public(kind: type) -> list[Any]:
    return [item for item in fields(kind) if not item.name.startswith("_")]


def _flags() -> dict[str, tuple[str, bool]]:
    """Return argument -> (its long option, whether there is a ``--no-`` form)."""
    from vllm import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    found = {}
    for action in parser._actions:
        longs = [name for name in action.option_strings if name.startswith("--")]
        if longs:
            negatable = any(name.startswith("--no-") for name in longs)
            found[action.dest] = (longs[0], negatable)
    return found


def _described(name: str, item: Any) -> dict[str, Json]:
    kinds = list(_members(item.type))
    return {
        "name": name,
        "type": _type_text(item.type),
        "kind": _kind(kinds),
        "choices": _choices(kinds),
        "default": _default(item),
        "optional": NoneType in kinds,
    }


def _members(hint: Any) -> Iterator[Any]:
    """Yield the alternatives of a type hint, without Annotated and Union around them."""
    if get_origin(hint) is Annotated:
        yield from _members(get_args(hint)[0])
    elif get_origin(hint) is None or get_origin(hint) in (Literal, list, tuple, set, dict, type):
        yield hint
    else:
        for inner in get_args(hint):
            yield from _members(inner)


_KINDS: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("mapping", lambda kind: is_dataclass(kind) or dict in (kind, get_origin(kind))),
    ("list", lambda kind: bool({kind, get_origin(kind)} & {list, tuple, set})),
    ("bool", lambda kind: kind is bool),
    ("int", lambda kind: kind is int or _is_enum(kind, int) or _literal_of(kind, int)),
    ("float", lambda kind: kind is float),
    ("text", lambda kind: kind is str or _is_enum(kind, enum.Enum) or _literal_of(kind, str)),
)


def _kind(kinds: list[Any]) -> str:
    fitting = (
        name for name, fits in _KINDS if any(fits(kind) for kind in kinds if _hashable(kind))
    )
    return next(fitting, "other")


def _hashable(kind: Any) -> bool:
    try:
        hash(kind)
    except TypeError:
        return False
    return True


def _is_enum(kind: Any, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, enum.Enum) and issubclass(kind, base)


def _literal_of(kind: Any, base: type) -> bool:
    return get_origin(kind) is Literal and isinstance(get_args(kind)[0], base)


def _choices(kinds: list[Any]) -> list[Json] | None:
    named = [kind for kind in kinds if kind is not NoneType]
    if len(named) != 1:
        return [False, True] if named == [bool] else None
    kind = named[0]
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if _is_enum(kind, enum.Enum):
        return [vllm_args.jsonable(member) for member in kind]
    return [False, True] if kind is bool else None


def _default(item: Any) -> Json:
    default, factory = item.default, item.default_factory
    if hasattr(default, "default_factory"):  # pydantic's own description of a field
        default, factory = default.default, default.default_factory or MISSING
    try:
        value = factory() if factory is not MISSING else default
    except Exception:  # a default that needs the machine it runs on
        return None
    value = vllm_args.jsonable(value)
    return (
        None if isinstance(value, str) and value.startswith(("PydanticUndefined", "<")) else value
    )


def _type_text(hint: Any) -> str:
    text = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
    return text.replace("typing.", "").replace("NoneType", "None")


def _parse(path: str) -> dict[str, Json]:
    """Parse a file as ``vllm serve --config path`` does, down to the order of its parsers."""
    from vllm import AsyncEngineArgs

    parser, serve_parser = _serve_parsers()
    problems = _inexact(path, serve_parser)
    if problems:
        return {"problems": problems}
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            parsed = parser.parse_args(["serve", "--config", path])
            if getattr(parsed, "model_tag", None) is not None:
                parsed.model = parsed.model_tag
            args = AsyncEngineArgs.from_cli_args(parsed)
    except (Exception, SystemExit) as error:
        _, usage, words = said.getvalue().rpartition(": error: ")
        message = unframed(words) if usage else refusal(error).detail
        return {"problems": [_problem(path, "", message)]}
    return {
        "args": {item.name: vllm_args.jsonable(getattr(args, item.name)) for item in _public(args)}
    }


def _serve_parsers() -> tuple[Any, Any]:
    """Return the parser of ``vllm`` and, below it, that of ``vllm serve``."""
    from vllm.entrypoints.cli.serve import cmd_init
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm")
    subparsers = parser.add_subparsers(required=False, dest="subparser")
    commands = [(command, command.subparser_init(subparsers)) for command in cmd_init()]
    return parser, next(sub for command, sub in commands if command.name == "serve")


def _inexact(path: str, serve_parser: Any) -> list[dict[str, str]]:
    """Return a problem per name of a file that vLLM would take for another one, or not at all."""
    known = serve_parser._option_string_actions
    try:
        with open(path) as file:
            content = yaml.safe_load(file)
    except (OSError, yaml.YAMLError) as error:
        return [_problem(path, "", str(error))]
    if not isinstance(content, Mapping):
        return [_problem(path, "", "not a mapping of names to values")]
    problems = []
    for name in map(str, content):
        head = name.partition(".")[0].replace("_", "-")
        if f"--{head}" not in known:
            names = [option.removeprefix("--") for option in known if option.startswith("--")]
            hint = vllm_args.nearest(head, names)
            message = "vllm serve has no such option" + (f"; {hint}" if hint else "")
            problems.append(_problem(path, name, message))
    return problems


def _problem(file: str, name: str, message: str) -> dict[str, str]:
    return {"file": file, "field": name, "message": message}


_ANSWERS: dict[str, Callable[..., Json]] = {
    "version": _version,
    "arguments": _arguments,
    "check": _check,
    "temperatures": _temperatures,
    "parse": _parse,
}
