import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import Plan, Planted
from celrec.cel.tangent_kernels import Tangents
from celrec.config.building import make_model
from celrec.config.online import OnlineClusterConfig, OnlineConfig, RowDescentConfig
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.posterior import IMPOSSIBLE, PosteriorEmbedding
from celrec.models.dot_product import DotProduct
from celrec.models.interaction import LOSSES
from celrec.online.make_trainer import initialise_tables, make_trainer
from celrec.online.mixtures import (
    MixtureTrainer,
    add_evidence,
    add_tangent_evidence,
    weigh,
)
from celrec.online.table_trainer import Observation
from celrec.recommender.batch import Batch, FeatureTables
from celrec.recommender.model import Model

IDS, DIM, ROWS = 5, 2, 4
STEPS = 16 / math.log(2)
SCALE = np.array([2 ** (-e / 16) for e in range(255)] + [0], np.float32)


def ids_of(*numbers):
    return torch.tensor(numbers, dtype=torch.int64)


def slow_weights(evidence):
    weights = [0.0 if e == IMPOSSIBLE else 2 ** (-e / 16) for e in evidence]
    return [weight / sum(weights) for weight in weights]


# The loops.

evidences = st.lists(st.integers(0, 254), min_size=ROWS, max_size=ROWS).map(
    lambda values: [value - min(values) for value in values]
)
event_losses = st.lists(st.floats(0, 3), min_size=ROWS, max_size=ROWS)


@given(st.lists(evidences, min_size=1, max_size=5), st.data())
def test_weights_are_those_of_the_formula_for_the_first_rows(evidence, data):
    ids = data.draw(st.lists(st.integers(-1, len(evidence) - 1), max_size=6))
    rows = data.draw(st.integers(1, ROWS))
    for one in evidence:
        one[0] = min(one[0], 254)
        one[rows:] = [IMPOSSIBLE] * (ROWS - rows)
    weights = np.empty((len(ids), rows), np.float32)
    weigh(np.array(evidence, np.uint8), np.array(ids, np.int64), SCALE, weights)
    expected = [slow_weights(evidence[one])[:rows] for one in ids]
    np.testing.assert_allclose(weights, np.reshape(expected, weights.shape), rtol=1e-5)


def slow_evidence(evidence, events, kept):
    """What would be known were there no rounding, as far as a byte can hold it."""
    known = [float(e) for e in evidence]
    for losses, share in zip(events, kept, strict=True):
        known = [share * e + STEPS * loss for e, loss in zip(known, losses, strict=True)]
        known = [min(e - min(known), 254) for e in known]
    return known


def added(evidence, ids, losses, kept=None, moment=0):
    table = np.array(evidence, np.uint8)
    kept = np.ones(len(ids)) if kept is None else np.array(kept)
    values = np.array(losses, np.float32).reshape(len(ids), -1).T
    moments = moment + np.arange(len(ids))
    add_evidence(table, np.array(ids, np.int64), values, kept.astype(np.float32), STEPS, moments)
    return table


@given(evidences, st.lists(event_losses, min_size=1, max_size=4), st.integers(0, 2**62), st.data())
def test_evidence_is_added_up_to_the_rounding_of_each_event(evidence, events, moment, data):
    kept = [data.draw(st.sampled_from([1.0, 0.9, 0.5])) for _ in events]
    found = added([evidence], [0] * len(events), events, kept, moment)[0].tolist()
    assert min(found) == 0  # the best row is the one without evidence against it
    assert max(found) < IMPOSSIBLE
    # An event is rounded by less than a step, in every row, the best one included.
    for value, exact in zip(found, slow_evidence(evidence, events, kept), strict=True):
        assert abs(value - exact) <= 2 * len(events) + 1e-2


def test_one_event_is_rounded_to_one_of_its_neighbours_and_the_best_row_exactly():
    losses = np.linspace(0, 5, 40)
    found = added(np.zeros((1, 40)), [0], [losses])[0]
    exact = STEPS * losses
    assert found[0] == 0
    assert (np.abs(found - exact) < 1).all()
    assert (added(np.zeros((1, 2)), [0], [[0.0, 99.0]]) == [[0, 254]]).all()


def test_rounding_is_right_in_the_mean_and_independent_between_events():
    many, rows = 20_000, 9
    losses = np.array([0, 0.01, 0.05, 0.1, 0.213, 0.3, 0.44, 1.0, 2.9])
    found = added(np.zeros((many, rows)), range(many), np.tile(losses, (many, 1)), moment=77)
    np.testing.assert_allclose(found.mean(0), STEPS * losses, atol=5 * 0.5 / math.sqrt(many))
    for row in range(1, rows):
        one, next_one = found[:-1, row].astype(float), found[1:, row].astype(float)
        assert abs(np.corrcoef(one, next_one)[0, 1]) < 5 / math.sqrt(many)


def test_a_thousand_small_events_are_not_rounded_away():
    events = 1000
    found = added(np.zeros((50, 2)), np.tile(range(50), events), np.tile([0, 0.005], (50_000, 1)))
    assert found[:, 1].mean() == pytest.approx(STEPS * 5, rel=0.05)
    assert (found[:, 0] == 0).all()


@given(
    st.lists(st.tuples(st.integers(0, 2), event_losses), min_size=1, max_size=6),
    st.integers(0, 2**40),
)
def test_a_batch_comes_to_the_same_as_its_events_one_by_one(events, moment):
    table = np.zeros((3, ROWS), np.uint8)
    together = added(table, [one for one, _ in events], [losses for _, losses in events])
    for number, (one, losses) in enumerate(events):
        table = added(table, [one], [losses], moment=number)
    assert (together == table).all()
    again = [added(table, [one], [losses], moment=moment) for one, losses in events]
    same = [added(table, [one], [losses], moment=moment) for one, losses in events]
    assert all((a == b).all() for a, b in zip(again, same, strict=True))


@given(st.lists(event_losses, min_size=2, max_size=5), st.randoms())
def test_the_order_of_events_matters_through_rounding_alone(events, random):
    events = [[loss / 3 for loss in losses] for losses in events]
    mixed = random.sample(events, len(events))
    count = len(events)
    one, other = (added([[0] * ROWS], [0] * count, e)[0].astype(int) for e in (events, mixed))
    assert (np.abs(one - other) <= 4 * count).all()


@given(
    st.sampled_from(["squared-error", "cross-entropy"]),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=5),
    st.sampled_from([0.3, 1.0, 3.0]),
    st.integers(0, 2**20),
)
def test_evidence_by_tangents_is_that_of_the_losses_of_their_outputs(loss, events, size, seed):
    rng = np.random.default_rng(seed)
    count = len(events)
    rows, slopes, vectors = (
        (size * rng.normal(size=shape)).astype(np.float32)
        for shape in ((ROWS, DIM), (count, DIM), (count, DIM))
    )
    outputs = rng.normal(size=count).astype(np.float32)
    ids, targets = (np.array(column) for column in zip(*events, strict=True))
    losses = np.empty((count, ROWS))
    for event in range(count):
        for k in range(ROWS):
            output = outputs[event] + slopes[event] @ (rows[k] - vectors[event])
            losses[event, k] = slow_loss(loss, float(output), int(targets[event]))[0]
    kept = rng.choice([1.0, 0.8], size=count).astype(np.float32)
    table = np.zeros((3, ROWS), np.uint8)
    arrays = outputs, slopes, vectors, targets.astype(np.float32)
    add_tangent_evidence(
        *(table, ids, np.ascontiguousarray(rows.T), Tangents(*arrays, loss == "cross-entropy")),
        *(kept, STEPS, 5 + np.arange(count)),
    )
    expected = added(np.zeros((3, ROWS)), ids, losses, kept, moment=5)
    # A loss that is looked up in a table, or summed in another order, may be rounded otherwise.
    assert (np.abs(table.astype(int) - expected) <= 1 + count // 2).all()
    assert (table.min(1) == 0).all()


# A table on its own.


class Given:
    """Tells losses that were made up."""

    kind = "made up"

    def __init__(self, losses):
        self.told = torch.tensor(losses, dtype=torch.float32)

    def losses(self, side, batch, candidates, vectors=None):
        assert candidates.shape == (len(self.told), 1, DIM)
        return self.told

    def gradients(self, side, batch):
        raise AssertionError


def make_side(evidence=None, **options):
    torch.manual_seed(0)
    table = PosteriorEmbedding(IDS, DIM, rows=ROWS)
    if evidence is not None:
        table.evidence[: len(evidence)] = torch.tensor(evidence, dtype=torch.uint8)
    how = options.pop("how", RowDescentConfig(rule="sgd", average=False))
    return MixtureTrainer("users", table, how, **options)


def batch_of(ids, target=None):
    target = torch.zeros(len(ids)) if target is None else target
    return Batch(ids, torch.zeros_like(ids), target)


def observe(side, ids, losses, *, again=False):
    side.observe(Observation(batch_of(ids), ids, {}, again), Given(losses))


@given(st.lists(evidences, min_size=IDS, max_size=IDS))
def test_vectors_are_those_of_the_table(evidence):
    side = make_side(evidence)
    ids = ids_of(0, 4, 2, 2, -1)
    torch.testing.assert_close(side.lookup(ids), side.table(ids).detach())


@pytest.mark.parametrize("average", [False, True])
def test_a_row_learns_from_each_event_as_much_as_it_weighs_there(average):
    evidence = [[0, 9, 40, 250], [16, 0, 0, 5], [0, 0, 0, 0]]
    how = RowDescentConfig(rule="sgd", learning_rate=0.5, average=average)
    side = make_side(evidence, how=how)
    rows = side.table.weight.detach().clone().tolist()
    ids, pulls = [0, 1, 1, 2], [[1.0, -2.0], [0.5, 3.0], [-1.0, 0.25], [4.0, 1.0]]
    side.lookup(ids_of(*ids))
    side.learn(torch.tensor(pulls))
    for k, row in enumerate(rows):
        weights = [slow_weights(evidence[one])[k] for one in ids]
        share = max(sum(weights), 1) if average else 1
        for d in range(DIM):
            pull = sum(w * g[d] for w, g in zip(weights, pulls, strict=True)) / share
            assert side.table.weight[k, d].item() == pytest.approx(row[d] - 0.5 * pull, abs=1e-5)


@given(st.sampled_from([0.5, 1.0, 3.0]), st.lists(event_losses, min_size=IDS, max_size=IDS))
def test_events_multiply_the_weights_by_their_likelihoods(temperature, losses):
    evidence = [[0, 9, 40, 50], [16, 0, 0, 5], [0, 0, 0, 0], [3, 2, 1, 0], [90, 0, 80, 0]]
    side = make_side(evidence, temperature=temperature)
    observe(side, torch.arange(IDS), np.transpose(losses))
    for one in range(IDS):
        exact = [
            math.log2(weight) - loss / temperature / math.log(2)
            for weight, loss in zip(slow_weights(evidence[one]), losses[one], strict=True)
        ]
        exact = [max((value - max(exact)) * 16, -254) for value in exact]
        np.testing.assert_allclose(-side.table.evidence[one].numpy().astype(int), exact, atol=1.01)
    assert side.table.evidence[-1].tolist() == [0] * ROWS  # nobody knows more of unseen ids


@given(st.lists(event_losses, min_size=IDS, max_size=IDS), st.sampled_from([1.0, 2.5]))
def test_an_event_that_comes_again_is_taken_out_of_the_weights_for_its_own_training(
    losses, temperature
):
    losses = np.transpose(losses)
    side = make_side(temperature=temperature)
    side.begin()
    ids = torch.arange(IDS)
    before = side.table.weights(ids)
    observe(side, ids, losses)
    side.lookup(ids)
    vectors = side.without(batch_of(ids), {}, Given(losses))
    # But for the rounding of the one event: a sixteenth of a bit for a row.
    weights = torch.from_numpy(side.weights)
    assert bool(((weights / before).log2().abs() <= 2 / 16 + 1e-3).all())
    torch.testing.assert_close(vectors, weights @ side.table.weight.detach())
    # Rows learn with these weights, not with those that know of the event.
    rows = side.table.weight.detach().clone()
    side.learn(torch.ones(IDS, DIM))
    pulled = weights.sum(0).unsqueeze(1).expand(-1, DIM)
    torch.testing.assert_close(side.table.weight.detach(), rows - 0.1 * pulled)


def test_what_was_looked_up_beside_the_events_keeps_its_weights():
    side = make_side()
    side.begin()
    side.lookup(torch.arange(IDS))
    before = side.weights.copy()
    side.without(batch_of(ids_of(0, 1)), {}, Given([[0.0, 3.0]] * 2 + [[1.0, 0.0]] * 2))
    assert (side.weights[2:] == before[2:]).all()
    assert (side.weights[:2] != before[:2]).all()


def test_nobody_has_no_event_that_could_be_taken_out():
    side = make_side()
    side.table.evidence[-1] = torch.tensor([0, 30, 10, 60])
    ids = ids_of(-1, 0)
    before = side.lookup(ids)
    side.table.evidence[0, 1] = 1
    losses = [[0.0, 0.0], [3.0, 3.0], [1.0, 1.0], [2.0, 2.0]]
    after = side.without(batch_of(ids), {}, Given(losses))
    torch.testing.assert_close(after[0], before[0])
    assert not torch.equal(after[1], before[1])


def test_later_passes_keep_the_total_of_the_evidence():
    side = make_side()
    count, losses = 10, [0.0, 0.1, 0.2, 0.5]
    ids = torch.zeros(count, dtype=torch.int64)
    told = np.tile(losses, (count, 1)).T
    observe(side, ids, told)
    first = side.table.evidence[0].tolist()
    np.testing.assert_allclose(first, STEPS * count * np.array(losses), atol=5)
    for _ in range(30):
        observe(side, ids, told, again=True)
    # Each event replaces its share: the sum of count, or of one more at the most.
    for k, loss in enumerate(losses):
        exact = STEPS * count * loss
        assert exact - 4 <= side.table.evidence[0, k] <= min(exact * (1 + 1 / count) + 8, 254)
    assert side.counts.tolist() == [count]


def test_later_passes_forget_what_events_told_when_rows_were_others():
    side = make_side()
    ids = torch.zeros(5, dtype=torch.int64)
    observe(side, ids, [[0.0] * 5, *[[1.0] * 5] * 3])
    assert side.table.nearest(ids_of(0)).item() == 0
    for _ in range(8):
        observe(side, ids, [[1.0] * 5, [0.0] * 5, *[[1.0] * 5] * 2], again=True)
    assert side.table.nearest(ids_of(0)).item() == 1
    assert side.table.evidence[0, 0] > 80  # of 115: what 5 events tell


# How ids begin.


def test_ids_begin_apart_from_each_other():
    table = PosteriorEmbedding(3000, DIM, rows=8, first_rows=6)
    side = MixtureTrainer("users", table, RowDescentConfig())
    side.begin()
    assert bool((table.evidence[:, 6:] == IMPOSSIBLE).all())
    assert table.evidence[-1, :6].tolist() == [0] * 6
    logs = table.weights(torch.arange(3000))[:, :6].log()
    spread = (logs - logs.mean(1, keepdim=True)).std()
    assert float(spread) == pytest.approx(0.5 * math.sqrt(5 / 6), rel=0.05)
    nearest = np.bincount(table.nearest(torch.arange(3000)).numpy(), minlength=6)
    assert nearest.min() > 350


def test_new_ids_begin_apart_and_old_ones_stay():
    side = make_side()
    side.begin()
    before = side.table.evidence[:IDS].clone()
    side.grow(IDS + 200)
    assert torch.equal(side.table.evidence[:IDS], before)
    assert side.table.evidence[-1].tolist() == [0] * ROWS
    assert len(torch.unique(side.table.evidence, dim=0)) > 150
    side.grow(IDS + 400)
    halves = side.table.evidence[IDS : IDS + 200], side.table.evidence[IDS + 200 : -1]
    assert not torch.equal(*halves)


@pytest.mark.parametrize("seed", [0, 1, 2**32 + 1, 2**63 - 1])
def test_the_seed_decides_how_ids_begin(seed):
    sides = [make_side(seed=seed), make_side(seed=seed), make_side(seed=2**40 + 5)]
    for side in sides:
        side.begin()
        side.grow(IDS + 50)
    one, same, other = (side.table.evidence for side in sides)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_sweep_lets_unseen_ids_have_the_mean_of_the_weights():
    table = PosteriorEmbedding(IDS, DIM, rows=ROWS + 1, first_rows=ROWS)
    side = MixtureTrainer("users", table, RowDescentConfig())
    side.sweep(Given([]))
    assert table.evidence[-1].tolist() == [0] * ROWS + [IMPOSSIBLE]  # nobody is known
    observe(side, ids_of(0, 1, 1, 3), [[0.0] * 4, [0.1] * 4, [2.0] * 4, [0.5] * 4])
    before = table.evidence[:-1].clone()
    mean = table.weights(ids_of(0, 1, 3)).mean(0)
    side.sweep(Given([]))
    assert torch.equal(table.evidence[:-1], before)
    found = table.weights(ids_of(-1))[0]
    assert found[-1] == 0  # the row that is not there
    torch.testing.assert_close(found, mean, rtol=0.05, atol=1e-6)


def test_rows_that_are_alike_are_merged_and_the_heaviest_is_split():
    """Among two tables, of which the other one looks many events up while it moves ids."""
    torch.manual_seed(0)
    nothing = FeatureTables([], DIM)
    users, items = ClusteredEmbedding(IDS, DIM, max_clusters=4), PosteriorEmbedding(9, DIM, rows=5)
    model = Model(users, items, DotProduct(), nothing, nothing)
    how = OnlineConfig(moving=OnlineClusterConfig(limit=3.0, merge_within=0.05, schedule="always"))
    initialise_tables(how, model, 0.0)
    trainer = make_trainer(how, model)
    with torch.no_grad():
        items.weight[3] = items.weight[1] + 0.001
    rng = np.random.default_rng(0)
    for _ in range(100):
        columns = rng.integers(0, IDS, size=(2, 8))
        user, item = (torch.from_numpy(column) for column in columns)
        with torch.no_grad():  # held together until they are compared
            items.weight[3] = items.weight[1]
        trainer.step(Batch(user, item, torch.from_numpy(rng.normal(size=8)).float()))
        assert items.num_rows == 5
    apart = torch.cdist(items.weight, items.weight).fill_diagonal_(torch.inf)
    assert apart.min() > 1e-3


# Bytes and state.


def test_bytes_are_those_of_the_descent_and_the_counts():
    side = make_side(how=RowDescentConfig())
    before = side.nbytes
    assert before == side.descent.nbytes
    observe(side, torch.arange(IDS), np.zeros((ROWS, IDS)))
    assert side.nbytes >= before + 8 * IDS


def test_a_state_goes_on_as_if_nothing_had_happened():
    side = make_side(how=RowDescentConfig())
    side.begin()

    def go_on(side, *, again):
        ids = ids_of(0, 1, 1, 3)
        side.lookup(ids)
        side.learn(torch.ones(4, DIM))
        observe(side, ids, np.arange(16).reshape(4, 4) / 9, again=again)

    go_on(side, again=False)
    fresh = make_side(how=RowDescentConfig())
    fresh.table.load_state_dict(copy.deepcopy(side.table.state_dict()))
    fresh.load_state_dict(copy.deepcopy(side.state_dict()))
    for one in (side, fresh):
        go_on(one, again=True)
        go_on(one, again=False)
    assert torch.equal(side.table.evidence, fresh.table.evidence)
    assert torch.equal(side.table.weight, fresh.table.weight)
    assert side.counts.tolist() == fresh.counts.tolist()


# Together with a model.


def trainer_for(loss, *, both=True, temperature=1.0):
    torch.manual_seed(1)
    nothing = FeatureTables([], DIM)
    users = PosteriorEmbedding(IDS, DIM, rows=3)
    items = PosteriorEmbedding(IDS, DIM, rows=2) if both else FullEmbedding(IDS, DIM)
    recommender = Model(users, items, DotProduct(), nothing, nothing, loss=LOSSES[loss])
    plain = RowDescentConfig(rule="sgd", learning_rate=0.1, average=False)
    how = OnlineConfig(shared=plain, plain=plain, temperature=temperature)
    trainer = make_trainer(how, recommender)
    for side in trainer.sides.values():
        side.begin()
    return trainer


def slow_loss(loss, output, target):
    if loss == "squared-error":
        return (output - target) ** 2, 2 * (output - target)
    softplus = max(output, 0) + math.log1p(math.exp(-abs(output)))
    return softplus - target * output, 1 / (1 + math.exp(-output)) - target


@pytest.mark.parametrize("loss", ["squared-error", "cross-entropy"])
@given(st.lists(st.tuples(*[st.integers(0, IDS - 1)] * 2, st.integers(0, 1)), max_size=8))
@settings(max_examples=30)
def test_a_batch_of_events_is_learned_as_by_hand(loss, events):
    if not events:
        return
    trainer = trainer_for(loss, temperature=1.5)
    tables = trainer.recommender.whole_tables
    known = {name: table.evidence.tolist() for name, table in tables.items()}
    rows = {name: table.weight.detach().double().numpy() for name, table in tables.items()}
    user, item, target = (torch.tensor(column) for column in zip(*events, strict=True))
    outputs = trainer.step(Batch(user, item, target.float()))
    # The same with loops over events and rows.
    weights = [
        (np.array(slow_weights(known["users"][u])), np.array(slow_weights(known["items"][i])))
        for u, i, _ in events
    ]
    vectors = [(p @ rows["users"], q @ rows["items"]) for p, q in weights]
    slow_outputs = [float(v @ w) for v, w in vectors]
    np.testing.assert_allclose(outputs, slow_outputs, rtol=1e-4, atol=1e-5)
    moved = {name: row.copy() for name, row in rows.items()}
    for (p, q), (v, w), output, event in zip(weights, vectors, slow_outputs, events, strict=True):
        slope = slow_loss(loss, output, event[2])[1]
        moved["users"] -= 0.1 * np.outer(p, slope * w)
        moved["items"] -= 0.1 * np.outer(q, slope * v)
    for name, table in tables.items():
        np.testing.assert_allclose(table.weight.detach(), moved[name], rtol=1e-4, atol=1e-5)
    for (v, w), (u, i, x) in zip(vectors, events, strict=True):
        for name, one, partner in (("users", u, w), ("items", i, v)):
            tried = [slow_loss(loss, float(row @ partner), x)[0] for row in moved[name]]
            told = [e + STEPS / 1.5 * loss for e, loss in zip(known[name][one], tried, strict=True)]
            known[name][one] = [e - min(told) for e in told]
    for name, table in tables.items():
        found, most = table.evidence.numpy().astype(float), 2 * len(events)
        exact = np.minimum(known[name], 254)
        np.testing.assert_allclose(
            found[(exact < 240).all(1)], exact[(exact < 240).all(1)], atol=most
        )


@pytest.mark.parametrize("again", [False, True])
def test_no_event_is_trained_on_with_weights_that_its_own_label_chose(again):
    """The vectors of a batch are the same whatever its labels: only so is nothing leaked."""
    ids = ids_of(0, 1, 1, 0, 2)
    outputs = []
    for flipped in (False, True):
        trainer = trainer_for("cross-entropy")
        target = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
        batch = Batch(ids, ids.flip(0), 1 - target if flipped else target)
        if again:
            for _ in range(3):
                trainer.step(Batch(ids, ids.flip(0), target))
        outputs.append(trainer.step(batch).tolist())
    assert outputs[0] == outputs[1]


class Exactly:
    """A judge of whose loss nobody knows the name, so that every row is tried."""

    kind = "made up"

    def __init__(self, probe):
        self.losses = probe.losses


@pytest.mark.parametrize(
    ("model", "kind"),
    [("mf", "squared-error"), ("mf", "cross-entropy"), ("nmf", "squared-error")],
)
def test_what_is_taken_out_by_tangents_is_what_trying_every_row_takes_out(model, kind):
    log = Planted(rows=300, users=30, items=25).interactions()
    plan = Plan(embedding="cel-lite", model=model, compression="6", side="both", loss=kind)
    log = dataclasses.replace(log, target=(log.target > 3).astype(np.float32))
    recommender, how = make_model(log, plan), plan.settings().solver
    initialise_tables(how, recommender, mean=0.5)
    trainer = make_trainer(how, recommender)
    batch = recommender.batch(log, slice(0, 200), own=True)
    for side in trainer.sides.values():
        side.begin()
    trainer.step(batch)
    for name, side in trainer.sides.items():
        with torch.no_grad():
            vectors = trainer.look_up(batch)
            quickly = side.without(batch, vectors, trainer)
            vectors = trainer.look_up(batch)
            slowly = side.without(batch, vectors, Exactly(trainer))
        assert not torch.allclose(quickly, vectors[name])
        torch.testing.assert_close(quickly, slowly, rtol=1e-4, atol=1e-5)
