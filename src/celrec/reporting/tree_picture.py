"""The split tree."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

from celrec.reporting.cluster_view import Cluster, ClusterView
from celrec.reporting.picture import Sheet, clipped, picture
from celrec.reporting.svg import element, path
from celrec.reporting.tree_layout import Lane, TreeLayout
from celrec.reporting.written_numbers import figure, whole

_TOP, _ROOMY, _CLOSE = 38.0, 22.0, 17.0
_MANY = 60  # lines
_BAR = 60.0  # the longest


def tree_picture(view: ClusterView) -> Markup | None:
    """Each cluster as a line that begins where it was split off; None if nothing was split.

    At its end stand its number, its size and its most active members.
    """
    if view.parents is None:
        return None
    layout = TreeLayout(view.parents.tolist())
    if not layout.splits:
        return None
    told = f"{whole(layout.count)} clusters of {view.side} in the order of their splits"
    return picture(told, lambda sheet: _Drawing(sheet, view, layout.lanes).drawn())


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
        """The height, and what there is."""
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
        """From the first cluster to the end of a line, along those that it came from.

        The last three points, or two if it is one of the first, are its own.
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
        told = f"cluster {cluster.number}: {whole(cluster.size)} ids, {mean}"
        yield element("title", told)
        # So that one need not hit a letter.
        whole_line = {"width": self._sheet.width - self._end + 8, "height": self._step}
        yield element("rect", x=self._end - 8, y=at - self._step / 2, class_="target", **whole_line)
        away = self._view.away(cluster) / self._view.furthest
        side = "above" if away >= 0 else "below"
        colour = {"class_": f"mean {side}", "style": f"--t:{abs(away):.2f}"}
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
