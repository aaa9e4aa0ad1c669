"""The report in Markdown: for a pull request, and for the note of a study in the dashboard."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.exports.vllm_config import vllm_config
from tuner.presets import Preset
from tuner.report_content import Row, Score
from tuner.report_verdict import Verdict


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return the verdict: headline, what it rests on, the launch line, how sure it is."""
    parts = [f"## {verdict.headline}", verdict.lead]
    parts += [f"`{verdict.launch}`"] if verdict.launch else []
    parts += [against_table(verdict)] if verdict.against else []
    parts += ["\n".join(f"- {line}" for line in verdict.sure)]
    return [part for part in parts if part]


def against_table(verdict: Verdict) -> str:
    """Return what repeats say against each baseline, as a table."""
    names = [cell.name for cell in verdict.against[0].cells]
    rows = [
        [f"against {row.baseline}", *(_cell(c.change, c.interval, c.verdict) for c in row.cells)]
        for row in verdict.against
    ]
    return table(["95 % intervals", *names], rows)


def _cell(change: str, interval: str, verdict: str) -> str:
    return f"{change} ({interval}): **{verdict}**" if change else verdict


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; a bar in a cell is escaped."""
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", "<br>") for cell in line) + " |"
        for line in lines
    )


def front_text(
    rows: Sequence[Row], objectives: Sequence[tuple[str, str]], caption: str
) -> list[str]:
    """Return the front's table, with the settings of each row, and its caption."""
    head = ["trial", "name", *(f"{arrow} {name}" for name, arrow in objectives), "settings"]
    body = [
        [
            str(row.number),
            row.names or "",
            *(_score(score) for score in row.scores),
            ", ".join(f"`{name}={value}`" for name, value in row.settings) or "vLLM's defaults",
        ]
        for row in rows
    ]
    return [table(head, body), caption] if body else []


def _score(score: Score) -> str:
    parts = [score.text, score.spread, score.change]
    return "<br>".join(part for part in parts if part)


def conditions(origin: Sequence[tuple[str, str]]) -> str:
    """Return where the numbers come from, folded away."""
    rows = table(["", ""], [[name, f"`{value}`"] for name, value in origin])
    head = "<details><summary>Where these numbers come from</summary>"
    return f"{head}\n\n{rows}\n\n</details>"


def settings_block(preset: Preset | None) -> list[str]:
    """Return the recommended configuration as ``vllm serve --config`` reads it."""
    if preset is None:
        return []
    [(_, text)] = vllm_config(preset)
    return [f"### {preset.name}: trial {preset.trial}", f"```yaml\n{text}```"]
