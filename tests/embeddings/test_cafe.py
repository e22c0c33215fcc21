import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.cafe import CafeEmbedding
from celrec.embeddings.hashing import ModuloEmbedding

IDS = 60
UNSEEN = [-1, -IDS, -(2**40), IDS, 2**40, 2**63 - 1, -(2**63)]
EVERYONE = torch.tensor([*range(IDS), *UNSEEN])


def cafe(dim=16, rows=24, **options):
    """A table with 6 private rows and 12 shared ones, unless message otherwise."""
    return CafeEmbedding(IDS, dim, rows=rows, **options)


def pull(table, scores):
    """Give each id a gradient of the norm that is message."""
    ids = torch.tensor(list(scores))
    direction = torch.zeros(len(ids), table.embedding_dim)
    direction[:, 0] = torch.tensor([float(score) for score in scores.values()])
    (table(ids) * direction).sum().backward()


def heat(table, scores):
    """Add to the sketch itself."""
    table.sketch.add(torch.tensor(list(scores)), torch.tensor([float(s) for s in scores.values()]))


def private(table):
    return EVERYONE[table.private(EVERYONE)].tolist()


def trained(**options):
    """Ids 7, 0 and 59 have private rows, and all rows differ."""
    table = cafe(**options)
    heat(table, {7: 3, 0: 2, 59: 1})
    table.adapt()
    with torch.no_grad():
        table.weight += torch.arange(len(table.weight))[:, None]
    return table


def test_hot_ids_have_rows_after_the_shared_ones_and_the_others_are_hashed():
    table = trained(seed=4)
    assert (table.shared_rows, table.hot_rows, table.num_rows) == (12, 6, 15)
    hashed = ModuloEmbedding(IDS, 16, rows=12, seed=4).row_of(EVERYONE).tolist()
    own = {7: 12, 0: 13, 59: 14}
    slow = [own.get(one, h) for one, h in zip(EVERYONE.tolist(), hashed, strict=True)]
    assert table.row_of(EVERYONE).tolist() == slow
    assert table(EVERYONE).tolist() == table.weight[slow].tolist()
    assert private(table) == [0, 7, 59]
    assert torch.equal(
        table(EVERYONE[:60].view(5, 12).t()), table(EVERYONE[:60]).view(5, 12, 16).transpose(0, 1)
    )


@given(st.integers(1, 400), st.integers(1, 64), st.floats(0, 1))
def test_the_budget_holds_the_rows_and_what_leads_to_them(rows, dim, share):
    table = CafeEmbedding(IDS, dim, rows=rows, hot_share=share)
    budget = rows * dim * 4
    floor = 12 + (48 if table.hot_rows == 0 else 0)  # a place for nobody; a sketch of one bucket
    assert table.memory(training=True).total <= budget + floor
    assert table.memory(training=True).total > budget - dim * 4
    assert table.overrun <= 1
    assert table.shared_rows >= max(1, int((1 - share) * rows))
    assert table(EVERYONE).isfinite().all()


def test_a_gradient_scores_its_norm_over_the_mean_norm_of_the_batch():
    table = cafe(padding_idx=9)
    pull(table, {3: 1, 5: 6, 7: 2, 9: 100, -1: 50, IDS: 50})
    # Padding has no gradient and unseen ids are not message apart: the mean of 1, 6 and 2 is 3.
    ids = torch.tensor([3, 5, 7, 9, -1, IDS])
    torch.testing.assert_close(table.sketch.score(ids), torch.tensor([1 / 3, 2, 2 / 3, 0, 0, 0]))


def test_an_id_gains_with_each_of_its_lookups():
    table = cafe()
    direction = torch.zeros(2, 2, 16)
    direction[..., 1] = torch.tensor([[3.0, -1.0], [2.0, 2.0]])
    (table(torch.tensor([[4, 4], [5, 6]])) * direction).sum().backward()
    torch.testing.assert_close(
        table.sketch.score(torch.tensor([4, 5, 6])), torch.tensor([2.0, 1, 1])
    )


def test_gradients_that_overflowed_or_vanished_leave_no_trace():
    table = cafe()
    pull(table, {1: float("inf"), 2: float("nan"), 3: 0})
    assert not table.sketch.scores.any()
    pull(table, {1: float("inf"), 3: 2})
    assert table.sketch.score(torch.tensor([1, 3])).tolist() == [0, 1]


def test_gradients_are_watched_in_training_alone():
    table = cafe().eval()
    pull(table, {1: 1})
    with torch.no_grad():
        table.train()(EVERYONE)
    assert not table.sketch.scores.any()
    assert table.weight.grad.any()


def test_the_hottest_get_the_rows_and_vectors_stay_the_same():
    table = cafe()
    before = table(EVERYONE)
    heat(table, {one: 1 + one % 13 for one in range(20)})
    ids, _ = table.sketch.hottest(6)
    table.adapt()
    assert private(table) == sorted(ids.tolist())
    assert torch.equal(table(EVERYONE), before)
    assert table.num_rows == len(table.weight) == 18


def test_a_row_changes_hands_only_for_an_id_that_is_much_hotter():
    table = CafeEmbedding(IDS, 16, rows=4)  # one private row
    assert table.hot_rows == 1
    heat(table, {3: 10})
    table.adapt()
    assert private(table) == [3]
    heat(table, {8: 11.9})
    table.adapt()
    assert private(table) == [3]
    with torch.no_grad():
        table.weight += torch.arange(len(table.weight))[:, None]
    vectors = table(EVERYONE).detach()
    heat(table, {8: 0.2})
    table.adapt()
    assert private(table) == [8]
    # Nobody's vector changes but that of the id which goes back to its hashed row.
    changed = (table(EVERYONE) != vectors).any(1).nonzero().flatten().tolist()
    assert changed == [3]
    hashed = ModuloEmbedding(IDS, 16, rows=table.shared_rows).row_of(torch.tensor(3))
    assert torch.equal(table(torch.tensor(3)), table.weight[hashed])


def slow_adapt(own, hottest, score, rows):
    """Which id has which row, as a dictionary, hottest against coldest."""
    new = [one for one in hottest if one not in own.values()]
    for one in new:
        free = [row for row in range(rows) if row not in own]
        # Rows whose holder came in this round are out of reach, as each is fought for once.
        fought = {row: who for row, who in own.items() if who not in new}
        if free:
            own[free[0]] = one
        elif fought:
            row = min(fought, key=lambda r: (score(fought[r]), fought[r]))
            if score(one) > 1.2 * score(fought[row]):
                own[row] = one
            else:
                break
    return own


@given(
    st.lists(
        st.dictionaries(st.integers(0, IDS - 1), st.integers(1, 50), min_size=1, max_size=12),
        max_size=6,
    )
)
def test_rows_are_fought_for_as_a_slow_list_has_it(rounds):
    table, own = cafe(decay=1.0), {}
    for scores in rounds:
        heat(table, scores)
        ids = table.sketch.hottest(6)[0].tolist()
        own = slow_adapt(own, ids, lambda one: float(table.sketch.score(torch.tensor(one))), 6)
        table.adapt()
        rows = {int(table.row_of(torch.tensor(one))) - 12: one for one in private(table)}
        assert rows == own


def test_old_scores_decay_and_hotter_ids_take_over():
    table = cafe(decay=0.5)
    heat(table, {1: 64})
    for _ in range(5):
        table.adapt()
    assert table.sketch.score(torch.tensor(1)) == 2


def test_training_brings_the_ids_with_large_gradients_to_rows_of_their_own():
    torch.manual_seed(0)
    table = cafe()
    optimizer = torch.optim.Adam(table.parameters(), lr=0.01)
    hot = torch.tensor([3, 14, 15, 41, 59, 26])
    for _ in range(10):
        ids = torch.cat([torch.arange(IDS), hot.repeat(3)])
        optimizer.zero_grad()
        (table(ids) * torch.randn(len(ids), 16)).sum().backward()
        optimizer.step()
        table.adapt(optimizer)
    assert private(table) == sorted(hot.tolist())


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.Adagrad])
def test_the_state_of_the_optimiser_goes_along(make):
    table = cafe()
    optimizer = make(table.parameters(), lr=0.1)
    table(EVERYONE).square().sum().backward()
    optimizer.step()
    table.sketch.decay(0)
    heat(table, {5: 100})
    shared = int(table.row_of(torch.tensor(5)))
    table.adapt(optimizer)
    row = int(table.row_of(torch.tensor(5)))
    assert row >= 12
    for state in optimizer.state[table.weight].values():
        if state.dim() == 2:
            assert torch.equal(state[row], state[shared])
            assert state[row].any()


def test_new_ids_begin_as_they_were_while_unseen_and_can_become_hot():
    table = trained()
    before = table(EVERYONE)
    pull(table, {IDS: 5})
    table.adapt()
    assert private(table) == [0, 7, 59]
    table.grow(IDS + 5)
    assert torch.equal(table(EVERYONE), before)
    pull(table, {IDS: 5})
    table.adapt()
    assert private(table) == [0, 7, 59, IDS]
    with pytest.raises(CelrecError, match="can only grow"):
        table.grow(IDS)


def test_the_settings_and_the_state_restore_the_table():
    table = trained(seed=9, padding_idx=3, hot_share=0.7, decay=0.9, dtype=torch.float64)
    fresh = CafeEmbedding(**table.settings(), dtype=torch.float64)
    fresh.load_state_dict(copy.deepcopy(table.state_dict()))
    heat(table, {11: 9})
    heat(fresh, {11: 9})
    twin = copy.deepcopy(table)
    for one in (table, fresh, twin):
        one.adapt()
    assert torch.equal(fresh(EVERYONE), table(EVERYONE))
    assert torch.equal(twin(EVERYONE), table(EVERYONE))
    assert private(fresh) == private(table) == private(twin) == [0, 7, 11, 59]
    assert fresh.settings() == table.settings()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_any_integer_has_a_finite_vector(ids):
    assert trained()(torch.tensor(ids, dtype=torch.int64)).isfinite().all()


@pytest.mark.parametrize(
    "options", [{"hot_share": -0.1}, {"hot_share": 1.5}, {"decay": 0}, {"decay": 1.1}]
)
def test_shares_and_decay_have_bounds(options):
    with pytest.raises(CelrecError, match=f"{next(iter(options))} must .* not"):
        cafe(**options)


def test_the_seed_decides_who_shares_and_torch_decides_the_rows():
    torch.manual_seed(3)
    first = cafe(seed=1)
    torch.manual_seed(3)
    second = cafe(seed=2)
    assert torch.equal(first.weight, second.weight)
    assert not torch.equal(first.row_of(EVERYONE), second.row_of(EVERYONE))
    norms = CafeEmbedding(IDS, 400, rows=50).weight.detach().square().sum(1)
    assert float(norms.mean()) == pytest.approx(1, abs=0.15)


def test_it_says_how_many_rows_are_private():
    assert "private=3 of 6" in repr(trained())
