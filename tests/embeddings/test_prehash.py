import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.prehash import PreHashEmbedding

IDS = 10
UNSEEN = [-1, IDS, 2**40, -(2**63)]
EVERYONE = torch.tensor([*range(IDS), *UNSEEN])


def prehash(rows=4, k=2, dim=3, ids=IDS, **options):
    return PreHashEmbedding(ids, dim, rows=rows, k=k, **options)


def slow_vector(table, one):
    """The anchor's row, the mixture or the mean of all rows, by loops."""
    rows = table.weight.tolist()
    dims = range(table.embedding_dim)
    if not 0 <= one < table.num_embeddings:
        return [sum(row[d] for row in rows) / len(rows) for d in dims]
    if table.own[one] < len(rows):
        return rows[int(table.own[one])]
    buckets = table.bucket[one].tolist() if table.k < len(rows) else range(len(rows))
    powers = [math.exp(weight) for weight in table.logit[one].tolist()]
    shares = [power / sum(powers) for power in powers]
    return [sum(s * rows[b][d] for s, b in zip(shares, buckets, strict=True)) for d in dims]


@pytest.mark.parametrize("k", [1, 2, 3, 4, None])
@pytest.mark.parametrize("anchors", [[], [7, 2], [9, 0, 3, 1]])
def test_vectors_are_mixtures_as_a_loop_has_it(k, anchors):
    table = prehash(k=k)
    table.bind(torch.tensor(anchors, dtype=torch.int64))
    torch.nn.init.normal_(table.logit, std=2)
    slow = torch.tensor([slow_vector(table, one) for one in EVERYONE.tolist()])
    torch.testing.assert_close(table(EVERYONE), slow)


def test_the_rows_of_a_mixture_are_different_ones_drawn_by_the_seed():
    first, again, other = (prehash(rows=9, k=4, ids=500, seed=seed).bucket for seed in (1, 1, 2))
    assert all(len(set(line)) == 4 for line in first.tolist())
    assert first.equal(again)
    assert not first.equal(other)
    counts = torch.bincount(first.flatten().long(), minlength=9)
    assert counts.min() > 500 * 4 / 9 * 0.8  # about as many ids for each row


def test_the_first_ids_are_anchors_until_others_are_reported():
    table = prehash(rows=4)
    assert table(torch.arange(4)).equal(table.weight)
    table.bind(torch.tensor([8, 6, 0, 2, 5]))  # one more than there are rows
    assert table(torch.tensor([8, 6, 0, 2])).equal(table.weight)
    assert table.own.tolist() == [2, 4, 3, 4, 4, 4, 1, 4, 0, 4]
    table.bind(torch.tensor([3]))
    assert table.own.tolist() == [4, 4, 4, 0, 4, 4, 4, 4, 4, 4]


def test_an_anchor_learns_its_row_and_no_weights():
    table = prehash()
    table(torch.tensor([2])).sum().backward()
    assert not table.logit.grad.any()
    expected = torch.zeros_like(table.weight)
    expected[2] = 1
    assert table.weight.grad.equal(expected)


@pytest.mark.parametrize("k", [2, None])
def test_unseen_ids_have_the_mean_row_whatever_the_weights_are(k):
    table = prehash(k=k)
    torch.nn.init.normal_(table.logit, std=5)
    expected = table.weight.mean(0).expand(len(UNSEEN), -1)
    torch.testing.assert_close(table(torch.tensor(UNSEEN)), expected)
    table(torch.tensor(UNSEEN)).sum().backward()
    assert not table.logit.grad.any()


def test_a_k_that_is_not_reported_or_too_large_is_all_rows():
    assert prehash(k=None).k == prehash(k=99).k == 4
    assert not hasattr(prehash(k=4), "bucket")
    assert not prehash(k=4).traits.low_time
    assert not prehash(k=4).traits.low_memory
    assert prehash(k=3).traits.low_time
    assert prehash(k=3).traits.low_memory


def test_mixtures_of_rows_that_are_not_negative_are_not_negative():
    for k in (2, None):
        table = prehash(k=k, dim=5)
        torch.nn.init.normal_(table.logit, std=9)
        assert [id(one) for one in table.non_negative_parameters()] == [id(table.weight)]
        with torch.no_grad():
            table.weight.abs_()
        assert bool((table(EVERYONE) >= 0).all())


def test_the_penalty_is_half_the_pull_times_the_squares_of_all_weights():
    table = prehash(pull=0.7)
    slow = 0.7 / 2 * sum(w * w for line in table.logit.tolist() for w in line)
    assert table.penalty().item() == pytest.approx(slow)
    table.penalty().backward()
    torch.testing.assert_close(table.logit.grad, 0.7 * table.logit.detach())
    assert table.weight.grad is None
    assert prehash(pull=0).penalty().item() == 0


def losing(table, ids, target):
    return (table(ids) - target).square().sum()


def planted(**options):
    """Id 5 mixes the rows 0 and 1, its weight of 1 is the least, and row 3 is what it wants."""
    table = prehash(rows=4, k=2, dim=2, tries=4, **options)
    table.bind(torch.tensor([0, 1, 2, 3]))
    with torch.no_grad():
        table.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0], [3.0, 3.0]]))
        table.bucket[5] = torch.tensor([0, 1])
        table.logit[5] = torch.tensor([0.5, -0.5])
    return table


def test_a_row_that_would_lower_the_loss_takes_the_place_of_the_least_weight():
    table = planted()
    ids, target = torch.tensor([5]), torch.tensor([[3.0, 3.0]])
    before = losing(table, ids, target)
    before.backward()
    others = table.bucket.clone()
    table.adapt()
    assert table.bucket[5].tolist() == [0, 3]
    others[5] = table.bucket[5]
    assert table.bucket.equal(others)  # who was not looked up stays
    assert losing(table, ids, target).item() < before.item()


def test_what_is_gained_is_the_change_of_the_loss_to_first_order():
    table = planted()
    ids = torch.tensor([[5, 5], [7, -1]])
    target = torch.randn(2, 2, 2)
    losing(table, ids, target).backward()
    slopes = 2 * (table(ids) - target).detach()
    rows = table.weight.detach()
    for one, slope in ((5, slopes[0].sum(0)), (7, slopes[1, 0])):
        least = rows[table.bucket[one, table.logit[one].argmin()].long()]
        expected = torch.tensor(
            [float(slope @ (rows[row] - least)) for row in table.candidates().tolist()]
        )
        torch.testing.assert_close(table.gain[one], expected)
    seen = torch.zeros(IDS, dtype=torch.bool)
    seen[[5, 7]] = True
    assert not table.gain[~seen].any()


def test_batches_add_up_until_they_are_weighed():
    table = planted()
    target = torch.tensor([[1.0, 2.0]])
    losing(table, torch.tensor([5]), target).backward()
    once = table.gain.clone()
    losing(table, torch.tensor([5]), target).backward()
    torch.testing.assert_close(table.gain, 2 * once)
    table.adapt()
    assert not table.gain.any()
    assert int(table.explored) == 1


def test_nothing_is_put_where_nothing_would_be_better_or_is_there_already():
    table = planted()
    ids = torch.tensor([5])
    losing(table, ids, table(ids).detach()).backward()  # no slope
    before = table.bucket.clone()
    table.adapt()
    assert table.bucket.equal(before)
    # Row 0 is the best of all, but in the mixture already: no row may be there twice.
    with torch.no_grad():
        table.weight.copy_(torch.tensor([[9.0, 9.0], [0.0, 1.0], [-1.0, -1.0], [-3.0, 1.0]]))
    losing(table, ids, torch.tensor([[9.0, 9.0]])).backward()
    table.adapt()
    assert table.bucket.equal(before)


def test_nothing_is_weighed_in_serving_or_after_the_last_exploration():
    table = planted(explorations=1).eval()
    ids, target = torch.tensor([5]), torch.tensor([[3.0, 3.0]])
    losing(table, ids, target).backward()
    assert not table.gain.any()
    table.train().adapt()
    assert int(table.explored) == 1
    losing(table, ids, target).backward()
    assert not table.gain.any()
    before = table.bucket.clone()
    table.adapt()
    assert table.bucket.equal(before)
    assert int(table.explored) == 1


def test_the_rows_that_are_tried_change_from_time_to_time_and_come_from_the_seed():
    table = prehash(rows=100, k=3, tries=8, seed=3)
    tried = []
    for _ in range(4):
        tried.append(set(table.candidates().tolist()))
        table.adapt()
    assert all(len(one) == 8 and one <= set(range(100)) for one in tried)
    assert len({frozenset(one) for one in tried}) == 4
    again = prehash(rows=100, k=3, tries=8, seed=3)
    assert set(again.candidates().tolist()) == tried[0]


def test_more_tries_than_rows_are_all_rows():
    table = prehash(rows=4, k=2, tries=9)
    losing(table, torch.arange(IDS), 1.0).backward()
    assert sorted(table.candidates().tolist()) == [0, 1, 2, 3]
    assert not table.gain[:, 4:].any()
    table.adapt()
    assert int(table.explored) == 1


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.Adagrad, torch.optim.SGD])
def test_the_optimiser_forgets_the_weight_that_was_of_another_row(make):
    table = planted()
    optimizer = make(table.parameters(), lr=0.01)
    ids, target = torch.tensor([5, 7]), torch.tensor([[3.0, 3.0], [3.0, 3.0]])
    losing(table, ids, target).backward()
    optimizer.step()
    before = {
        name: value.clone()
        for name, value in optimizer.state[table.logit].items()
        if isinstance(value, torch.Tensor)
    }
    old = table.bucket.clone()
    table.adapt(optimizer)
    changed = table.bucket != old
    assert bool(changed[5].any())
    for name, value in before.items():
        if value.shape == changed.shape:
            assert not optimizer.state[table.logit][name][changed].any()
            value = value.masked_fill(changed, 0)
        assert torch.equal(optimizer.state[table.logit][name], value)


@given(st.integers(0, 10_000))
def test_exploring_leaves_every_mixture_with_different_rows(seed):
    torch.manual_seed(seed)
    table = prehash(rows=6, k=3, tries=3, seed=seed)
    table.bind(torch.tensor([1, 2]))
    for _ in range(5):
        losing(table, EVERYONE, torch.randn(len(EVERYONE), 3)).backward()
        table.adapt()
    assert all(len(set(line)) == 3 for line in table.bucket.tolist())
    assert int(table.bucket.min()) >= 0
    assert int(table.bucket.max()) < 6


def test_exploring_finds_better_rows_than_those_that_were_drawn():
    torch.manual_seed(0)
    ends = {}
    for explorations in (0, 40):
        table = prehash(rows=40, k=2, ids=200, dim=4, explorations=explorations, seed=1)
        table.bind(torch.arange(0))
        with torch.no_grad():
            table.weight.copy_(torch.randn(40, 4, generator=torch.Generator().manual_seed(2)))
        target = table.weight.detach()[torch.arange(200) % 40].clone()
        optimizer = torch.optim.Adam([table.logit], lr=0.1)
        for _ in range(100):
            optimizer.zero_grad()
            losing(table, torch.arange(200), target).backward()
            optimizer.step()
            table.adapt(optimizer)
        ends[explorations] = losing(table, torch.arange(200), target).item()
    assert ends[40] < 0.5 * ends[0]


def test_with_all_rows_there_is_nothing_to_explore():
    table = prehash(k=None)
    losing(table, torch.arange(IDS), 1.0).backward()
    state = copy.deepcopy(table.state_dict())
    table.adapt(torch.optim.Adam(table.parameters()))
    for name, value in table.state_dict().items():
        assert torch.equal(value, state[name])


def test_it_goes_on_exploring_where_a_saved_table_had_got_to():
    table, again = planted(), planted()
    table.adapt()
    losing(table, torch.tensor([5]), torch.tensor([[3.0, 3.0]])).backward()
    again.load_state_dict(table.state_dict())
    table.adapt()
    again.adapt()
    assert again.bucket.equal(table.bucket)
    assert again.candidates().equal(table.candidates())


def test_settings_that_make_no_sense_are_reported():
    with pytest.raises(CelrecError, match="k must be positive, not 0"):
        prehash(k=0)
    with pytest.raises(CelrecError, match="tries must be positive, not 0"):
        prehash(tries=0)
    for pull in (-0.1, math.nan):
        with pytest.raises(CelrecError, match=f"pull must not be negative, not {pull}"):
            prehash(pull=pull)
    with pytest.raises(CelrecError, match="rows must be positive, not 0"):
        prehash(rows=0)
    with pytest.raises(CelrecError, match="cannot grow from 10 to"):
        prehash().grow(11)
