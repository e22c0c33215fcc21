"""From a run folder to a page on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from celrec.errors import CelrecError
from celrec.reporting.contents import Contents, cluster_views
from celrec.reporting.evaluator import Recommend
from celrec.reporting.page import page
from celrec.reporting.run_comparison import RunComparison, Watched, unwatched
from celrec.runs.run_folder import load_run
from celrec.runtime.atomic import atomic_file
from celrec.runtime.extras import require_extra

NAME = "report.html"
"""The file in the run folder, unless another is asked for."""
LARGEST = 5_000_000
"""Bytes of a page; clusters and members are left out until it is no larger."""


class Report(NamedTuple):
    """A page that was written."""

    path: Path
    size: int
    """Bytes."""
    standing: RunComparison

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "report": str(self.path),
            "bytes": self.size,
            "missing": self.standing.missing,
            "no_reference": self.standing.no_reference,
            "figures": {one.kind: one.figures.as_dict() for one in self.standing.compared_models},
        }


def write_report(
    folder: str | Path,
    recommend: Recommend,
    *,
    out: str | Path | None = None,
    reference: bool = True,
    watched: Watched = unwatched,
) -> Report:
    """Write the page of a run, whole or not at all; the same run gives the same bytes.

    `recommend` tells the best items of a model. A full embedding is trained for comparison unless
    one is kept in the folder, or `reference` is not wanted.
    """
    require_extra("report", "report", "jinja2")
    place = Path(folder)
    run = load_run(place)
    path = place / NAME if out is None else Path(out)
    if path.is_dir():
        raise CelrecError(f"out must be a file, not the folder {path}; name one in it")
    if not path.parent.is_dir():
        raise CelrecError(f"out: there is no folder {path.parent}; make it, or name another file")
    standing = RunComparison.of(run, place, recommend, reference=reference, watched=watched)
    contents = Contents.of(run, place, standing)
    words = page(contents).encode()
    learned = None if standing.evaluator is None else standing.evaluator.learned
    clusters, members = 1000, 30_000
    while len(words) > LARGEST and members:
        clusters, members = clusters // 2, members // 4
        views = cluster_views(run, learned, clusters, members)
        words = page(replace(contents, views=views)).encode()
    with atomic_file(path) as temporary:
        temporary.write_bytes(words)
    return Report(path, len(words), standing)
