import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.tree import TreeEmbedding

IDS = 12
UNSEEN = [-1, IDS, 2**40, -(2**63)]
EVERYONE = torch.tensor([*range(IDS), *UNSEEN])


def tree(rows=4, dim=3, ids=IDS, **options):
    return TreeEmbedding(ids, dim, rows=rows, **options)


def planted(**options):
    table = tree(**options)
    table.grow_tree(torch.Generator().manual_seed(0))
    return table


def with_leaves(leaves, **options):
    leaves = torch.as_tensor(leaves)
    table = tree(ids=len(leaves), dim=leaves.shape[1], dtype=leaves.dtype, **options)
    with torch.no_grad():
        table.weight[:-1] = leaves
    return table


def slow_penalty(table):
    """By loops over leaves and centres."""
    centres, total = table.centre.tolist(), 0.0
    for leaf, number in zip(table.weight[:-1].tolist(), table.assignment.tolist(), strict=True):
        total += sum((a - b) ** 2 for a, b in zip(leaf, centres[number], strict=True))
    if table.root:
        root = table.root_row.tolist()
        total += sum((a - b) ** 2 for centre in centres for a, b in zip(centre, root, strict=True))
    return table.pull / 2 * total


@pytest.mark.parametrize("root", [True, False])
def test_the_penalty_is_that_of_a_loop(root):
    table = planted(root=root, pull=1.7)
    assert table.penalty().item() == pytest.approx(slow_penalty(table))
    with torch.no_grad():
        table.centre.normal_()
        table.root_row.normal_()
        table.assignment.copy_(torch.randint(4, (IDS,)))
    assert table.penalty().item() == pytest.approx(slow_penalty(table))


def test_the_penalty_draws_leaves_to_their_centres_and_leaves_the_tree_alone():
    table = planted(pull=1.7)
    table.penalty().backward()
    apart = table.weight[:-1] - table.centre[table.assignment.long()]
    torch.testing.assert_close(table.weight.grad[:-1], (1.7 * apart).detach())
    assert not table.weight.grad[-1].any()
    assert [name for name, _ in table.named_parameters()] == ["weight"]


@st.composite
def leaves(draw):
    """Some leaves, of few values so that there are many that are equal."""
    count, dim = draw(st.integers(1, 30)), draw(st.integers(1, 2))
    value = st.one_of(st.integers(-3, 3), st.floats(-10, 10, width=32))
    line = st.lists(value, min_size=dim, max_size=dim)
    rows = draw(st.lists(line, min_size=count, max_size=count))
    return torch.tensor(rows, dtype=torch.float64), draw(st.integers(1, count))


@given(leaves(), st.booleans(), st.integers(0, 99))
def test_adapting_never_raises_the_penalty_once_there_is_a_tree(drawn, root, seed):
    found, rows = drawn
    table = with_leaves(found, rows=rows, root=root)
    table.draw_centres(torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(3):
        before = table.penalty().item()
        table.adapt()
        assert table.penalty().item() <= before * (1 + 1e-9) + 1e-9
        assert 0 <= int(table.assignment.min()) <= int(table.assignment.max()) < rows
        with torch.no_grad():  # leaves move, as they do in training
            table.weight += 0.5 * torch.randn(table.weight.shape, generator=generator)


@given(leaves(), st.booleans(), st.integers(0, 99))
def test_a_tree_in_any_state_is_not_made_worse(drawn, root, seed):
    found, rows = drawn
    table = with_leaves(found, rows=rows, root=root)
    generator = torch.Generator().manual_seed(seed)
    table.centre.copy_(torch.randn(table.centre.shape, generator=generator))
    table.root_row.copy_(torch.randn(table.root_row.shape, generator=generator))
    table.assignment.copy_(torch.randint(rows, (len(found),), generator=generator))
    before = table.penalty().item()
    table.adapt()
    assert table.penalty().item() <= before * (1 + 1e-9)


@settings(max_examples=50)
@given(leaves(), st.booleans())
def test_where_leaves_have_settled_everyone_is_with_the_nearest_centre(drawn, root):
    found, rows = drawn
    table = with_leaves(found, rows=rows, root=root)
    for _ in range(20):
        table.adapt()
    apart = (found[:, None] - table.centre).square().sum(-1)
    own = apart.gather(1, table.assignment.long()[:, None]).squeeze(1)
    assert bool((own <= apart.min(1).values + 1e-6).all())
    # And centres are where the penalty is least, given who is with them.
    for number in range(rows):
        members = found[table.assignment == number]
        if root:
            best = (members.sum(0) + table.root_row) / (len(members) + 1)
        elif len(members):
            best = members.mean(0)
        else:
            continue
        torch.testing.assert_close(table.centre[number], best, rtol=1e-4, atol=1e-4)


def test_no_centre_stays_without_leaves_while_that_would_help():
    found = torch.tensor([[0.0], [1.0], [10.0], [11.0], [20.0]])
    for root in (True, False):
        table = with_leaves(found, rows=3, root=root)
        table.centre.copy_(torch.tensor([[5.0], [500.0], [-500.0]]))
        table.root_row.fill_(10)
        table.adapt()
        assert set(table.assignment.tolist()) == {0, 1, 2}
    groups = [table.assignment.tolist()[place] for place in (0, 2, 4)]
    assert table.assignment.tolist() == [groups[0]] * 2 + [groups[1]] * 2 + [groups[2]]


@pytest.mark.parametrize("root", [True, False])
def test_leaves_that_are_all_the_same_leave_centres_empty_and_cost_nothing(root):
    table = with_leaves(torch.full((6, 2), 3.0), rows=4, root=root)
    table.grow_tree(torch.Generator().manual_seed(0))
    assert table.penalty().item() == pytest.approx(0, abs=1e-9)
    settled = table.settled()
    assert settled.num_rows <= 4
    assert bool((settled(torch.arange(6)) == 3).all())


def test_leaves_that_are_all_zero_can_be_adapted():
    table = with_leaves(torch.zeros(6, 2), rows=4)
    table.adapt()
    table.adapt()
    assert table.penalty().item() == 0
    assert not table.settled()(torch.arange(6)).any()


def test_a_tree_that_nobody_began_begins_by_itself():
    table = with_leaves(torch.randn(30, 2), rows=5)
    assert not table.centre.any()
    table.adapt()
    first = table.centre.clone()
    assert len(first.unique(dim=0)) == 5
    again = with_leaves(table.weight[:-1].detach(), rows=5)
    again.adapt()
    assert again.centre.equal(first)


def test_the_first_centres_are_leaves_far_from_each_other_as_a_rule():
    # Two leaves out of a hundred are far away: k-means++ begins with them, chance would not.
    found = torch.cat([torch.rand(98, 2), torch.tensor([[100.0, 0.0], [0.0, 100.0]])])
    for seed in range(20):
        table = with_leaves(found, rows=3)
        table.draw_centres(torch.Generator().manual_seed(seed))
        centres = {tuple(centre) for centre in table.centre.tolist()}
        assert centres <= {tuple(leaf) for leaf in found.tolist()}
        assert {(100.0, 0.0), (0.0, 100.0)} <= centres
        torch.testing.assert_close(table.root_row, table.centre.mean(0))


def test_the_first_centres_are_drawn_by_the_square_of_the_distance():
    found = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    # Of two draws from three leaves, one is left out; by hand, over the first leaf drawn:
    chances = {0: (9 / 10, 1 / 10), 1: (4 / 5, 1 / 5), 2: (9 / 13, 4 / 13)}
    pairs = {(0, 1): 0.0, (0, 2): 0.0, (1, 2): 0.0}
    for first, (high, low) in chances.items():
        others = [2, 1] if first == 0 else [2, 0] if first == 1 else [0, 1]
        for other, chance in zip(others, (high, low), strict=True):
            pairs[tuple(sorted((first, other)))] += chance / 3
    drawn = dict.fromkeys(pairs, 0)
    table = with_leaves(found, rows=2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2000):
        table.draw_centres(generator)
        chosen = sorted(found.flatten().tolist().index(one) for one in table.centre.flatten())
        drawn[tuple(chosen)] += 1
    for pair, count in drawn.items():
        assert count / 2000 == pytest.approx(pairs[pair], abs=0.04)


def test_without_a_root_it_is_k_means():
    found = torch.tensor([[0.0, 0.0], [2.0, 0.0], [10.0, 0.0], [14.0, 0.0]])
    table = with_leaves(found, rows=2, root=False)
    table.grow_tree(torch.Generator().manual_seed(0))
    assert table.centre.sort(0).values.tolist() == [[1.0, 0.0], [12.0, 0.0]]
    assert table.penalty().item() == pytest.approx(table.pull / 2 * (1 + 1 + 4 + 4))


def test_with_a_root_centres_are_drawn_to_it():
    found = torch.tensor([[0.0], [12.0]])
    table = with_leaves(found, rows=2)
    for _ in range(20):
        table.grow_tree(torch.Generator().manual_seed(0))
    assert table.root_row.item() == pytest.approx(6, abs=1e-3)
    assert table.centre.sort(0).values.flatten().tolist() == pytest.approx([3, 9], abs=1e-3)


@pytest.mark.parametrize("root", [True, False])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("padding", [None, 3])
def test_what_is_settled_is_what_is_served(root, share, padding):
    table = planted(root=root, share=share, padding_idx=padding)
    leaves_ = table(EVERYONE).detach()
    with table.as_served():
        served = table(EVERYONE).detach()
    assert table(EVERYONE).equal(leaves_)
    settled = table.settled()
    assert settled(EVERYONE).equal(served)
    assert served.equal(leaves_) != share
    assert type(settled) is (ClusteredEmbedding if share else FullEmbedding)
    assert settled.memory() == table.memory()
    assert settled.padding_idx == padding


def test_it_is_served_no_longer_if_something_fails():
    table = planted()
    before = table(EVERYONE)
    with pytest.raises(KeyError), table.as_served():
        raise KeyError
    assert table(EVERYONE).equal(before)


def test_each_id_is_served_the_row_of_its_centre_and_unseen_ones_that_of_most_ids():
    table = planted()
    with table.as_served():
        served = table(EVERYONE)
    labels = table.assignment.tolist()
    most = max(range(4), key=lambda label: (labels.count(label), -label))
    assert served.tolist() == [table.centre[label].tolist() for label in [*labels] + [most] * 4]


def test_settled_tables_hold_no_centre_that_nobody_has():
    table = planted()
    table.assignment.copy_(torch.tensor([2, 0] * 6))
    settled = table.settled()
    assert settled.num_rows == settled.max_clusters == 2
    assert settled(torch.arange(2)).equal(table.centre[[2, 0]])
    assert table.memory().table == 2 * 3 * 4


def test_a_settled_table_is_no_part_of_the_tree():
    for share in (True, False):
        table = planted(share=share)
        settled = table.settled()
        state = copy.deepcopy(table.state_dict())
        with torch.no_grad():
            settled.weight += 1
        for name, value in table.state_dict().items():
            assert torch.equal(value, state[name])


def test_unseen_ids_have_the_mean_leaf_in_training():
    table = planted()
    expected = table.weight[:-1].detach().mean(0)
    for vector in table(torch.tensor(UNSEEN)).detach():
        torch.testing.assert_close(vector, expected)


def test_the_budget_is_for_the_centres_if_they_are_shared():
    assert planted(rows=4).overrun == 1
    assert planted(rows=4).rows_requested == 4
    assert planted(rows=4, share=False).rows_requested is None
    assert planted(rows=4, share=False).overrun == 1


def test_settings_that_make_no_sense_are_reported():
    for rows in (0, IDS + 1):
        with pytest.raises(CelrecError, match=f"rows must lie in 1 … 12 .the ids., not {rows}"):
            tree(rows=rows)
    with pytest.raises(CelrecError, match=r"pull must not be negative, not -0\.5"):
        tree(pull=-0.5)
    with pytest.raises(CelrecError, match="cannot grow from 12 to"):
        tree().grow(13)
    with pytest.raises(CelrecError, match="cannot grow from 12 to"):
        tree(share=False).grow(13)
