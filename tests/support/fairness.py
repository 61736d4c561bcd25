"""How equally something is shared."""

from __future__ import annotations

from collections.abc import Sequence


def jain(numbers: Sequence[float]) -> float:
    """Return Jain's index of fairness: 1 if all numbers are equal, 1/n if all but one are zero."""
    return sum(numbers) ** 2 / (len(numbers) * sum(number**2 for number in numbers))
