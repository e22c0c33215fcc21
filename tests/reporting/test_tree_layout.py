from hypothesis import given
from hypothesis import strategies as st

from celrec.reporting.tree_picture import TreeLayout


@st.composite
def trees(draw):
    """Some clusters of the start, and others that came from any before them, renumbered at will."""
    size = draw(st.integers(1, 30))
    parents = [draw(st.integers(-1, number - 1)) for number in range(size)]
    numbers = draw(st.permutations(range(size)))
    renumbered = [-1] * size
    for number, parent in enumerate(parents):
        renumbered[numbers[number]] = -1 if parent < 0 else numbers[parent]
    return renumbered


@given(trees())
def test_every_cluster_has_a_line_of_its_own_after_the_one_it_came_from(parents):
    lanes = TreeLayout(parents).lanes
    by_cluster = {lane.cluster: lane for lane in lanes}
    assert sorted(by_cluster) == list(range(len(parents)))
    assert [lane.place for lane in lanes] == list(range(len(parents)))
    assert sorted(lane.born for lane in lanes) == list(range(len(parents)))
    for lane in lanes:
        assert (lane.parent if lane.parent is not None else -1) == parents[lane.cluster]
        if lane.parent is not None:
            assert lane.born > by_cluster[lane.parent].born
            assert lane.place > by_cluster[lane.parent].place


@given(trees())
def test_no_line_crosses_another(parents):
    lanes = TreeLayout(parents).lanes
    by_cluster = {lane.cluster: lane for lane in lanes}
    for lane in lanes:
        if lane.parent is None:
            continue
        above = by_cluster[lane.parent].place
        for other in lanes:  # lies between, and must not have begun where the link goes down
            if above < other.place < lane.place:
                assert other.born > lane.born


@given(trees(), st.integers(1, 8))
def test_what_has_no_line_is_folded_into_where_it_came_from(parents, most):
    layout = TreeLayout(parents, most)
    shown = {lane.cluster for lane in layout.lanes}
    assert len(shown) == min(most, len(parents))
    expected = dict.fromkeys(shown, 0)
    for cluster in set(range(len(parents))) - shown:
        while cluster >= 0 and cluster not in shown:
            cluster = parents[cluster]
        if cluster >= 0:
            expected[cluster] += 1
    assert {lane.cluster: lane.folded for lane in layout.lanes} == expected


def test_a_circle_of_clusters_is_no_reason_to_hang():
    assert {lane.cluster for lane in TreeLayout([-1, 2, 1]).lanes} <= {0, 1, 2}
