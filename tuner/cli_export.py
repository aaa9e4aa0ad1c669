"""``tuner export``: write presets for a tool, or say whether they still hold here."""

from __future__ import annotations

from pathlib import Path

from tuner.cli import NO_FRONT, out, print_json
from tuner.finish import Export, check_presets, export_presets


def export_command(folder: Path, wanted: Export, as_json: bool) -> int:
    """Write presets; return the exit code."""
    paths = export_presets(folder, wanted)
    if as_json:
        print_json({"written": [str(path) for path in paths]})
    else:
        for path in paths:
            out.print(str(path), soft_wrap=True)
    return 0


def check_command(place: Path, name: str | None, as_json: bool) -> int:
    """Hold presets against this machine; return 1 where one no longer holds."""
    checked = check_presets(place, name)
    if as_json:
        print_json({"presets": [one.to_json() for one in checked]})
    else:
        for one in checked:
            verdict = "no longer holds here" if one.broken else "holds here"
            out.print(f"{one.preset}: {verdict}", style="red" if one.broken else "green")
            for line in one.broken:
                out.print(f"  {line}", markup=False, soft_wrap=True)
            for line in one.unknown:
                out.print(f"  not looked at: {line}", markup=False, soft_wrap=True)
    return NO_FRONT if any(one.broken for one in checked) else 0
