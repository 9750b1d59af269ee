"""What the doctor found: a verdict, and for all that is not good the next step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["good", "note", "bad"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        advice: what to do next, in words; "" only where nothing needs doing.
        command: the step as it can be pasted, "" where it is none of the command line's.

    Raises:
        ValueError: something is not good, and nobody says what to do.
    """

    what: str
    verdict: Verdict
    text: str
    advice: str = ""
    command: str = ""

    def __post_init__(self) -> None:
        if self.verdict != "good" and not self.advice:
            raise ValueError(f"{self.what} is {self.verdict}, and no next step is named")
