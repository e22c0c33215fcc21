"""What several processes keep of ids in clusters, against what one keeps."""

import numpy as np
import pytest

from celrec.training.hard_side import HardSide
from celrec.training.online_run import OnlineRun
from tests.training.test_online_together import PLANS, learned, state

HARD = [name for name in PLANS if "preset" in PLANS[name]]


def kept(run):
    """The kept events of each id, by original names, oldest first: partners and target."""
    names = {name: table.ids.ids.to_list() for name, table in run.tables.items()}
    found = {}
    for name, side in run.trainer.sides.items():
        if not isinstance(side, HardSide):
            continue
        owner, batch = side.buffer.replay(np.arange(len(names[name])))
        columns = zip(*(one.tolist() for one in batch.ids()), batch.target.tolist(), strict=True)
        events = found[name] = {one: [] for one in names[name]}
        for whose, (*ids, target) in zip(owner.tolist(), columns, strict=True):
            told = [
                None if one < 0 else some[one]
                for some, one in zip(names.values(), ids, strict=True)
            ]
            events[names[name][whose]].append((*told, target))
    return found


def check_books(run):
    """Every cluster has a member, and lists and counts agree with each other."""
    for name, side in run.trainer.sides.items():
        if not isinstance(side, HardSide):
            continue
        counts, clusters = run.tables[name].counts, side.table.num_clusters
        if not run.plan.negatives:
            np.testing.assert_array_equal(side.counts[: len(counts)], counts)
        assignment, known = side.table.assignment.numpy(), np.flatnonzero(side.counts)
        sizes = np.bincount(assignment[known], minlength=clusters)
        assert (sizes > 0).all()
        np.testing.assert_array_equal(side.members.sizes[:clusters], sizes)
        assert side.members.sizes.sum() == len(known)
        assert side.members.events.sum() == side.counts.sum() == side.events
        everybody = [one for cluster in range(clusters) for one in side.members.of(cluster)]
        assert sorted(everybody) == known.tolist()
        for cluster in range(clusters):
            assert (assignment[side.members.of(cluster)] == cluster).all()
            assert side.table.parent[cluster] < clusters


def clusters(run):
    sides = run.trainer.sides.values()
    return np.array([side.table.num_clusters for side in sides if isinstance(side, HardSide)])


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", HARD)
def test_several_processes_keep_the_events_that_one_keeps_and_open_as_many_clusters(
    tmp_path, name, size
):
    for folder, count in (("one", 1), ("several", size)):
        learned(tmp_path / folder, name, count)
    with (
        OnlineRun.resume(tmp_path / "one" / "run") as one,
        OnlineRun.resume(tmp_path / "several" / "run") as several,
    ):
        check_books(one)
        check_books(several)
        if not one.plan.negatives:  # which are drawn by each process
            assert kept(several) == kept(one)
        assert (np.abs(clusters(one) - clusters(several)) <= 0.2 * clusters(one)).all()
        assert clusters(several).max() > 5


@pytest.mark.slow
@pytest.mark.parametrize("name", HARD)
def test_one_and_four_processes_go_on_with_what_two_have_kept(tmp_path, name):
    whole, _ = learned(tmp_path / "whole", name, 1)
    parts = []
    for size, script in ((2, "first third"), (1, "second third"), (4, "last third")):
        parts.append(learned(tmp_path / "thirds", name, size, script)[0])
        with OnlineRun.resume(tmp_path / "thirds" / "run") as run:
            check_books(run)
    together = [np.concatenate(some) for some in zip(*parts, strict=True)]
    np.testing.assert_array_equal(together[2], whole[2])
    assert state(tmp_path / "thirds") == state(tmp_path / "whole")
    errors = [np.square(one[0] - one[1]).mean() for one in (whole, together)]
    assert errors[1] == pytest.approx(errors[0], rel=0.1)
    if "negatives" not in PLANS[name]:
        with (
            OnlineRun.resume(tmp_path / "whole" / "run") as one,
            OnlineRun.resume(tmp_path / "thirds" / "run") as thirds,
        ):
            assert kept(thirds) == kept(one)
