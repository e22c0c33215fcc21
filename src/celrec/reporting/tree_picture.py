"""The split tree of a table as a picture, and its clusters for the page."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from celrec.reporting.cluster_view import Cluster, ClusterView
from celrec.reporting.drawing import Sheet, clipped, element, path, picture
from celrec.reporting.wording import figure, page_json, whole


@dataclass(frozen=True, slots=True)
class Lane:
    """A cluster's line in the picture, from where it was split off to the end."""

    cluster: int
    parent: int | None
    born: int
    """Its position in the order of splits."""
    place: int
    """Its position from top to bottom."""
    folded: int
    """The number of its descendants without a line."""


class TreeLayout:
    """The clusters from top to bottom, so that no lines cross.

    A cluster is below its parent, and later children are nearer to it. The first `most` clusters
    get a line; later ones are folded into their nearest ancestor with a line.

    >>> [lane.cluster for lane in TreeLayout([-1, 0, 0, 1]).lanes]
    [0, 2, 1, 3]
    >>> [(lane.cluster, lane.folded) for lane in TreeLayout([-1, 0, 0, 1], most=2).lanes]
    [(0, 1), (1, 1)]
    """

    def __init__(self, parents: Sequence[int], most: int = 200) -> None:
        born = _born(parents)
        order = sorted(range(len(parents)), key=born.__getitem__)
        shown = set(order[:most])
        folded = dict.fromkeys(shown, 0)
        children: dict[int, list[int]] = {}
        roots = []
        for cluster in order:
            parent = parents[cluster]
            if cluster not in shown:
                while parent >= 0 and parent not in shown:
                    parent = parents[parent]
                if parent >= 0:
                    folded[parent] += 1
            elif parent >= 0 and parent in shown:
                children.setdefault(parent, []).append(cluster)
            else:
                roots.append(cluster)
        self.lanes: list[Lane] = []
        waiting = list(reversed(roots))
        while waiting:
            cluster = waiting.pop()
            parent = parents[cluster]
            known = parent if parent in shown else None
            place = len(self.lanes)
            self.lanes.append(Lane(cluster, known, born[cluster], place, folded[cluster]))
            waiting += children.get(cluster, [])  # so the latest child comes next
        self.count = len(parents)
        """The number of clusters."""

    @property
    def splits(self) -> int:
        """The number of lines that begin at another."""
        return sum(lane.parent is not None for lane in self.lanes)


def _born(parents: Sequence[int]) -> list[int]:
    """The position of each cluster in an order with parents first, else by number."""
    children: dict[int, list[int]] = {}
    ready = []
    for cluster, parent in enumerate(parents):
        if parent >= 0:
            children.setdefault(parent, []).append(cluster)
        else:
            ready.append(cluster)
    born = [len(parents)] * len(parents)
    number = 0
    while ready:  # sorted, so it is a heap
        cluster = heapq.heappop(ready)
        born[cluster], number = number, number + 1
        for child in children.get(cluster, []):
            heapq.heappush(ready, child)
    return born


_TOP, _ROOMY, _CLOSE = 38.0, 22.0, 17.0
_MANY = 60  # lines
_BAR = 60.0  # the longest


def tree_picture(view: ClusterView) -> Markup | None:
    """Each cluster as a line from its split, with its number, size and most active members.

    None if nothing was split.
    """
    if view.parents is None:
        return None
    layout = TreeLayout(view.parents.tolist())
    if not layout.splits:
        return None
    label = f"{whole(layout.count)} clusters of {view.side} in the order of their splits"
    return picture(label, lambda sheet: _Drawing(sheet, view, layout.lanes).drawn())


class _Drawing:
    def __init__(self, sheet: Sheet, view: ClusterView, lanes: list[Lane]) -> None:
        self._sheet, self._view = sheet, view
        self._lanes = {lane.cluster: lane for lane in lanes}
        self._step = _ROOMY if len(lanes) <= _MANY else _CLOSE
        self._left, self._end = 8.0, 92.0 if sheet.narrow else 320.0
        self._number = self._end + 18
        self._size = self._number + 10 + 8 * max(len(str(max(lane.cluster for lane in lanes))), 2)
        self._names = self._size + (42 if sheet.narrow else 48 + _BAR)
        self._known = {cluster.number: cluster for cluster in view.clusters}
        self._last = max(lane.born for lane in lanes) + 1

    def drawn(self) -> tuple[float, list[Markup]]:
        """The height and the elements."""
        parts = [*self._heads()]
        parts += (
            element("path", d=path(self._way(lane)[-3:]), class_="lane")
            for lane in self._lanes.values()
        )
        for lane in self._lanes.values():
            if cluster := self._known.get(lane.cluster):
                way = element("path", d=path(self._way(lane)), class_="path")
                leaf = [*self._leaf(lane, cluster), way]
                address = {"href": f"#{self._view.key}-{cluster.number}"}
                number = str(cluster.number)
                parts.append(
                    element(
                        "a", *leaf, tabindex="-1", class_="leaf", data_cluster=number, **address
                    )
                )
        return self._height(len(self._lanes) - 1) + 18, parts

    def _way(self, lane: Lane) -> list[tuple[float, float]]:
        """The points from the first ancestor to the end of a line.

        The last three points are its own; two for a root.
        """
        points = [(self._end, self._height(lane.place))]
        before: Lane | None = lane
        while before is not None:
            start, at = self._across(before.born), self._height(before.place)
            points.append((start, at))
            before = None if before.parent is None else self._lanes[before.parent]
            if before is not None:
                points.append((start, self._height(before.place)))
        return points[::-1]

    def _height(self, place: int) -> float:
        return _TOP + place * self._step

    def _across(self, born: int) -> float:
        return self._left + (self._end - self._left) * born / self._last

    def _heads(self) -> Iterable[Markup]:
        first = "splits →" if self._sheet.narrow else "order of splits →"
        places = (self._left, self._number, self._size, self._names)
        heads = (first, "no.", "ids", "most active members")
        for place, words in zip(places, heads, strict=True):
            yield element("text", words, x=place, y=14, class_="label")

    def _leaf(self, lane: Lane, cluster: Cluster) -> Iterable[Markup]:
        at = self._height(lane.place)
        mean = "no target" if cluster.mean is None else f"mean target {figure(cluster.mean, 2)}"
        title = f"cluster {cluster.number}: {whole(cluster.size)} ids, {mean}"
        yield element("title", title)
        # A click anywhere on the line counts.
        whole_line = {"width": self._sheet.width - self._end + 8, "height": self._step}
        yield element("rect", x=self._end - 8, y=at - self._step / 2, class_="target", **whole_line)
        deviation = self._view.deviation(cluster) / self._view.furthest
        side = "above" if deviation >= 0 else "below"
        colour = {"class_": f"mean {side}", "style": f"--t:{abs(deviation):.2f}"}
        yield element("circle", cx=self._end, cy=at, r=5.5, **colour)
        yield element("text", str(cluster.number), x=self._number, y=at + 4, class_="value")
        count, x = whole(cluster.size), self._size
        if not self._sheet.narrow:
            width = max(_BAR * cluster.size / self._view.largest, 1.5)
            yield element("rect", x=x, y=at - 5, width=width, height=10, class_="bar size")
            x += width + 6
        yield element("text", count, x=x, y=at + 4, class_="tick")
        more = f"(+ {lane.folded} clusters later) " if lane.folded else ""
        room = self._sheet.letters(self._sheet.width - self._names, 12.7)
        words = clipped(more + " · ".join(cluster.names[:6]), room)
        yield element("text", words, x=self._names, y=at + 4, class_="names")


_PREVIEW = 6
_TALL = 40  # lines of a tree that is shown in a box


def view_words(view: ClusterView) -> dict[str, Any]:
    """A view for the page: its tree, its table, and the members for the script."""
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
        "deviation": view.deviation,
        "preview": _PREVIEW,
        "picture": picture,
        "tall": lanes > _TALL,
        "roots": "one cluster" if roots == 1 else f"{whole(roots)} clusters",
        "tree_note": note,
        "no_tree": _no_tree(view),
        "scale": scale,
        "split": picture is not None,
        "note": _note(view),
        "wanted": "a title, an id or a cluster" if view.titled else "an id or a cluster",
        "spread_note": "standard deviation of the targets in the cluster"
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
        return f"The {view.side} are mixtures of rows, so there is no split tree."
    return f"The clusters of {view.side} were given from the start: none was split from another."


def _note(view: ClusterView) -> str:
    words = [f"{whole(view.ids)} {view.side} share rows"]
    if view.alone:
        words[0] += f", {whole(view.alone)} others have one each"
    if len(view.clusters) < view.count:
        words.append(f"the page has the {whole(len(view.clusters))} most active clusters")
    if view.shown < view.ids:
        words.append(
            f"it has {whole(view.shown)} of all ids, the most active of each cluster, and only "
            "these can be found"
        )
    spread = "of the targets" if view.of_targets else "of its ids’ mean targets"
    words.append(f"spread is the standard deviation {spread} in a cluster")
    return f"{'; '.join(words)}."
