"""Figure 5: what clusters of films have in common."""

from __future__ import annotations

import re
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from celrec.data.split import Split
from celrec.evaluation.cluster_diagnostics import ClusterDiagnostics
from celrec.offline.fitting import Fit
from reproduce.drawing import COLOURS, drawing
from reproduce.film_clusters import clusters_of, describe_clusters
from reproduce.fold_mean import FoldMean
from reproduce.report import ResultTable
from reproduce.trial import Trial, trial_plan
from reproduce.trial_figure import Found, TrialFigure
from reproduce.trial_table import Entry

_ROWS = "10"
_METHODS = {
    "CEL": "cel",
    "Modulo": "modulo",
    "AE": "ae",
    "HashGNN": "hashgnn",
    "PreHash K=M": "prehash",
    "eTree": "etree",
    "JNKM": "jnkm",
}
_DEALS = 20  # how often films are dealt by chance
_WIDTH = 78  # characters of a line beside a cluster
_LONGEST = 40  # characters of a name there
_ARTICLE = re.compile(r"^(.*), (The|A|An|Les|La|Le|Das|Der|Die|Il|El)$")


class Figure5(TrialFigure):
    """CEL's clusters on the first fold, and how well those of others tell films apart."""

    more = ("clusters", "diagnostics", "entropy_by_chance")

    def look(self, fitted: Fit, split: Split) -> dict[str, Any]:
        """The clusters, by the ratings that they were learned from."""
        log = split.train_and_valid()
        rows, clusters = clusters_of(fitted.model.whole_tables["items"])
        genres = None if log.item_features is None else log.item_features["genres"]
        found = ClusterDiagnostics.of(rows, clusters, log, genres)
        dealt = np.random.default_rng(0)
        by_chance = [
            ClusterDiagnostics.of(rows, dealt.permutation(clusters), log[:0], genres).genre_entropy
            for _ in range(_DEALS)
        ]
        return {
            "clusters": describe_clusters(clusters, log),
            "diagnostics": asdict(found),
            "entropy_by_chance": float(np.array(by_chance, np.float64).mean()),
        }

    def draw(self, found: Found, folder: Path) -> list[str]:
        """A mark and some words for each cluster of CEL."""
        clusters = _of_cel(found)
        if not clusters:
            return []
        means = [one["mean"] for one in clusters]
        places = range(len(clusters))
        with drawing(folder, self.name, 9, 1.2 + 0.66 * len(clusters)) as figure:
            marks, words = figure.subplots(1, 2, sharey=True, width_ratios=(1, 2))
            overall = np.average(means, weights=[one["ratings"] for one in clusters])
            marks.axvline(float(overall), color=COLOURS[0], linewidth=1, linestyle=":")
            marks.errorbar(
                means,
                places,
                xerr=[one["spread"] for one in clusters],
                color=COLOURS[1],
                linestyle="none",
                marker="o",
                markersize=8,
                linewidth=3,
            )
            marks.set_yticks(places, [f"{one['items']:,} films" for one in clusters])
            marks.set_xlim(0.8, 5.2)
            marks.grid(visible=False, axis="y")
            marks.set_xlabel("rating: mean and standard deviation,\ndotted: mean of all ratings")
            words.set_axis_off()
            words.set_title("genres that stand out, and the films with most ratings", loc="left")
            for place, one in zip(places, clusters, strict=True):
                genres = [f"{name} {100 * share:.0f} %" for name, share, _ in one["genres"]]
                told = f"{one['mean']:.2f}   {', '.join(genres)}"
                words.text(0, place + 0.1, told, va="bottom", weight="bold", size=9)
                words.text(0, place + 0.06, _wrapped(one["titles"]), va="top", size=9)
        return [f"{self.name}.png"]

    def more_tables(self, found: Found) -> list[ResultTable]:
        """The clusters in words, and the measures of all methods."""
        return [_clusters_table(_of_cel(found)), _measures_table(found)]


def _of_cel(found: Found) -> list[dict[str, Any]]:
    folds = next(folds for (row, _), folds in found.items() if row == "CEL")
    return folds[min(folds)]["clusters"] if folds else []


def _names(titles: list[str]) -> list[str]:
    """Without years, articles in front.

    >>> _names(["Matrix, The (1999)", "Alien (1979)"])
    ['The Matrix', 'Alien']
    """
    bare = [re.sub(r" \(.*", "", title) for title in titles]
    return [_ARTICLE.sub(r"\2 \1", title) for title in bare]


def _wrapped(titles: list[str]) -> str:
    """Lines that end between names, whose own spaces do not break, and which are not too long."""
    short = [textwrap.shorten(name, _LONGEST, placeholder=" …") for name in _names(titles)]
    names = [name.replace(" ", "\N{NO-BREAK SPACE}") for name in short]
    return textwrap.fill("\N{NO-BREAK SPACE}· ".join(names), _WIDTH)


def _clusters_table(clusters: list[dict[str, Any]]) -> ResultTable:
    rows = [
        [
            f"{one['mean']:.2f}",
            f"{one['spread']:.2f}",
            f"{one['item_spread']:.2f}",
            f"{one['items']:,}",
            f"{one['ratings']:,}",
            ", ".join(
                f"{name} {100 * share:.0f} % ({100 * above:+.0f})"
                for name, share, above in one["genres"]
            ),
            " · ".join(_names(one["titles"])),
        ]
        for one in clusters
    ]
    return ResultTable(
        ("rating", "spread", "of films", "films", "ratings", "genres", "best known"),
        rows,
        caption="Clusters of CEL on the first fold. Spread: standard deviation of the ratings "
        "inside, and of the films' mean ratings. Genres: the share of the films inside, and by "
        "how many points it is above that of all films:",
    )


def _measures_table(found: Found) -> ResultTable:
    rows = []
    for (row, _), folds in found.items():
        measured = [one["diagnostics"] for one in folds.values()]
        chance = [one["entropy_by_chance"] for one in folds.values()]
        entropy = [one["genre_entropy"] for one in measured]
        less = [mine - theirs for mine, theirs in zip(entropy, chance, strict=True)]
        rows.append(
            [
                row,
                FoldMean.of(one["rating_spread"] for one in measured).told(3),
                FoldMean.of(entropy).told(3),
                FoldMean.of(one["genre_entropy_normalised"] for one in measured).told(3),
                FoldMean.of(chance).told(3),
                FoldMean.of(less).told(3, "+"),
            ]
        )
    return ResultTable(
        ("", "spread", "genre entropy", "normalised", "by chance", "difference"),
        rows,
        caption="Mean ± standard error over folds. Spread: standard deviation of the ratings in a "
        "cluster, mean over ratings. Genre entropy: −Σ p ln p of a genre over the clusters, mean "
        "over genres; normalised by the logarithm of the number of clusters. Unequal clusters "
        "lower it, too: beside it is what it would be with the same films dealt by chance to "
        "clusters of the same sizes, and the difference, of which lower is better:",
    )


def _entries(data: str) -> list[Entry]:
    return [
        Entry(
            row, f"{data} {_ROWS} rows", Trial(data, trial_plan(embedding=name, compression=_ROWS))
        )
        for row, name in _METHODS.items()
    ]


EXPERIMENTS = {
    "figure5": Figure5(
        "figure5",
        "Figure 5: ten clusters of MovieLens-1m, NMF",
        _entries("ml-1m"),
        _entries("ml-100k"),
        reference="CEL",
        notes=(
            "The paper has its numbers in a picture only, so there are none to compare with. It "
            "says that clusters follow ratings first, that spreads inside are low, and that the "
            "entropy of genres is lower with CEL than with others.",
            "The paper's formula lacks the minus; lower is better as it is here.",
            "PreHash mixes rows: an item counts where its largest weight is. With BH an item is a "
            "sum of rows, and with a full table each has its own: they have no clusters.",
            "Neither titles nor genres are known in training.",
        ),
    ),
}
