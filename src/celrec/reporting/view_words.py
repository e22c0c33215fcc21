"""The clusters of one kind of ids, for the page."""

from __future__ import annotations

from typing import Any

from celrec.reporting.cluster_view import ClusterView
from celrec.reporting.page_json import page_json
from celrec.reporting.tree_layout import TreeLayout
from celrec.reporting.tree_picture import tree_picture
from celrec.reporting.written_numbers import figure, whole

_PREVIEW = 6
_TALL = 40  # lines of a tree that is shown in a box


def view_words(view: ClusterView) -> dict[str, Any]:
    """What the page shows of them: a tree, a table, and the members for its script."""
    picture = tree_picture(view)
    parents = [] if view.parents is None else view.parents.tolist()
    lanes = len(TreeLayout(parents).lanes) if parents else 0
    roots = sum(parent < 0 for parent in parents)
    note = ""
    if lanes < len(parents):
        note = f"The first {whole(lanes)} of {whole(len(parents))} clusters have a line."
    means = [cluster.mean for cluster in view.clusters if cluster.mean is not None]
    scale = None
    if means and view.mean is not None and len(means) > 1:
        scale = figure(view.mean, 2)
    return {
        "side": view.side,
        "key": view.key,
        "count": view.count,
        "clusters": view.clusters,
        "largest": view.largest,
        "furthest": view.furthest,
        "away": view.away,
        "preview": _PREVIEW,
        "picture": picture,
        "tall": lanes > _TALL,
        "roots": "one cluster" if roots == 1 else f"{whole(roots)} clusters",
        "tree_note": note,
        "no_tree": _no_tree(view),
        "scale": scale,
        "split": picture is not None,
        "told": _told(view),
        "wanted": "a title, an id or a cluster" if view.titled else "an id or a cluster",
        "spread_told": "standard deviation of the targets in the cluster"
        if view.of_targets
        else "standard deviation of the mean targets of its ids, by interactions",
        "json": page_json(view.as_dict()),
    }


def _no_tree(view: ClusterView) -> str:
    if view.count == 1:
        return f"All {view.side} that share rows are in one cluster: nothing was split."
    if view.parents is None and view.alone:
        return f"When {view.side} got rows of their own, the tree of their splits was not kept."
    if view.parents is None:
        return f"The {view.side} are between rows, as the evidence says, so there is no split tree."
    return f"The clusters of {view.side} were given from the start: none was split from another."


def _told(view: ClusterView) -> str:
    words = [f"{whole(view.ids)} {view.side} share rows"]
    if view.alone:
        words[0] += f", {whole(view.alone)} others have one each"
    if len(view.clusters) < view.count:
        words.append(f"the page has the {whole(len(view.clusters))} most active clusters")
    if view.shown < view.ids:
        words.append(
            f"it holds {whole(view.shown)} of all ids, the most active of each cluster, and only "
            "these can be found"
        )
    spread = "of the targets" if view.of_targets else "of its ids’ mean targets"
    words.append(f"spread is the standard deviation {spread} in a cluster")
    return f"{'; '.join(words)}."
