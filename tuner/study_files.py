"""Puts a study together: the file, the files that it names, and ``--set path=value``."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from tuner.config import Json
from tuner.errors import Problem
from tuner.study_values import show
from tuner.yaml_file import At, Place, Tree, dotted, parse, read

_OVERRIDE = "--set"
_STEP = re.compile(r'"([^"]*)"|\[(\d+)\]|([^.\[\]"]+)')


#: The steps of the path, and the value.
_Override = tuple[list[str | int], Tree]


def gather(path: Path, overrides: Sequence[str] = ()) -> Tree:
    """Return one tree of all files, overrides applied; its problems tell what could not be read."""
    tree = read(path)
    if tree.problems and not tree.value:
        return tree
    whole, inner = _sorted(overrides, tree)
    for way, part in whole:
        _override(tree, way, part)
    include_workload(tree)
    include_spaces(tree)
    for way, part in inner:
        _override(tree, way, part)
    return tree


def _sorted(overrides: Sequence[str], tree: Tree) -> tuple[list[_Override], list[_Override]]:
    """Part overrides of whole sections, which may name a file, from those that reach into one."""
    whole: list[_Override] = []
    inner: list[_Override] = []
    for text in overrides:
        name, equals, value = text.partition("=")
        steps = [
            int(number) if number else quoted or plain
            for quoted, number, plain in _STEP.findall(name)
        ]
        if not equals or not steps:
            tree.problems.append(Problem(_OVERRIDE, text, "needs path=value, as budget.trials=20."))
            continue
        part = parse(value, Place(_OVERRIDE, Path.cwd()))
        for i, problem in enumerate(part.problems):
            part.problems[i] = Problem(_OVERRIDE, name, problem.message)
        (whole if len(steps) == 1 else inner).append((steps, part))
    return whole, inner


def _override(tree: Tree, steps: list[str | int], part: Tree) -> None:
    at = _way(tree.value, steps)
    places = {way: Place(_OVERRIDE, p.base, None, at + way) for way, p in part.places.items()}
    try:
        tree.graft(at, Tree(part.value, places, part.problems))
    except KeyError as error:
        tree.problems.append(Problem(_OVERRIDE, dotted(tuple(steps)), str(error.args[0])))


def _way(value: Json, steps: list[str | int]) -> At:
    """Return the way that the steps mean: keys may hold dots, and dashes or underscores."""
    if not steps:
        return ()
    if isinstance(value, list) and str(steps[0]).isdecimal():
        step = int(steps[0])
        return (step, *_way(value[step] if step < len(value) else None, steps[1:]))
    known = value if isinstance(value, dict) else {}
    alike = {key.replace("-", "_"): key for key in known}
    for count in range(len(steps), 0, -1):
        name = ".".join(map(str, steps[:count]))
        key = name if name in known else alike.get(name.replace("-", "_"))
        if key is not None:
            return (key, *_way(known[key], steps[count:]))
    return (steps[0], *_way(None, steps[1:]))


def include_workload(tree: Tree) -> None:
    """Put the named workload file in its place; its name is the file's unless it says one."""
    name = tree.get(("workload",))
    if not isinstance(name, str):
        return
    part = _included(tree, ("workload",), name)
    if part.value:
        part.value.setdefault("name", Path(name).stem)
    tree.graft(("workload",), part)


def include_spaces(tree: Tree) -> None:
    """Put the named search space, or the union of a list of them, in its place."""
    at: At = ("space",)
    named = tree.get(at)
    if isinstance(named, str):
        tree.graft(at, _included(tree, at, named))
    if not isinstance(named, list):
        return
    parts = []
    for i, item in enumerate(named):
        if isinstance(item, str):
            parts.append(_included(tree, (*at, i), item))
        elif isinstance(item, dict):
            parts.append(tree.part((*at, i)))
        else:
            tree.report((*at, i), f"needs a file or a mapping, found {show(item)}.")
    tree.graft(at, _union(parts, tree.place(at)))


def _included(tree: Tree, at: At, name: str) -> Tree:
    """Read a named file, shown from the working directory where it lies below it."""
    path = tree.place(at).base / name
    relative = os.path.relpath(path)
    shown = os.path.normpath(path) if relative.startswith("..") else relative
    part = read(Path(shown))
    if part.problems and not part.value:
        tree.unread.add(str(at[0]))
        # A file that is not there is the fault of who named it.
        part.problems = [
            problem if problem.field else tree.problem(at, f"{shown}: {problem.message}")
            for problem in part.problems
        ]
    return part


def _union(parts: Sequence[Tree], place: Place) -> Tree:
    """Join spaces: knobs and fixed arguments by name, rules one after the other."""
    union = Tree({}, {(): place})
    for part in parts:
        union.problems += part.problems
        for key, value in part.value.items():
            if isinstance(value, dict):
                _join(union, part, key)
            elif isinstance(value, list):
                for i in range(len(value)):
                    count = len(union.get((key,)) or [])
                    union.graft((key, count), part.part((key, i)))
            elif value is not None:
                union.graft((key,), part.part((key,)))
    return union


def _join(union: Tree, part: Tree, key: str) -> None:
    have = union.get((key,)) or {}
    for name, value in part.get((key,)).items():
        if name in have and have[name] != value:
            other = union.place((key, name))
            where = other.file if other.line is None else f"{other.file} line {other.line}"
            union.problems.append(
                part.problem((key, name), f"is given differently in {where}: keep one of them.")
            )
        else:
            union.graft((key, name), part.part((key, name)))
