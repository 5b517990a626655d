"""What could be better about an email, seen from its message alone: each check a finding with what was seen, why, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import attrs

from mailsvc.mail.mime import Parsed

Level = Literal["attention", "better", "great"]


@attrs.frozen
class Insight:
    level: Level
    title: str
    seen: str
    why: str
    todo: str = ""


@attrs.frozen
class Grouped:
    attention: tuple[Insight, ...]
    better: tuple[Insight, ...]
    great: tuple[Insight, ...]


def grouped(found: Sequence[Insight]) -> Grouped:
    by = {level: tuple(i for i in found if i.level == level) for level in ("attention", "better", "great")}
    return Grouped(**by)


def of_message(parsed: Parsed, size: int, bulk: bool) -> list[Insight]:
    return []
