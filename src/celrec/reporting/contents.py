"""All that a page tells of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from celrec.data.interactions import Interactions
from celrec.evaluation.prequential import Measured
from celrec.offline.solver import ValidationRecord
from celrec.reporting.cluster_view import ClusterView
from celrec.reporting.memory import MemoryBill
from celrec.reporting.run_comparison import RunComparison
from celrec.reporting.run_data import online_record, read_validation_records
from celrec.reporting.wording import compressed_sides
from celrec.runs.run_folder import Run


@dataclass(frozen=True, slots=True)
class Contents:
    """A run, measured and looked at from all sides."""

    run: Run
    standing: RunComparison
    online: dict[str, Measured] | None
    """How a stream was predicted before it was learned, if it was one."""
    validation_records: dict[str, list[ValidationRecord]]
    memory: MemoryBill
    views: list[ClusterView]

    @classmethod
    def of(cls, run: Run, folder: Path, standing: RunComparison) -> Contents:
        """Of a run in a folder."""
        measured = standing.evaluator
        learned = None if measured is None else measured.learned
        return cls(
            run=run,
            standing=standing,
            online=online_record(folder),
            validation_records=read_validation_records(folder),
            memory=MemoryBill.of(run.model, run.result),
            views=cluster_views(run, learned),
        )


def cluster_views(
    run: Run, learned: Interactions | None, most_clusters: int = 1000, most_members: int = 30_000
) -> list[ClusterView]:
    """Those of all kinds of ids that are in clusters, items first; they share the room."""
    compressed = compressed_sides(run)
    sides = [side for side in ("items", "users", *run.columns) if side in compressed]
    views = (
        ClusterView.of(
            run,
            side,
            learned,
            most_clusters=max(most_clusters // len(sides), 1),
            most_members=most_members // len(sides),
        )
        for side in sides
    )
    return [view for view in views if view is not None]
