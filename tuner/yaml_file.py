"""YAML files: read with the place of every value, all faults collected; and written."""

from __future__ import annotations

import difflib
import io
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import SingleQuotedScalarString

from tuner.config import Json
from tuner.errors import Problem
from tuner.yaml_file_nodes import Maker
from tuner.yaml_file_tree import At, Place, Plain, Tree, dotted, nearest


def read(path: Path) -> Tree:
    """Read a file whose top level is a mapping. On any fault the value is {} and problems tell."""
    name = os.path.normpath(path)
    top = Place(name, path.parent)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        return _broken(top, _unreadable(path, error))
    tree = parse(text, top)
    return tree if isinstance(tree.value, dict) else _not_a_mapping(top, tree)


def parse(text: str, top: Place) -> Tree:
    """Read YAML text that stands at ``top``."""
    try:
        node = YAML(typ="safe", pure=True).compose(text)
    except YAMLError as error:
        return _broken(top, *_explained(error, text))
    maker = Maker(top, Tree(None, {(): top}))
    maker.tree.value = None if node is None else maker.make(node, ())
    maker.tree.places[()] = top
    return maker.tree


def _broken(top: Place, message: str, where: str = "") -> Tree:
    return Tree({}, {(): top}, [Problem(top.file, where, message)])


def _unreadable(path: Path, error: OSError | UnicodeDecodeError) -> str:
    match error:
        case FileNotFoundError():
            return f"there is no such file.{_similar(path)}"
        case IsADirectoryError():
            return "is a directory: name the YAML file in it."
        case UnicodeDecodeError():
            return f"is not UTF-8 text (byte {error.start}): save it as UTF-8."
    return f"cannot be read: {error.strerror}."


def _not_a_mapping(top: Place, tree: Tree) -> Tree:
    if tree.problems:
        return Tree({}, {(): top}, tree.problems)
    if tree.value is None:
        return _broken(top, "is empty: it needs a mapping (key: value).")
    kind = "a list" if isinstance(tree.value, list) else f"the value {tree.value!r}"
    return _broken(top, f"needs a mapping (key: value) at the top level, found {kind}.")


def _similar(path: Path) -> str:
    try:
        found = difflib.get_close_matches(path.name, os.listdir(path.parent), 1, 0.5)
    except OSError:
        return f" There is no directory {path.parent} either."
    return f" Did you mean {os.path.normpath(path.parent / found[0])}?" if found else ""


#: Part of the parser's message -> ours.
_SYNTAX = {
    "'\\t'": "a tab: YAML indents and separates with spaces.",
    "another document": "a second document ('---'): one file holds one.",
    "mapping values are not allowed": "a ':' inside a value: quote it, or begin a new line.",
}


def _explained(error: YAMLError, text: str) -> tuple[str, str]:
    """Return message and place of a syntax error."""
    what = str(getattr(error, "problem", None) or str(error).partition("\n")[0])
    opened = getattr(error, "context_mark", None)
    mark = getattr(error, "problem_mark", None)
    if opened is not None and ("stream end" in what or "end of stream" in what):
        return "a bracket or quote that opens here never ends.", f"line {opened.line + 1}"
    if opened is not None and "expected ':'" in what:
        return "a key without ':' after it.", f"line {opened.line + 1}"
    position = getattr(error, "position", None)
    line = text.count("\n", 0, position) if mark is None and position is not None else None
    line = mark.line if mark is not None else line
    where = "" if line is None else f"line {line + 1}"
    for part, message in _SYNTAX.items():
        if part in what:
            return message, where
    if "special characters" in what:
        return f"a character that YAML does not allow: {what}.", where
    ending = ": quote the value." if "cannot start any token" in what else "."
    return f"is not valid YAML: {what}{ending}", where


#: Text that needs no quotes, inside brackets and braces too.
_BARE = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./-]*( [A-Za-z0-9_./<>=*+-]+)*")


def dump(content: Mapping[str, Json], quote: Callable[[str], bool]) -> str:
    """Return YAML text. ``quote`` says which text would be read as something else."""
    writer = YAML()
    writer.width = 100
    writer.allow_unicode = True
    stream = io.StringIO()
    writer.dump(_quoted(content, quote, top=True), stream)
    return stream.getvalue()


def _quoted(value: Json, quote: Callable[[str], bool], top: bool = False) -> Json:
    """Quote where needed; write collections of scalars in one line."""
    if isinstance(value, Mapping):
        pairs = ((_quoted(key, quote), _quoted(inner, quote)) for key, inner in value.items())
        mapping = CommentedMap(pairs)
        if not top and not any(map(_nests, value.values())):
            mapping.fa.set_flow_style()
        return mapping
    if isinstance(value, list | tuple):
        sequence = CommentedSeq(_quoted(inner, quote) for inner in value)
        if not any(map(_nests, value)):
            sequence.fa.set_flow_style()
        return sequence
    if not isinstance(value, str):
        return value
    bare = _BARE.fullmatch(value) and not quote(value)
    return str(value) if bare else SingleQuotedScalarString(value)


def _nests(value: Json) -> bool:
    return isinstance(value, Mapping | list | tuple)


__all__ = ["At", "Place", "Plain", "Tree", "dotted", "dump", "nearest", "parse", "read"]
