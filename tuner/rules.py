"""Rules between arguments: comparisons such as ``max_num_batched_tokens >= max_num_seqs``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

import simpleeval

from tuner.config import Json, nested


def names_in(rule: str) -> set[str]:
    """Return the (dotted) argument names that a rule speaks of. Raises SyntaxError."""
    names: set[str] = set()
    covered: set[ast.AST] = set()
    for node in ast.walk(ast.parse(rule, mode="eval")):
        if isinstance(node, ast.Attribute | ast.Name) and node not in covered:
            names.add(ast.unparse(node))
            covered.update(ast.walk(node))
    return names - {"True", "False", "None"}


def broken(rules: Iterable[str], arguments: Mapping[str, Json]) -> list[str]:
    """Return the rules that these flat arguments break.

    A rule that speaks of an argument that is not set does not apply.
    """
    tree = nested(arguments)
    return [
        rule
        for rule in rules
        if names_in(rule) <= set(arguments) and not simpleeval.simple_eval(rule, names=tree)
    ]
