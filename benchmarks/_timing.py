"""How long alternatives take, measured side by side."""

import statistics
import time
from collections.abc import Callable, Sequence


def seconds_each(steps: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Medians, the alternatives in turns, after one of each that does not count."""
    times: list[list[float]] = [[] for _ in steps]
    for step in steps:
        step()
    for _ in range(repeats):
        for step, mine in zip(steps, times, strict=True):
            start = time.perf_counter()
            step()
            mine.append(time.perf_counter() - start)
    return [statistics.median(mine) for mine in times]
