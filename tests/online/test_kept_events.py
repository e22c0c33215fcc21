import numpy as np
import pytest
import torch

from celrec.online.latest_evidence import RecentEvents
from celrec.recommender.batch import Batch


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_latest_events_come_back_as_they_were(place):
    kept = RecentEvents(2, place, 3)
    ids = [torch.tensor(values) for values in ([4, 5, 4, 4], [0, 1, 0, 6], [3, 3, -1, 2])]
    ids[0], ids[place] = ids[place], ids[0]
    kept.store(Batch.of(ids, torch.tensor([1.0, 2.0, 3.0, 4.0])), ids[place].numpy())
    owner, replayed = kept.replay(np.array([5, 0, 4]))
    assert owner.tolist() == [0, 2, 2]
    latest = [1, 2, 3]  # of the three of id 4 the last two
    assert replayed.target.tolist() == [2.0, 3.0, 4.0]
    assert [one.tolist() for one in replayed.ids()] == [one[latest].tolist() for one in ids]
    assert replayed.moment is None


def test_moments_are_kept_where_they_are_asked_for():
    kept = RecentEvents(4, 0, 2, moments=True)
    user = torch.tensor([3, 3, 1])
    batch = Batch(user, torch.tensor([0, 1, 2]), torch.zeros(3), moment=torch.tensor([7, 8, 9]))
    kept.store(batch, user.numpy())
    assert kept.replay(np.array([1, 3]))[1].moment.tolist() == [9, 7, 8]


def test_who_has_no_events_has_none_to_replay():
    owner, batch = RecentEvents(3, 1, 2, ids=5).replay(np.array([0, 4, 9]))
    assert len(owner) == len(batch.user) == len(batch.item) == len(batch.target) == 0


def test_conversions_take_a_byte_each_and_come_back_as_they_were():
    user, item = torch.tensor([0, 1, 0, 0, 2]), torch.tensor([5, 6, 7, 8, 9])
    batch = Batch(user, item, torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0]))
    exact, bytewise = RecentEvents(2, 0, 2), RecentEvents(2, 0, 2, conversions=True)
    found = []
    for kept in (exact, bytewise):
        kept.store(batch, user.numpy())
        found.append(kept.replay(np.array([2, 0, 1])))
    assert found[0][0].tolist() == found[1][0].tolist() == [0, 1, 1, 2]
    for one, other in zip(*(replayed[:3] for _, replayed in found), strict=True):
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()
    assert exact.nbytes - bytewise.nbytes == 3 * 2 * (4 - 1)
