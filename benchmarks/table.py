"""What was measured, as text: each contender's figures, and its ratio to the baselines."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    """Figures of several contenders, one for each round; in a round all had the same machine."""

    title: str
    figures: Mapping[str, Sequence[float]]
    """By contender; the baselines are among them."""
    baselines: Sequence[str]
    more_is_better: bool = False
    goals: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By contender and baseline: the ratio that is aimed at."""

    def ratio(self, contender: str, baseline: str) -> float:
        """How many times better than the baseline; the median of the rounds, since load comes and goes."""
        pairs = zip(self.figures[contender], self.figures[baseline], strict=True)
        return statistics.median(own / its if self.more_is_better else its / own for own, its in pairs)

    def __str__(self) -> str:
        rows = [["", "min", "median", "max", *(f"x {name}" for name in self.baselines)]]
        rows += [
            [name, *map(_short, (min(row), statistics.median(row), max(row))), *self._ratios(name)]
            for name, row in self.figures.items()
        ]
        return "\n".join([self.title, *_aligned(rows)])

    def _ratios(self, contender: str) -> Iterator[str]:
        for baseline in self.baselines:
            goal = self.goals.get((contender, baseline))
            aim = "" if goal is None else f" (goal {goal:g})"
            yield f"{self.ratio(contender, baseline):.2f}{aim}"


def _short(figure: float) -> str:
    return f"{figure:.3g}" if figure < 100 else f"{figure:.0f}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Numbers begin where the heads of their columns do."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
