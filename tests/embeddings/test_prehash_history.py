import copy
import math
from collections import defaultdict, deque

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.embedding import Memory, Traits
from celrec.embeddings.hashing import hash_ids
from celrec.embeddings.prehash_history import HistoryPreHashEmbedding

IDS, DIM, ROWS = 20, 3, 7
UNSEEN = [-1, -IDS, -(2**40), IDS, 2**40, 2**63 - 1, -(2**63)]
EVERYONE = torch.tensor([*range(IDS), *UNSEEN])


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def made(ids=IDS, dim=DIM, rows=ROWS, **options):
    return HistoryPreHashEmbedding(ids, dim, rows=rows, **options)


def met(**options):
    """Ids with histories of all lengths up to beyond the longest, some of them anchors."""
    table = made(**{"length": 4, **options})
    ids = torch.tensor([one for one in range(IDS) for _ in range(one % 7)])
    table.remember(ids, torch.randint(1000, ids.shape))
    table.bind(torch.tensor([5, 0, 19]))
    return table


def slow_vector(table, one):
    """As it is documented, for one id, by loops, with gradients."""
    rows = len(table.weight)
    seen = 0 <= one < table.num_embeddings
    if seen and int(table.own[one]) < rows:
        return table.weight[int(table.own[one])]
    partners = [p for p in table.history[one].tolist() if p >= 0] if seen else []
    summary = torch.zeros(table.embedding_dim, dtype=table.weight.dtype)
    for partner in partners:
        row = int(hash_ids(torch.tensor(partner), table.seed)) % len(table.partner)
        summary = summary + table.partner[row] / math.sqrt(len(partners))
    hidden = [
        (weight @ summary + bias).clamp(min=0)
        for weight, bias in zip(table.first.weight, table.first.bias, strict=True)
    ]
    logits = [(weight @ torch.stack(hidden)).clamp(min=-10) for weight in table.last.weight]
    best = sorted(range(rows), key=lambda row: -float(logits[row].detach()))[: table.k]
    total = sum(logits[row].exp() for row in best)
    return sum(logits[row].exp() / total * table.weight[row] for row in best)


@pytest.mark.parametrize("k", [None, 1, 2, ROWS, 100])
@pytest.mark.parametrize("partner_rows", [None, 1, 50])
def test_vectors_and_gradients_are_those_of_loops(k, partner_rows):
    table = met(k=k, partner_rows=partner_rows, hidden=16, seed=3, dtype=torch.float64)
    pull = torch.randn(len(EVERYONE), DIM, dtype=torch.float64)
    found, loops = [], [slow_vector(table, one) for one in EVERYONE.tolist()]
    vectors = table(EVERYONE)
    torch.testing.assert_close(vectors, torch.stack(loops))
    for total in ((vectors * pull).sum(), (torch.stack(loops) * pull).sum()):
        table.zero_grad()
        total.backward()
        found.append({name: p.grad for name, p in table.named_parameters()})
    for name, value in found[1].items():
        # A mixture of one row has no weights to learn.
        expected = torch.zeros(()) if value is None else value
        torch.testing.assert_close(found[0][name], expected.expand_as(found[0][name]).double())
        assert bool((expected.abs() > 1e-9).any()) == (name == "weight" or table.k > 1)


def test_logits_far_below_all_others_are_cut_off():
    table = made(rows=2, dim=1, hidden=1, k=2)
    with torch.no_grad():
        table.first.weight.zero_()
        table.first.bias.fill_(1)
        table.last.weight.copy_(torch.tensor([[-1e9], [-9.0]]))
        table.weight.copy_(torch.tensor([[1.0], [0.0]]))
    share = math.exp(-10) / (math.exp(-10) + math.exp(-9))
    assert float(table(torch.tensor(3)).detach()) == pytest.approx(share, rel=1e-5)


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 0, 3)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("k", [None, 2])
def test_ids_of_any_shape_and_type_give_one_more_axis(shape, dtype, k):
    table = met(k=k)
    ids = torch.randint(IDS, shape)
    vectors = table(ids.to(dtype))
    assert vectors.shape == (*shape, DIM)
    torch.testing.assert_close(vectors.reshape(-1, DIM), table(ids.reshape(-1)))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_any_integer_has_a_finite_vector(ids):
    assert met(k=2)(torch.tensor(ids, dtype=torch.int64)).isfinite().all()


def test_ids_without_history_and_unseen_ones_mix_alike():
    table = met(k=3)
    nobody = table(torch.tensor([7, 14, *UNSEEN]))  # nothing was message of 7 and 14
    torch.testing.assert_close(nobody, nobody[:1].expand_as(nobody))
    assert not torch.allclose(table(torch.tensor(8)), nobody[0])


def test_the_same_partners_make_the_same_vector_in_whatever_order():
    table = made(k=2)
    table.remember(torch.tensor([3, 3, 3, 8, 8, 8]), torch.tensor([1, 2, 3, 3, 1, 2]))
    torch.testing.assert_close(table(torch.tensor(3)), table(torch.tensor(8)))


def test_vectors_stay_between_the_rows():
    table = met(k=4)
    with torch.no_grad():
        table.weight.abs_()
    assert table.non_negative_parameters() == [table.weight]
    vectors = table(EVERYONE)
    assert vectors.ge(0).all()
    assert vectors.le(table.weight.amax(0)).all()
    assert vectors.ge(table.weight.amin(0)).all()


def test_an_id_that_comes_later_has_a_learned_vector_at_once():
    """Users of two tastes: what is learned from some serves others with the same taste."""
    table = made(ids=40, dim=4, rows=6, k=2, length=8, partner_rows=200)
    taste = torch.arange(40) % 2
    early, late = torch.arange(30), torch.arange(30, 40)

    def meet(ids):
        ids = ids.repeat(8)
        table.remember(ids, torch.randint(10, ids.shape) * 2 + taste[ids])

    wanted = torch.tensor([[1.0, 0, 1, 0], [0, 1.0, 0, 1]])
    optimizer = torch.optim.Adam(table.parameters(), lr=0.03)
    meet(early)
    for _ in range(100):
        optimizer.zero_grad()
        (table(early) - wanted[taste[early]]).square().mean().backward()
        optimizer.step()
    before = float((table(late).detach() - wanted[taste[late]]).square().mean())
    meet(late)
    after = float((table(late).detach() - wanted[taste[late]]).square().mean())
    assert after < 0.02 < 0.2 < before


# Histories.


@given(
    st.lists(
        st.lists(st.tuples(st.integers(-2, 7), st.integers(-2, 2**31 - 1)), max_size=25),
        max_size=5,
    ),
    st.integers(1, 6),
)
def test_histories_are_those_of_a_loop_with_deques(batches, length):
    table = made(ids=6, length=length)
    slow = defaultdict(lambda: deque(maxlen=length))
    for batch in batches:
        for one, partner in batch:
            if 0 <= one < 6 and partner >= 0:
                slow[one].append(partner)
        pairs = torch.tensor(batch, dtype=torch.int64).view(-1, 2)
        table.remember(pairs[:, 0], pairs[:, 1])
        for one in range(6):
            kept = list(slow[one])
            assert table.history[one].tolist() == [-1] * (length - len(kept)) + kept


def test_pairs_may_come_in_any_shape_and_integer_type():
    one, two = made(), made()
    ids, partners = torch.tensor([[1, 2, 1], [1, 2, 5]]), torch.tensor([[9, 8, 7], [6, 5, 4]])
    one.remember(ids, partners)
    two.remember(ids.reshape(-1).to(torch.uint8), partners.reshape(-1).int())
    assert one.history[1, -3:].tolist() == [9, 7, 6]
    assert torch.equal(one.history, two.history)


def test_remembering_moves_no_parameter_and_no_other_id():
    table = met(k=2)
    before, weights = table(EVERYONE).detach(), copy.deepcopy(list(table.parameters()))
    table.remember(torch.tensor([8]), torch.tensor([123]))
    after = table(EVERYONE).detach()
    assert (before != after).any(1).nonzero().flatten().tolist() == [8]
    assert all(torch.equal(p, q) for p, q in zip(table.parameters(), weights, strict=True))


def test_partners_with_the_same_hash_are_the_same_to_the_table_and_the_seed_decides_which():
    table = made(partner_rows=2, seed=1)
    places = hash_ids(torch.arange(30), 1) % 2
    same, other = (places == places[0]).nonzero()[1], (places != places[0]).nonzero()[0]
    table.remember(torch.tensor([0, 1, 2]), torch.tensor([0, int(same), int(other)]))
    first, second, third = table(torch.arange(3))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert not torch.equal(places, hash_ids(torch.arange(30), 2) % 2)


def test_what_cannot_be_remembered_is_reported_and_changes_nothing():
    table = met()
    before = table.history.clone()
    with pytest.raises(CelrecError, match=r"partners must have the shape of ids, \(2,\), not \(3"):
        table.remember(torch.tensor([1, 2]), torch.tensor([1, 2, 3]))
    with pytest.raises(CelrecError, match="must lie below 2,147,483,648, not 2,147,483,648"):
        table.remember(torch.tensor([1, 2]), torch.tensor([1, 2**31]))
    assert torch.equal(table.history, before)


# Anchors.


def test_anchors_have_rows_to_themselves_whatever_they_met():
    table = met(k=2)
    found = table(torch.tensor([5, 0, 19]))
    assert torch.equal(found, table.weight[:3])
    assert int((table.own < ROWS).sum()) == 3
    found.sum().backward()
    assert table.weight.grad[3:].eq(0).all()
    assert all(p.grad is None or not p.grad.any() for p in (table.partner, table.last.weight))


def test_there_are_no_anchors_at_first_and_no_more_than_rows():
    table = made()
    assert (table.own == ROWS).all()
    table.bind(torch.arange(IDS).flip(0))
    assert table.own.tolist() == [*[ROWS] * 13, *range(ROWS - 1, -1, -1)]
    table.bind(torch.tensor([2]))
    assert (table.own < ROWS).nonzero().flatten().tolist() == [2]


@pytest.mark.parametrize(
    ("anchors", "message"),
    [([1, IDS], f"{IDS} is no known id"), ([-1], "-1 is no known id"), ([4, 4], "occurs twice")],
)
def test_what_cannot_be_an_anchor_is_reported_and_changes_nothing(anchors, message):
    table = met()
    before = table.own.clone()
    with pytest.raises(CelrecError, match=message):
        table.bind(torch.tensor(anchors))
    assert torch.equal(table.own, before)


def test_padding_is_zero_and_takes_no_gradient():
    table = met(padding_idx=3, k=2)
    vectors = table(torch.tensor([3, 8]))
    assert vectors[0].eq(0).all()
    assert vectors[1].ne(0).all()
    vectors[0].sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in table.parameters())


# Growing, saving.


def test_new_ids_begin_as_they_were_while_unseen():
    table = met(k=2)
    before = table(EVERYONE)
    table.grow(IDS + 5)
    torch.testing.assert_close(table(EVERYONE), before)
    table.remember(torch.tensor([IDS + 4]), torch.tensor([6]))
    table.bind(torch.tensor([IDS + 3]))
    fresh = made(k=2, length=4)
    fresh.load_state_dict(copy.deepcopy(table.state_dict()))
    assert fresh.num_embeddings == IDS + 5
    everyone = torch.cat([EVERYONE, torch.arange(IDS, IDS + 5)])
    assert torch.equal(fresh(everyone), table(everyone))
    with pytest.raises(CelrecError, match="can only grow"):
        table.grow(IDS)


def test_the_settings_and_the_state_restore_the_table():
    table = met(k=2, partner_rows=9, hidden=6, seed=5, padding_idx=2)
    fresh = HistoryPreHashEmbedding(**table.settings())
    fresh.load_state_dict(copy.deepcopy(table.state_dict()))
    assert torch.equal(fresh(EVERYONE), table(EVERYONE))
    assert fresh.settings() == table.settings()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [5, 300])
def test_memory_counts_all_that_is_held(dtype, rows):
    table = made(rows=rows, partner_rows=11, hidden=6, length=4, dtype=dtype)
    size, own = dtype.itemsize, 1 if rows == 5 else 2
    network = (DIM + 1) * 6 + 6 * rows
    index = (11 * DIM + network) * size + IDS * (4 * 4 + own)
    assert table.memory() == Memory(rows * DIM * size, index)
    assert table.memory(training=True).total == sum(v.nbytes for v in table.state_dict().values())
    assert table.overrun == 1


def test_traits_are_true():
    """A history of 10 takes 40 bytes, a row of 64 floats 256: 16 are the most that is little."""
    assert made().traits == Traits(low_time=False, low_memory=True, incremental=True)
    assert made(length=16).traits.low_memory
    assert not made(length=17).traits.low_memory
    table = made(ids=10_000, dim=64, rows=100)
    assert table.memory(training=True).total < 0.2 * 10_000 * 64 * 4


def test_histories_and_anchors_do_not_become_floats():
    table = met().to(torch.float64)
    assert (table.history.dtype, table.own.dtype) == (torch.int32, torch.uint8)
    assert table(EVERYONE).dtype == torch.float64


def test_rows_and_logits_begin_in_proportion():
    table = made(dim=40, rows=2000, hidden=64)
    table.remember(torch.arange(IDS).repeat(10), torch.randint(10**6, (10 * IDS,)))
    for rows in (table.weight, table.partner):
        assert float(rows.detach().square().sum(1).mean()) == pytest.approx(1, abs=0.15)
    with torch.no_grad():
        logits = table.last(table.first(table.summary(table.history)).relu())
        nobody = table.last(table.first(torch.zeros(40)).relu())
    assert float(logits.square().mean()) == pytest.approx(1, abs=0.4)
    assert 0.1 < float(nobody.square().mean()) < 1


@pytest.mark.parametrize("name", ["k", "length", "partner_rows", "hidden", "rows"])
def test_sizes_have_to_be_positive(name):
    with pytest.raises(CelrecError, match=f"{name} must be positive, not 0"):
        made(**{name: 0})


def test_it_says_how_many_rows_are_mixed():
    assert str(made(k=2)).startswith("HistoryPreHashEmbedding(\n  20, 3, 2 of 7 rows")
