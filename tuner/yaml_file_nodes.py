"""From the nodes of a YAML 1.2 file to values; every fault is noted, not only the first.

``1e-3`` is a number, ``on`` and ``off`` are text, and what reads as something else is refused.
"""

from __future__ import annotations

import math
import re

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from tuner.config import Json
from tuner.yaml_file_tree import At, Place, Plain, Tree

_TAG = "tag:yaml.org,2002:"
_TOO_MANY = 20_000


class Maker:
    """Turns the nodes of one file into values and notes every fault on the way."""

    def __init__(self, top: Place, tree: Tree) -> None:
        self.tree = tree
        self._top = top
        self._open: list[Node] = []
        self._made = 0

    def make(self, node: Node, at: At) -> Json:
        """Return the value of a node and note its place."""
        self._mark(at, node)
        self._made += 1
        if any(node is other for other in self._open):
            return self._refuse(at, "contains itself through an alias.")
        if self._made > _TOO_MANY:
            return self._refuse(at, f"more than {_TOO_MANY} values: too many aliases.")
        self._open.append(node)
        try:
            if isinstance(node, MappingNode):
                return self._mapping(node, at)
            if isinstance(node, SequenceNode):
                return [self.make(inner, (*at, i)) for i, inner in enumerate(node.value)]
            return self._scalar(node, at) if isinstance(node, ScalarNode) else None
        finally:
            self._open.pop()

    def _mark(self, at: At, node: Node) -> None:
        place = Place(self._top.file, self._top.base, node.start_mark.line + 1, at)
        self.tree.places[at] = place

    def _mapping(self, node: MappingNode, at: At) -> dict[str, Json]:
        out: dict[str, Json] = {}
        merged: dict[str, Json] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == _TAG + "merge":
                merged |= self._merge(value, at)
            elif key.tag != _TAG + "str":
                found = key.value if isinstance(key, ScalarNode) else "a collection"
                self._mark((*at, str(found)), key)
                self._refuse((*at, str(found)), "a key must be text: quote it.")
            elif key.value in out:
                self._refuse((*at, key.value), f"the key appears again in line {line}.")
            else:
                out[key.value] = self.make(value, (*at, key.value))
                self._mark((*at, key.value), key)
        return merged | out

    def _merge(self, node: Node, at: At) -> dict[str, Json]:
        parts = node.value if isinstance(node, SequenceNode) else [node]
        out: dict[str, Json] = {}
        for part in reversed(parts):
            made = self.make(part, at)
            out |= made if isinstance(made, dict) else {}
        return out

    def _scalar(self, node: ScalarNode, at: At) -> Json:
        text = str(node.value)
        kind = str(node.tag).removeprefix(_TAG)
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() in ("true", "yes", "on", "y")
        if kind in ("int", "float"):
            return self._integer(text, at) if kind == "int" else self._number(text, at)
        if kind in ("str", "value"):
            return text if node.style else Plain(text)
        if kind == "timestamp":
            return self._refuse(at, f"{text} reads as a date: quote it.")
        return self._refuse(at, f"the tag {node.tag} is not understood: leave it out.")

    def _integer(self, text: str, at: At) -> Json:
        bare = text.replace("_", "")
        if re.fullmatch(r"[+-]?0\d+", bare):
            return self._refuse(at, f"{text} begins with 0: some readers take it as octal.")
        if len(bare) > 100:
            return self._refuse(at, f"a number of {len(bare)} digits.")
        return int(bare, 0)

    def _number(self, text: str, at: At) -> Json:
        bare = text.replace("_", "").lower()
        value = float(bare.replace(".inf", "inf").replace(".nan", "nan"))
        return (
            value if math.isfinite(value) else self._refuse(at, f"{text} is not a finite number.")
        )

    def _refuse(self, at: At, message: str) -> None:
        self.tree.report(at, message)
