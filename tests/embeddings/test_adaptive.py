import copy
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.adaptive import AdaptiveEmbedding
from celrec.embeddings.embedding import Memory
from celrec.embeddings.hashing import ModuloEmbedding

IDS = 40
UNSEEN = [-1, -IDS, -(2**40), IDS, 2**40, 2**63 - 1, -(2**63)]
EVERYONE = torch.tensor([*range(IDS), *UNSEEN])


def adaptive(dim=3, rows=11, **options):
    return AdaptiveEmbedding(IDS, dim, rows=rows, **options)


def trained(**options):
    """Ids 7, 0 and 39 have private rows that differ from the shared ones they came from."""
    table = adaptive(**options)
    table.promote(torch.tensor([7, 0, 39]))
    with torch.no_grad():
        table.weight += torch.arange(11)[:, None]
    return table


def test_promoted_ids_have_rows_after_the_shared_ones_and_the_others_are_hashed():
    table = trained(seed=4)
    hashed = ModuloEmbedding(IDS, 3, rows=6, seed=4).row_of(EVERYONE).tolist()
    private = {7: 6, 0: 7, 39: 8}
    slow = [private.get(one, h) for one, h in zip(EVERYONE.tolist(), hashed, strict=True)]
    assert table.row_of(EVERYONE).tolist() == slow
    assert table(EVERYONE).tolist() == table.weight[slow].tolist()
    assert table.private(EVERYONE).tolist() == [one in private for one in EVERYONE.tolist()]
    assert (table.shared_rows, table.private_rows, table.num_rows, table.free_rows) == (6, 5, 9, 2)


@pytest.mark.parametrize("rows", [1, 2, 3, 10, 255, 512, 600])
def test_the_budget_is_kept_to_the_row(rows):
    table = adaptive(rows=rows)
    assert len(table.weight) == rows
    assert table.overrun == 1
    assert table.private_rows == rows // 2
    assert table(EVERYONE).shape == (len(EVERYONE), 3)


def test_with_one_row_nobody_can_be_promoted():
    with pytest.raises(CelrecError, match="only 0 private rows are free"):
        adaptive(rows=1).promote(torch.tensor([3]))


@given(st.lists(st.integers(0, IDS - 1), unique=True, max_size=5), st.integers(0, 99))
def test_promotion_changes_no_vector(ids, seed):
    table = adaptive(seed=seed)
    before = table(EVERYONE)
    table.promote(torch.tensor(ids, dtype=torch.int64))
    assert torch.equal(table(EVERYONE), before)
    assert len(set(table.row_of(torch.tensor(ids, dtype=torch.int64)).tolist())) == len(ids)


def test_training_a_promoted_id_moves_no_other():
    table = trained()
    before = table(EVERYONE).detach()
    table(torch.tensor([7])).sum().backward()
    torch.optim.SGD(table.parameters(), lr=0.5).step()
    before[7] -= 0.5
    torch.testing.assert_close(table(EVERYONE).detach(), before)


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.Adagrad, torch.optim.SGD])
def test_the_state_of_the_optimiser_goes_along(make):
    table = adaptive()
    optimizer = make(table.parameters(), lr=0.1)
    table(EVERYONE).square().sum().backward()
    optimizer.step()
    shared = int(table.row_of(torch.tensor(5)))
    table.promote(torch.tensor([5]), optimizer)
    for state in optimizer.state[table.weight].values():
        if isinstance(state, torch.Tensor) and state.dim() == 2:
            assert torch.equal(state[6], state[shared])
            assert state[6].any()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([7], "7 is unknown or has a private row already"),
        ([1, IDS], f"{IDS} is unknown"),
        ([-1], "-1 is unknown"),
        ([1, 2, 3], "cannot promote 3, only 2 private rows are free"),
        ([1, 1], "occurs twice"),
    ],
)
def test_what_cannot_be_promoted_is_reported_and_changes_nothing(ids, message):
    table = trained()
    before = copy.deepcopy(table.state_dict())
    with pytest.raises(CelrecError, match=message):
        table.promote(torch.tensor(ids))
    assert all(torch.equal(value, before[name]) for name, value in table.state_dict().items())


@given(st.lists(st.lists(st.integers(-5, 15), max_size=30), max_size=6), st.integers(0, 6))
def test_ids_looked_up_often_enough_are_promoted_while_rows_are_free(batches, above):
    table = AdaptiveEmbedding(12, 2, rows=6, promote_above=above, padding_idx=2)
    counts, private = Counter(), []
    for batch in batches:
        before = table(torch.tensor(batch, dtype=torch.int64))
        counts.update(one for one in batch if 0 <= one < 12 and one != 2)
        warm = [one for one in sorted(counts) if counts[one] > above and one not in private]
        private += sorted(warm, key=lambda one: -counts[one])[: 3 - len(private)]
        table.adapt()
        with torch.no_grad():
            assert torch.equal(table(torch.tensor(batch, dtype=torch.int64)), before)
        assert table.private(torch.arange(12)).nonzero().flatten().tolist() == sorted(private)
    assert table.lookups.tolist() == [counts[one] for one in range(12)]


def test_lookups_are_counted_in_training_alone():
    table = adaptive(promote_above=3)
    with torch.no_grad():
        table(EVERYONE)
    table.eval()(EVERYONE)
    assert not table.lookups.any()
    table.train()(torch.tensor([[5, 5], [0, 5]]))
    assert (int(table.lookups[5]), int(table.lookups[0])) == (3, 1)


def test_counts_end_at_the_largest_they_can_be():
    table = adaptive(promote_above=3)
    table.lookups[4] = 2**31 - 2
    table.observe(torch.tensor([4, 4, 4]))
    assert int(table.lookups[4]) == 2**31 - 1


def test_without_a_threshold_nothing_is_counted_or_promoted():
    table = adaptive()
    table(EVERYONE)
    table.adapt()
    assert table.lookups is None
    assert table.num_rows == 6


@pytest.mark.parametrize("above", [-1, 2**31])
def test_the_threshold_has_to_be_a_count(above):
    with pytest.raises(CelrecError, match=f"promote_above must lie in .* not {above}"):
        adaptive(promote_above=above)


@pytest.mark.parametrize("above", [None, 2])
def test_new_ids_begin_as_they_were_while_unseen(above):
    table = trained(promote_above=above)
    before = table(EVERYONE)
    table.grow(IDS + 5)
    assert torch.equal(table(EVERYONE), before)
    table.promote(torch.tensor([IDS + 4]))
    assert table.row_of(torch.tensor(IDS + 4)) == 9
    fresh = adaptive(promote_above=above)
    fresh.load_state_dict(copy.deepcopy(table.state_dict()))
    assert fresh.num_embeddings == IDS + 5
    assert torch.equal(fresh(EVERYONE), table(EVERYONE))
    with pytest.raises(CelrecError, match="can only grow"):
        table.grow(IDS)


def test_the_settings_and_the_state_restore_the_table():
    table = trained(promote_above=2, seed=9, padding_idx=3)
    table(EVERYONE)
    fresh = AdaptiveEmbedding(**table.settings())
    fresh.load_state_dict(copy.deepcopy(table.state_dict()))
    assert torch.equal(fresh(EVERYONE), table(EVERYONE))
    assert fresh.settings() == table.settings()


@pytest.mark.parametrize(("rows", "width"), [(510, 1), (512, 2), (2 * 2**15, 4)])
def test_private_rows_are_numbered_by_the_narrowest_integers(rows, width):
    table = AdaptiveEmbedding(2**15, 1, rows=rows)
    table.promote(torch.arange(min(rows // 2, 2**15)))
    last = rows // 2 - 1
    assert int(table.row_of(torch.tensor(last))) == rows - 1
    assert table.memory() == Memory(rows * 4, (2**15 + 1) * width)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_any_integer_has_a_finite_vector(ids):
    assert trained()(torch.tensor(ids, dtype=torch.int64)).isfinite().all()


def test_the_seed_decides_who_shares_and_torch_decides_the_rows():
    torch.manual_seed(3)
    first = adaptive(dim=400, seed=1)
    torch.manual_seed(3)
    second = adaptive(dim=400, seed=2)
    assert torch.equal(first.weight, second.weight)
    assert not torch.equal(first.row_of(EVERYONE), second.row_of(EVERYONE))
    assert float(first.weight.detach().square().sum(1).mean()) == pytest.approx(1, abs=0.15)


def test_it_says_how_many_rows_are_private():
    assert repr(trained()) == "AdaptiveEmbedding(40, 3, private=3 of 5)"
