"""What the doctor finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. What is not ok says what to do about it in ``remedy``."""

    level: Level
    title: str
    detail: str = ""
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.level != "ok" and not self.remedy:
            raise ValueError(f"no remedy for: {self.title}")
