import copy
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import celrec
from celrec import CelrecError
from celrec.cel.clusterer import Clusterer
from celrec.config.offline import MinibatchConfig, OfflineConfig, Schedule
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.models.deepfm import DeepFM
from celrec.models.dien import DIEN
from celrec.models.din import DIN
from celrec.models.interaction import LOSSES, rating_and_conversion
from celrec.models.mmoe import MMoE
from celrec.offline.minibatch import MinibatchDescent
from celrec.offline.training import OfflineTraining
from celrec.recommender.batch import FeatureTables
from celrec.recommender.model import Model
from celrec.runtime.state_file import load_state, save_state

DIM, USERS, ITEMS, SHOPS = 4, 12, 15, 4


def make_log(rows=120, shops=False):
    log = celrec.Planted(rows, USERS, ITEMS, dim=2, item_clusters=3).interactions()
    if shops:
        table = log.to_frame().with_columns(shop=pl.Series(np.arange(rows) * 7 % SHOPS))
        log = celrec.read(table, columns=["shop"])
    return log


def recommender(log, model=DeepFM, loss="squared-error", *, seed=0, clusters=4, started=3):
    torch.manual_seed(seed)
    width = DIM + model.extra_columns
    nothing = FeatureTables([], width)
    items = ClusteredEmbedding(log.num_items, width, max_clusters=clusters)
    if started:
        items.start_from(torch.arange(log.num_items) % started)
    return Model(
        FullEmbedding(log.num_users, width),
        items,
        model(DIM, len(log.columns)),
        nothing,
        nothing,
        columns={name: FullEmbedding(len(c.ids), width) for name, c in log.columns.items()},
        history_length=3 if model in (DIN, DIEN) else 0,
        loss=rating_and_conversion(3.0) if model is MMoE else LOSSES[loss],
    )


def trainer(model, log, seed=0, **how):
    return MinibatchDescent(model, log, MinibatchConfig(**how), seed)


def numbers_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same_state(one, two):
    assert list(one) == list(two)
    for name, value in one.items():
        assert torch.equal(value, two[name]), name


# The settings.


@pytest.mark.parametrize(
    "name", ["learning_rate", "batch", "rounds", "spread", "per_id", "candidates"]
)
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_what_must_be_positive_is_told(name, value):
    with pytest.raises(CelrecError, match=f"{name} must be positive, not {value}"):
        MinibatchConfig(**{name: value})


def test_penalties_are_not_negative():
    MinibatchConfig(l2=0.0)
    with pytest.raises(CelrecError, match="l2 must not be negative"):
        MinibatchConfig(l2=-0.5)


@pytest.mark.parametrize("averaging", [-0.1, 1.0, 2.0])
def test_an_average_forgets_something_and_not_more_than_all(averaging):
    MinibatchConfig(averaging=0.0)
    with pytest.raises(CelrecError, match=r"averaging must lie in \[0, 1\), not"):
        MinibatchConfig(averaging=averaging)


# One batch after the other.


class SlowAdam:
    """Adam as its paper writes it, on the loss as `MinibatchConfig` writes it, number by number."""

    def __init__(self, model, log, how):
        self.model, self.log, self.how = model, log, how
        model.remember(log)
        self.anchors = {s: t.weight.detach().clone() for s, t in model.tables.items()}
        self.moments = {name: [0.0, 0.0] for name, _ in model.named_parameters()}
        self.averages, self.steps = {}, 0

    def loss(self, batch):
        model, how = self.model, self.how
        weight = torch.ones(len(batch.user)) if batch.weight is None else batch.weight
        total = (model.objective(batch) * weight).sum()
        looked_up = {"users": batch.user, "items": batch.item}
        for place, name in enumerate(model.column_names):
            looked_up[name] = batch.columns[:, place]
        for side, ids in looked_up.items():
            rows = model.tables[side].row_of(ids)
            for n, row in enumerate(rows.tolist()):
                apart = model.tables[side].weight[row] - self.anchors[side][row]
                total = total + weight[n] * how.l2 * apart.square().sum()
        return total / weight.sum()

    def step(self, batch):
        named = dict(self.model.named_parameters())
        slopes = torch.autograd.grad(self.loss(batch), list(named.values()), allow_unused=True)
        self.steps += 1
        with torch.no_grad():
            for (name, parameter), slope in zip(named.items(), slopes, strict=True):
                first, second = self.moments[name]
                first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
                self.moments[name] = [first, second]
                mean, square = first / (1 - 0.9**self.steps), second / (1 - 0.999**self.steps)
                parameter -= self.how.learning_rate * mean / (square.sqrt() + 1e-8)
                # The first ten states have one weight; then the average forgets more slowly.
                share = max(1 - self.how.averaging, min(1.0, 10 / (self.steps + 1)))
                before = self.averages.get(name, parameter.clone())
                self.averages[name] = (1 - share) * before + share * parameter


@settings(max_examples=10)
@given(
    how=st.builds(
        MinibatchConfig,
        learning_rate=st.just(1e-2),
        batch=st.just(10**6),
        rounds=st.just(1),
        l2=st.sampled_from([0.0, 0.7]),
        averaging=st.sampled_from([0.0, 0.5, 0.95, 0.999]),
    ),
    kind=st.sampled_from([(DeepFM, False), (DeepFM, True), (DIN, True), (MMoE, True)]),
)
def test_steps_are_those_of_adam_written_out(how, kind):
    log = make_log(40, shops=kind[1])
    model = recommender(log, kind[0])
    if kind != (DeepFM, False):  # the weights of collapsed samples have single precision
        model.double()  # Adam makes large steps of rounding errors where slopes should be 0
    twin = copy.deepcopy(model)
    descent, slow = MinibatchDescent(model, log, how, 5), SlowAdam(twin, log, how)
    for _ in range(3):  # four batches each
        order = descent.round_order()
        size = -(-len(order) // 4)
        for numbers in torch.split(order, size):
            slow.step(descent.samples.take(numbers))
        descent.step()
        for (name, value), expected in zip(
            model.named_parameters(), twin.parameters(), strict=True
        ):
            torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-4, msg=name)
    with descent.averaged():
        for name, value in model.named_parameters():
            # The last rows of full tables, for unseen ids, are another matter.
            trained = slice(None)
            if name == "users.weight" or name.startswith("column_tables"):
                trained = slice(len(value) - 1)
            expected = slow.averages[name]
            torch.testing.assert_close(
                value[trained], expected[trained], rtol=1e-3, atol=1e-4, msg=name
            )


def test_rows_are_drawn_to_where_they_were_or_to_zero_if_they_begin_anew():
    log = make_log()
    for fresh in (False, True):
        model = recommender(log)
        descent = trainer(model, log, l2=1e3, learning_rate=1e-2)
        if fresh:
            descent.start(0)
        goal = 0 * model.users.weight if fresh else model.users.weight
        goal = goal.detach().clone()
        with torch.no_grad():
            model.users.weight += 0.1
        for _ in range(60):
            descent.step()
        apart = (model.users.weight - goal)[:-1].abs().max()
        assert float(apart.detach()) < 0.03  # and not 0.1 or more


def test_it_begins_with_small_rows_and_the_mean():
    log = make_log(2000)
    model = recommender(log, DIN)
    network = numbers_of(model.model)
    descent = trainer(model, log, spread=0.2)
    descent.start(3)
    weight = model.users.weight.detach()
    assert abs(float(weight.std()) - 0.2) < 0.05
    assert model.model.tower.bias.item() == pytest.approx(float(log.target.mean()), rel=1e-5)
    after = numbers_of(model.model)
    changed = [name for name in after if not torch.equal(after[name], network[name])]
    assert changed == ["tower.rest.3.bias"]  # the constant at the top
    again = recommender(log, DIN)
    trainer(again, log, spread=0.2).start(3)
    assert torch.equal(again.users.weight, model.users.weight)
    trainer(again, log, spread=0.2).start(4)
    assert not torch.equal(again.users.weight, model.users.weight)


def test_training_lowers_the_loss():
    for loss, log in (("squared-error", make_log(800)), ("ranking", make_log(60))):
        model = recommender(log, DIN, loss)
        descent = trainer(model, log, learning_rate=1e-2)
        descent.start(0)
        before = descent.loss(log)
        losses = [descent.step() / len(log) for _ in range(30)]
        assert descent.loss(log) < 0.9 * before
        assert min(losses[-3:]) < 0.9 * losses[0]


def test_the_loss_of_a_step_is_that_of_all_interactions_if_nothing_moves():
    log = make_log(400)
    for model in (DeepFM, DIN):  # collapsed, and not
        made = recommender(log, model)
        descent = trainer(made, log, learning_rate=1e-12, rounds=1)
        plain = made.objective(made.batch(log, slice(None), own=True)).sum()
        assert descent.step() == pytest.approx(float(plain.detach()), rel=1e-4)


def test_the_loss_on_data_from_outside_is_a_mean_and_always_the_same():
    log = make_log(300)
    model = recommender(log, DIN)
    descent = trainer(model, log, batch=64)
    outside = log[::2]
    expected = np.mean((model.predict(outside).numpy() - outside.target) ** 2)
    assert descent.loss(outside) == pytest.approx(float(expected), rel=1e-5)
    assert np.isnan(descent.loss(log[:0]))
    ranked = trainer(recommender(log, DIN, "ranking"), log, batch=64)
    assert ranked.loss(outside) == ranked.loss(outside)


# What a round is.


@given(st.integers(1, 200), st.integers(1, 12), st.integers(0, 3))
@settings(max_examples=25)
def test_an_epoch_visits_every_interaction_once_in_rounds_of_one_size(rows, rounds, seed):
    log = make_log(200)[:rows]
    descent = trainer(recommender(log, DIN), log, seed, rounds=rounds)
    epochs = []
    for _ in range(2):
        parts = []
        for _ in range(min(rounds, rows)):
            parts.append(descent.round_order())
            descent.rounds += 1
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) > 0  # a round without a sample would be a step without a gradient
        epochs.append(torch.cat(parts))
        assert sorted(epochs[-1].tolist()) == list(range(rows))
    assert rows < 6 or not torch.equal(*epochs)


def batches_of(descent, rounds):
    """What is looked at in some rounds, batch by batch."""
    taken, take = [], descent.samples.take

    def watched(numbers):
        taken.append(numbers)
        return take(numbers)

    descent.samples.take = watched
    for _ in range(rounds):
        descent.step()
    return taken


def test_steps_take_the_rounds_one_after_the_other():
    log = make_log(100)
    descent = trainer(recommender(log, DIN), log, rounds=5, batch=7)
    taken = batches_of(descent, 5)
    assert sorted(torch.cat(taken).tolist()) == list(range(100))
    assert max(map(len, taken)) <= 7


def test_a_small_log_gets_small_batches():
    log = make_log(120)
    sizes = [len(n) for n in batches_of(trainer(recommender(log, DIN), log, rounds=1), 1)]
    assert sizes == [30] * 4
    sizes = [len(n) for n in batches_of(trainer(recommender(log, DIN), log, rounds=10), 1)]
    assert sizes == [3] * 4


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_rounds_without_any_interaction_do_no_harm(rows):
    log = make_log(120)
    for model, loss in ((DIEN, "squared-error"), (DeepFM, "ranking"), (DeepFM, "cross-entropy")):
        made = recommender(log, model, loss)
        descent = trainer(made, replace(log[:rows], target=np.ones(rows)), l2=1.0)
        descent.start(0)
        assert all(np.isfinite(descent.step()) for _ in range(11))
        with descent.averaged():
            assert all(bool(p.isfinite().all()) for p in made.parameters())


def test_the_same_seed_comes_to_the_same_and_another_to_another():
    log = make_log()
    for kind, loss in ((DeepFM, "squared-error"), (DIEN, "ranking")):
        states = []
        for seed in (0, 0, 1):
            model = recommender(log, kind, loss)
            descent = trainer(model, log, seed, rounds=2)
            for _ in range(3):
                descent.step()
            states.append(numbers_of(model))
        assert_same_state(states[0], states[1])
        assert not torch.equal(states[0]["users.weight"], states[2]["users.weight"])


def test_nobody_elses_random_numbers_are_used():
    log = make_log()
    descent = trainer(recommender(log, DIEN, "ranking"), log)
    before = torch.get_rng_state()
    descent.start(0)
    descent.step()
    descent.evidence("items").losses()
    assert torch.equal(torch.get_rng_state(), before)


# The average.


def test_the_average_is_there_only_where_it_is_asked_for():
    log = make_log()
    model = recommender(log, DIN)
    descent = trainer(model, log, averaging=0.9)
    for _ in range(6):
        descent.step()
    before = numbers_of(model)
    with descent.averaged():
        inside = numbers_of(model)
    assert_same_state(numbers_of(model), before)
    assert not torch.equal(inside["users.weight"], before["users.weight"])
    assert not torch.equal(inside["model.tower.first.linear.weight"], before["users.weight"])
    with pytest.raises(KeyError), descent.averaged():
        raise KeyError
    assert_same_state(numbers_of(model), before)


def test_before_the_first_step_there_is_no_average():
    log = make_log()
    model = recommender(log, DIN)
    descent, before = trainer(model, log), numbers_of(model)
    with descent.averaged():
        inside = numbers_of(model)
    del inside["users.weight"], before["users.weight"]  # that of unseen users is their mean
    assert_same_state(inside, before)


def test_whoever_was_never_seen_is_like_the_mean_of_the_others():
    log = make_log(400)
    some = log[(log.user != 3) & (log.user != 7)]
    model = recommender(log, DIN)
    descent = trainer(model, some, averaging=0.0)
    descent.start(0)
    for _ in range(3):
        descent.step()
    before = numbers_of(model)["users.weight"]
    with descent.averaged():
        inside = numbers_of(model)["users.weight"]
    trained = [u for u in range(USERS) if u not in (3, 7)]
    assert torch.equal(inside[trained], before[trained])
    for row in (3, 7, USERS):
        torch.testing.assert_close(inside[row], before[trained].mean(0))
        assert not torch.allclose(before[row], inside[row])


def test_missing_ids_in_a_further_column_keep_what_they_learned():
    log = make_log(200, shops=True)
    values = log.columns["shop"].values.copy()
    values[::3], values[values == 2] = -1, 1  # nobody is left in shop 2
    log = replace(log, columns={"shop": replace(log.columns["shop"], values=values)})
    model = recommender(log, DIN)
    descent = trainer(model, log, averaging=0.0)
    for _ in range(3):
        descent.step()
    before = model.tables["shop"].weight.detach().clone()
    with descent.averaged():
        inside = model.tables["shop"].weight.detach().clone()
    seen = [0, 1, 3, SHOPS]  # the last row is that of no shop at all
    assert torch.equal(inside[seen], before[seen])
    torch.testing.assert_close(inside[2], before[[0, 1, 3, SHOPS]].mean(0))


# Clusters that split.


def test_a_split_changes_nothing_at_first():
    log = make_log(300)
    model = recommender(log, DIN, started=2)
    descent = trainer(model, log, l2=0.5, averaging=0.9)
    descent.start(0)
    for _ in range(4):
        descent.step()
    with torch.no_grad():
        descent.state_dict()["anchors"]["items"].normal_()
    with descent.averaged():
        judged = model.predict(log)
    clusterer = Clusterer(
        model.items, descent.optimizer, descent.evidence("items"), split_every=1, reassign_every=0
    )
    (move,) = clusterer.step()
    assert (move.kind, move.clusters) == ("split", 3)
    with descent.averaged():
        assert torch.equal(model.predict(log), judged)
    for name, state in descent.optimizer.state[model.items.weight].items():
        assert name == "step" or torch.equal(state[2], state[move.cluster]), name
    anchor = descent.anchor("items")
    assert torch.equal(anchor[2], anchor[move.cluster])
    assert not torch.equal(anchor[2], anchor[1 - move.cluster])
    assert not torch.equal(anchor[2], anchor[3])
    # Once copied, an anchor stays where it is.
    with torch.no_grad():
        anchor[move.cluster] += 1
    assert not torch.equal(descent.anchor("items")[2], anchor[move.cluster])


# Stopped and resumed.


def kept_in_memory(state, _):
    return copy.deepcopy(state)


def kept_in_a_file(state, folder):
    save_state(folder / "state", state)
    return load_state(folder / "state")


@pytest.mark.parametrize("keep", [kept_in_memory, kept_in_a_file])
@pytest.mark.parametrize(
    ("kind", "loss"),
    [(DeepFM, "squared-error"), (DIN, "ranking"), (DIEN, "squared-error"), (MMoE, "two")],
)
def test_going_on_from_a_state_is_never_to_have_stopped(kind, loss, keep, tmp_path):
    log = make_log(150, shops=True)
    how = MinibatchConfig(rounds=3, l2=0.5, averaging=0.9)

    def fresh(seed):
        model = recommender(log, kind, loss, seed=seed, clusters=12, started=2)
        descent = MinibatchDescent(model, log, how, 1)
        moves = {"split_every": 1, "reassign_every": 2}
        return (
            model,
            descent,
            Clusterer(model.items, descent.optimizer, descent.evidence("items"), **moves),
        )

    def run(steps, descent, clusterer):
        return [descent.step() for _ in range(steps) if [clusterer.step()]]

    model, descent, clusterer = fresh(0)
    run(4, descent, clusterer)
    clusters = model.items.num_clusters
    parts = {"model": model.state_dict(), "solver": descent.state_dict()}
    state = keep({**parts, "clusterer": clusterer.state_dict()}, tmp_path)
    losses = run(5, descent, clusterer)
    assert model.items.num_clusters > clusters > 2

    other, second, third = fresh(1)
    other.load_state_dict(state["model"])
    second.load_state_dict(state["solver"])
    third.load_state_dict(state["clusterer"])
    assert run(5, second, third) == losses
    assert_same_state(numbers_of(other), numbers_of(model))
    with descent.averaged(), second.averaged():
        assert_same_state(numbers_of(other), numbers_of(model))
    for side, anchor in descent.state_dict()["anchors"].items():
        assert torch.equal(second.state_dict()["anchors"][side], anchor)


def test_whole_training_goes_on_as_if_it_had_never_stopped(tmp_path):
    split = celrec.Split.random(make_log(400, shops=True))
    schedule = Schedule(12, 2, 0.0, 3, validate_every=3)
    how = OfflineConfig(solver=MinibatchConfig(rounds=3, l2=0.1), schedule=schedule)

    def fresh(seed):
        model = recommender(split.train, DIEN, seed=seed, started=0)
        return OfflineTraining(model, split.train, split.valid, how)

    class Stopped(BaseException):
        pass

    def stop_at(validation_records):
        def watch(_):
            nonlocal validation_records
            validation_records -= 1
            if not validation_records:
                raise Stopped

        return watch

    whole = fresh(0)
    whole.start()
    whole.run()
    stopped = fresh(0)
    stopped.start()
    with pytest.raises(Stopped):
        stopped.run(stop_at(2))
    save_state(tmp_path / "state", stopped.state_dict())
    resumed = fresh(1)
    resumed.load_state_dict(load_state(tmp_path / "state"))
    resumed.run()
    assert resumed.validation_records == whole.validation_records
    assert whole.grown_to == resumed.grown_to == {"items": 4}
    assert_same_state(numbers_of(resumed.model), numbers_of(whole.model))


# What DIEN wants besides.


def test_the_auxiliary_loss_of_dien_trains_what_tells_the_next_item():
    log = make_log(300)
    model = recommender(log, DIEN)
    descent = trainer(model, log)
    before = numbers_of(model.model)
    batch = descent.with_negatives(descent.samples.take(torch.arange(300)), torch.Generator())
    assert batch.not_next.shape == batch.history.shape
    assert set(batch.not_next.flatten().tolist()) == set(range(ITEMS))
    loss = float(model.auxiliary(batch).detach())
    for _ in range(20):
        descent.step()
    after = numbers_of(model.model)
    assert not torch.equal(
        after["next_item.first.linear.weight"], before["next_item.first.linear.weight"]
    )
    assert float(model.auxiliary(batch).detach()) < loss


def test_models_that_want_no_negatives_get_none():
    log = make_log()
    descent = trainer(recommender(log, DIN), log)
    batch = descent.with_negatives(descent.samples.take(torch.arange(5)), torch.Generator())
    assert batch.not_next is batch.worse is None
    ranked = trainer(recommender(log, DIN, "ranking"), log)
    batch = ranked.with_negatives(ranked.samples.take(torch.arange(120)), torch.Generator())
    known = set(zip(log.user.tolist(), log.item.tolist(), strict=True))
    worse = list(zip(batch.user.tolist(), batch.worse.tolist(), strict=True))
    assert sum(pair in known for pair in worse) < 6  # none, but for those who know nearly all
