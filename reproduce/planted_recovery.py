"""Whether clusters that were planted are found again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celrec.config.plan import Plan
from celrec.data.planted import Planted
from celrec.data.split import Split
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.evaluation.cell_file import CellFile
from celrec.evaluation.cluster_diagnostics import ClusterDiagnostics, adjusted_rand_index
from celrec.evaluation.metrics import mean_squared_error
from celrec.offline.fitting import fit
from reproduce.ablations import PRESETS
from reproduce.experiment import Cell, Experiment
from reproduce.fold_mean import FoldMean
from reproduce.report import Report, ResultTable

_PLANTED, _MORE = 12, 20
_DIM = 8
_SEEDS = 5
_NEAR = 0.05  # how far rows may be apart that count as equal, relative to their length


class PlantedRecovery(Experiment):
    """CEL on ratings X = A·B_qᵀ·S_qᵀ, with as many clusters as there are, and with more.

    Where rows are scattered enough, S_q is unique but for the order of the clusters (Theorem 1);
    where there are more clusters than that, some of their rows are equal (Proposition 1).
    """

    name = "claims-planted"
    title = "Claims: planted clusters are found again; further ones have equal rows"

    def cells(self, known: CellFile, *, quick: bool) -> Sequence[Cell]:
        """Each seed has data of its own."""
        del known
        return [
            {"solver": solver, "clusters": clusters, "seed": seed}
            for seed in range(1 if quick else _SEEDS)
            for solver in PRESETS
            for clusters in (_PLANTED, _MORE)
        ]

    def run(self, cell: Cell) -> dict[str, Any]:
        """`agreement` with what was planted, `equal` rows too many, and the share of the variance
        of test ratings that is left `unexplained`.
        """
        planted = Planted(
            rows=60_000,
            users=300,
            items=400,
            dim=_DIM,
            item_clusters=_PLANTED,
            noise=0.0,
            user_skew=0.2,
            item_skew=0.2,
            seed=cell["seed"],
        )
        log = planted.interactions()
        split = Split.random(log, seed=cell["seed"])
        plan = Plan(
            compression=str(cell["clusters"]),
            rank=_DIM,
            preset=PRESETS[cell["solver"]],
            seed=cell["seed"],
        )
        model = fit(split, plan).model
        table = model.tables["items"]
        assert isinstance(table, ClusteredEmbedding)  # noqa: S101  (the plan says so)
        found, rows = table.assignment[:-1], table.weight.detach()[: table.num_rows]
        truth = planted.item_cluster[log.item_ids.ids.to_numpy()]
        error = mean_squared_error(model.predict(split.test).numpy(), split.test.target)
        inside = ClusterDiagnostics.of(rows, found, log[:0], tolerance=_NEAR)
        return {
            "agreement": adjusted_rand_index(truth, found.numpy()),
            "equal": inside.duplicate_rows,
            "unexplained": error / float(split.test.target.var()),
        }

    def report(self, known: CellFile, folder: Path, *, quick: bool) -> Report:
        """Means over seeds."""
        del folder
        cells = self.cells(known, quick=quick)
        rows = []
        for solver in PRESETS:
            for clusters in (_PLANTED, _MORE):
                mine = {"solver": solver, "clusters": clusters}
                found = [known.get(cell) for cell in cells if mine.items() <= dict(cell).items()]
                told = [
                    FoldMean.of(one[name] for one in found if one is not None).told(
                        digits, of=_SEEDS, unit="seed"
                    )
                    for name, digits in (("agreement", 3), ("equal", 1), ("unexplained", 5))
                ]
                rows.append([solver, str(clusters), *told])
        headers = ("", "clusters", "ARI", "equal rows", "unexplained")
        caption = f"{_PLANTED} planted clusters of 400 items, mean ± standard error over seeds:"
        notes = (
            "ARI: the adjusted Rand index of clusters found and planted, 1 if they are the same. "
            "Equal rows: rows less groups of rows that lie within 5 % of their length. "
            "Unexplained: the share of the variance of test ratings that is left.",
            "60,000 ratings without noise by 300 users with rows of 8 numbers. Gradient descent is "
            "the paper's loop to the letter, least squares the default.",
        )
        missing = sum(cell not in known for cell in cells)
        return Report(
            self.title, [ResultTable(headers, rows, caption)], notes=notes, missing=missing
        )
