"""Draw the pictures of the documentation: python examples/pictures.py [FOLDER].

Those that explain are of synthetic data with known clusters, the one with results of what is in
results/, so nothing has to be fetched.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import celrec
from celrec.config.offline import LeastSquaresConfig
from celrec.embeddings.full import FullEmbedding
from celrec.evaluation.cell_file import CellFile
from celrec.evaluation.cluster_diagnostics import adjusted_rand_index
from celrec.offline.least_squares import AlternatingLeastSquares
from celrec.recommender.model import Model
from reproduce.drawing import COLOURS, MARKERS, drawing
from reproduce.registry import find_experiment
from reproduce.trial_table import TrialTable

HOME = Path(__file__).parents[1]


def draw_split(folder: Path) -> None:
    """Gradients of the members of the first cluster, and where they are cut in two."""
    planted = celrec.Planted(
        *(12_000, 300, 400), dim=2, item_clusters=4, noise=2.0, user_skew=0, item_skew=0, seed=6
    )
    log = planted.interactions()
    group = planted.item_cluster[log.item_ids.ids.to_numpy()]
    items = celrec.ClusteredEmbedding(log.num_items, 2, max_clusters=4)
    items.start_from(torch.from_numpy(np.maximum(group - 1, 0)))  # the first two are together
    model = Model(FullEmbedding(log.num_users, 2), items)
    solver = AlternatingLeastSquares(model, log, LeastSquaresConfig())
    solver.start(0)
    for _ in range(20):
        solver.step()
    members = items.members(0)
    truth = group[members.numpy()]
    pulls = solver.evidence("items").gradients(members).numpy()
    centred = pulls - pulls.mean(0)
    first = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    before = items.weight.detach()[0].clone()
    new = items.split(0, members[torch.from_numpy(centred @ first > 0)])
    for _ in range(20):
        solver.step()
    labels = items.assignment[members].numpy()
    with drawing(folder, "split", 9, 4.6) as figure:
        left, right = figure.subplots(1, 2)
        for number in range(2):
            mine = truth == number
            style = {"color": COLOURS[1 + number], "s": 10, "marker": MARKERS[number]}
            left.scatter(*pulls[mine].T, **style, alpha=0.7, label=f"planted group {number + 1}")
        _draw_cut(left, pulls, first)
        left.set_title("Where the members of one cluster pull their row")
        left.set_xlabel("pull along dimension 1")
        left.set_ylabel("pull along dimension 2")
        left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
        right.plot(*before.tolist(), "o", color="0.4", label="the row before the split")
        for row in (0, new):
            after = items.weight.detach()[row]
            share = float((truth[labels == row] == 0).mean())
            most, share = (0, share) if share >= 0.5 else (1, 1 - share)
            style = {"color": COLOURS[1 + most], "marker": MARKERS[most], "markersize": 9}
            name = f"after it: {share:.0%} of its ids are of group {most + 1}"
            right.annotate("", after.tolist(), before.tolist(), arrowprops={"arrowstyle": "->"})
            right.plot(*after.tolist(), linestyle="none", **style, label=name)
        right.set_title("The rows twenty sweeps later")
        right.set_xlabel("dimension 1")
        right.set_ylabel("dimension 2")
        right.margins(0.35)
        right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16))


def _draw_cut(axes: Any, pulls: np.ndarray, first: np.ndarray) -> None:
    centre, reach = pulls.mean(0), 2.5 * pulls.std()
    ends = np.stack([centre - reach * first, centre + reach * first])
    axes.plot(*ends.T, color="0.2", label="first principal component")
    across = np.array([-first[1], first[0]])
    cut = np.stack([centre - reach * across, centre + reach * across])
    axes.plot(*cut.T, color="0.2", linestyle=":", label="the cut")
    axes.set_aspect("equal", adjustable="datalim")


def draw_growth(folder: Path) -> None:
    """Clusters and the error on validation data in the course of training."""
    planted = celrec.Planted(60_000, 500, 400, dim=4, item_clusters=12, noise=0.5)
    log = planted.interactions()
    split = celrec.Split.random(log, seed=0)
    plan = celrec.Plan(compression="auto", rank=8)
    fitted = celrec.fit(split, plan)
    found = fitted.validation_records["choose"]
    labels = fitted.model.item_rows.assignment[:-1].numpy()
    truth = planted.item_cluster[log.item_ids.ids.to_numpy()]
    agreement = adjusted_rand_index(truth, labels)
    with drawing(folder, "growth", 8, 3.8) as figure:
        axes = figure.add_subplot()
        steps = [one.step for one in found]
        axes.plot(steps, [one.valid_loss for one in found], color=COLOURS[1], label="error")
        axes.axhline(planted.noise**2, color="0.5", linestyle=":")
        axes.annotate(
            "the noise that was planted",
            (steps[-1], planted.noise**2),
            (0, -3),
            textcoords="offset points",
            ha="right",
            va="top",
            color="0.35",
        )
        axes.set_ylim(bottom=0)
        axes.set_xlabel("sweeps")
        axes.set_ylabel("MSE on validation data", color=COLOURS[1])
        other = axes.twinx()
        other.step(steps, [one.clusters for one in found], color=COLOURS[2], where="post")
        other.set_ylabel("clusters of items", color=COLOURS[2])
        other.grid(visible=False)
        other.set_ylim(bottom=0)
        chosen = fitted.chosen["choose"].step
        axes.axvline(chosen, color="0.3", linewidth=1)
        axes.set_title(
            f"12 planted clusters of 400 items: {labels.max() + 1} were found "
            f"(adjusted Rand index {agreement:.3f})"
        )
        place = (chosen, axes.get_ylim()[1])
        axes.annotate("chosen", place, (4, -4), textcoords="offset points", va="top", color="0.3")


def draw_methods(folder: Path) -> None:
    """Test errors on MovieLens-100k against rows, as the results have them."""
    table = find_experiment("table7")
    assert isinstance(table, TrialTable)  # noqa: S101  (it is)
    known = CellFile(HOME / "results" / "table7.jsonl")
    shown = ("CEL", "CEL-Lite", "PreHash K=4", "HashGNN", "eTree", "AE", "Modulo")
    lines: dict[str, dict[float, float]] = {name: {} for name in (*shown, "Vanilla")}
    for entry in table.present(known, quick=False):
        found = table.found(entry, known, quick=False).values()
        if entry.row in lines and found:
            size = 100.0 if entry.column.endswith(" 100 %") else _share(entry.column)
            lines[entry.row][size] = float(np.mean([one["test"]["mse"] for one in found]))
    full = lines.pop("Vanilla")[100.0]
    with drawing(folder, "methods", 8, 4.2) as figure:
        axes = figure.add_subplot()
        for number, (name, points) in enumerate(lines.items()):
            sizes = sorted(size for size in points if size < 100)
            strong = name.startswith("CEL")
            axes.plot(
                sizes,
                [points[size] for size in sizes],
                marker=MARKERS[number],
                color=COLOURS[(number + 1) % len(COLOURS)],
                linewidth=2.4 if strong else 1.4,
                label=name,
            )
        axes.axhline(full, color="0.5", linestyle=":", label="a row for each item")
        axes.set_xscale("log")
        axes.set_xticks([0.5, 1, 5], ["0.5 %\n8 rows", "1 %\n17 rows", "5 %\n84 rows"])
        axes.minorticks_off()
        axes.set_ylabel("test MSE, mean of five folds")
        axes.set_title("MovieLens-100k, matrix factorisation, item rows compressed")
        figure.legend(loc="outside right center")


def _share(column: str) -> float:
    """The number in `ml-100k 0.5 %`."""
    return float(column.split()[1])


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HOME / "docs" / "pictures"
    for draw in (draw_split, draw_growth, draw_methods):
        draw(folder)
        print(f"{draw.__name__.removeprefix('draw_')}: {folder}")


if __name__ == "__main__":
    main()
