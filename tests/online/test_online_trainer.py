import copy
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.config.online import OnlineClusterConfig, OnlineConfig, RowDescentConfig
from celrec.embeddings.binary_code import BinaryCodeEmbedding
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.embeddings.prehash import PreHashEmbedding
from celrec.models.deepfm import DeepFM
from celrec.models.dien import DIEN
from celrec.models.din import DIN
from celrec.models.dot_product import BiasedDotProduct
from celrec.models.interaction import LOSSES, rating_and_conversion
from celrec.models.mmoe import MMoE
from celrec.models.neumf import NeuMF
from celrec.models.wide_deep import WideDeep
from celrec.online.make_trainer import initialise_tables, make_trainer
from celrec.recommender.batch import HISTORY, Batch, FeatureTables
from celrec.recommender.model import Model
from celrec.runtime.state_file import load_state, save_state

DIM, LENGTH, FIRST = 3, 4, 6


def soft(ids, dim):
    return PosteriorEmbedding(ids, dim, rows=4)


def hard(ids, dim):
    return ClusteredEmbedding(ids, dim, max_clusters=5)


def plain(ids, dim):
    return FullEmbedding(ids, dim)


def modulo(ids, dim):
    return ModuloEmbedding(ids, dim, rows=4)


def composed(ids, dim):
    return BinaryCodeEmbedding(ids, dim, rows=6)


def levels(ids, dim):
    table = LevelledEmbedding(ids, dim, max_clusters=3, levels=2)
    for number, level in enumerate(table.clustered_levels, 1):
        level.start_from(torch.arange(ids) // number % 3)
    return table


def prehash(ids, dim):
    table = PreHashEmbedding(40, dim, rows=4, k=2)  # it cannot grow
    table.bind(torch.arange(4))
    del ids
    return table


MODELS = {
    "mf": lambda fields: BiasedDotProduct(),  # noqa: ARG005
    "deepfm": lambda fields: DeepFM(DIM, fields),
    "din": lambda fields: DIN(DIM, fields),
}
MOVING = OnlineClusterConfig(latest=4, candidates=3, limit=8.0, own_row_above=9)
KINDS = {
    "soft": (soft, soft, soft),
    "hard": (hard, hard, hard),
    "replay": (hard, hard, hard),
    "plain": (plain, modulo, plain),
    "composed": (composed, prehash, composed),
    "levels": (levels, levels, levels),
    "all": (soft, hard, plain),
    "others": (hard, composed, soft),
}


def make(kind="soft", model="mf", loss="squared-error", *, columns=1, seed=0, **options):
    torch.manual_seed(7)
    columns = columns if model != "mf" else 0
    network = MODELS[model](columns) if isinstance(model, str) else model(DIM, columns)
    width = DIM + network.extra_columns
    users, items, *further = KINDS[kind]
    nothing = FeatureTables([], width)
    told = rating_and_conversion(1.0) if isinstance(network, MMoE) else LOSSES[loss]
    recommender = Model(
        users(FIRST, width),
        items(FIRST, width),
        network,
        nothing,
        nothing,
        columns={"shop": further[0](FIRST, width)} if columns else {},
        history_length=LENGTH if network.uses_history else 0,
        loss=told,
    )
    replay = kind == "replay"
    assignment = "hard" if replay else "soft"
    settings = {"assignment": assignment, "replay": replay, "moving": MOVING, "seed": seed}
    how = OnlineConfig(**{**settings, **options})
    initialise_tables(how, recommender, 0.5)
    trainer = make_trainer(how, recommender)
    for side in trainer.sides.values():
        side.begin()
    return trainer


def stream(batches=6, size=14, *, columns=True, seed=0):
    """Batches in which ids arrive late, and of which some lack an id in a further column."""
    rng = np.random.default_rng(seed)
    for number in range(batches):
        users, items = (rng.integers(0, FIRST + 4 * number, size=size) for _ in range(2))
        shop = rng.integers(-1, 3 + number, size=size) if number != 2 else np.full(size, -1)
        target = torch.from_numpy((rng.random(size) < 0.5).astype(np.float32))
        ids = [torch.from_numpy(one) for one in (users, items, shop)[: 3 if columns else 2]]
        yield Batch.of(ids, target)


def all_batches(trainer, **options):
    return list(stream(columns=bool(trainer.recommender.column_names), **options))


def everything(trainer):
    """All numbers of a trainer and its recommender, by name."""
    found = {}

    def walk(value, name):
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, f"{name}.{key}")
        else:
            found[name] = value.tolist() if isinstance(value, torch.Tensor) else value

    walk(trainer.state_dict(), "trainer")
    walk(dict(trainer.recommender.state_dict()), "model")
    return found


def go_on(trainer, batches, first=0):
    """Every second batch comes again."""
    outputs = []
    for number, batch in enumerate(batches, first):
        outputs.append(trainer.step(batch).tolist())
        if number % 2:
            outputs.append(trainer.step(batch, again=True).tolist())
    return outputs


CASES = [
    *((kind, "deepfm", "cross-entropy") for kind in KINDS),
    *((kind, "mf", "squared-error") for kind in ("soft", "hard", "replay", "others")),
    *((kind, "din", "squared-error") for kind in ("soft", "replay", "all")),
]


@pytest.mark.parametrize(("kind", "model", "loss"), CASES)
def test_to_stop_after_any_batch_and_go_on_is_as_never_to_have_stopped(kind, model, loss, tmp_path):
    whole = make(kind, model, loss)
    batches = all_batches(whole, batches=4)
    outputs = go_on(whole, batches)
    expected = everything(whole)
    before = make(kind, model, loss)
    for stop in range(1, len(batches)):
        made = go_on(before, batches[stop - 1 : stop], stop - 1)
        state = {"model": before.recommender.state_dict(), "trainer": before.state_dict()}
        save_state(tmp_path / "state", state)
        state = load_state(tmp_path / "state")
        after = make(kind, model, loss)
        after.recommender.load_state_dict(state["model"])
        after.load_state_dict(state["trainer"])
        rest = go_on(after, batches[stop:], stop)
        assert made[0] in outputs
        assert rest == outputs[len(outputs) - len(rest) :]
        assert everything(after) == expected
    if "hard" in kind:
        assert whole.sides["users"].table.num_clusters > 1
        assert whole.sides["users"].moved > 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_and_another_gives_another(kind):
    found = []
    for seed in (3, 3, 4):
        trainer = make(kind, "deepfm", "cross-entropy", seed=seed)
        found.append(go_on(trainer, all_batches(trainer, batches=3)))
    assert found[0] == found[1]
    # Composed tables begin with what torch's seed, which is the same, gave to them.
    assert (found[0] == found[2]) == (kind in ("composed", "levels"))


def neumf(dim, fields):
    return NeuMF(dim, fields, product_dim=1)


@pytest.mark.parametrize("model", [DeepFM, DIN, DIEN, neumf, MMoE, WideDeep])
@pytest.mark.parametrize("kind", ["soft", "replay"])
def test_every_model_learns_online(kind, model):
    trainer = make(kind, model)
    batch = all_batches(trainer, size=30)[0]
    before = copy.deepcopy(trainer.recommender.state_dict())
    losses = []
    for number in range(15):
        outputs = trainer.step(batch, again=number > 0)
        losses.append(float(trainer.recommender.loss.of_samples(outputs, batch.target).mean()))
    assert losses[-1] < losses[0]
    still = [
        name
        for name, value in trainer.recommender.named_parameters()
        if torch.equal(value, before[name])
    ]
    assert all("next_item" in name for name in still)  # for an auxiliary loss alone


# What is predicted.


@pytest.mark.parametrize("model", ["deepfm", "din"])
@pytest.mark.parametrize("kind", ["soft", "hard", "plain", "others"])
def test_outputs_are_those_from_before_the_batch_was_learned(kind, model):
    trainer = make(kind, model)
    batches = all_batches(trainer)
    for batch in batches:
        trainer.step(batch)
    for batch in batches:  # all ids are known by now
        asked = trainer.with_history(batch._replace(moment=torch.full((14,), trainer.events)))
        expected = trainer.recommender(asked)
        torch.testing.assert_close(trainer.step(batch), expected.detach())


def test_labels_do_not_matter_for_what_is_put_out_for_them():
    for kind in KINDS:
        one, other = (make(kind, "deepfm", "cross-entropy") for _ in range(2))
        first, second = all_batches(one)[:2]
        one.step(first)
        other.step(first)
        flipped = second._replace(target=1 - second.target)
        assert one.step(second).tolist() == other.step(flipped).tolist()


def test_an_event_that_comes_again_is_put_out_for_without_what_it_told():
    trainer = make("soft", "deepfm", "cross-entropy")
    batch = all_batches(trainer)[0]
    trainer.step(batch)
    with torch.no_grad():
        vectors = trainer.look_up(batch)
        plain = trainer.recommender.output_from(batch, vectors)
        sides = trainer.sides.items()
        known = {name: side.without(batch, vectors, trainer) for name, side in sides}
        expected = trainer.recommender.output_from(batch, known)
    torch.testing.assert_close(trainer.step(batch, again=True), expected)
    assert not torch.allclose(plain, expected, atol=1e-3)


@pytest.mark.parametrize("model", ["mf", "deepfm", "din", DIEN, neumf, WideDeep])
@pytest.mark.parametrize("kind", ["soft", "hard", "others"])
def test_a_tangent_is_what_outputs_are_near_a_vector(kind, model):
    trainer = make(kind, model, "cross-entropy")
    batches = all_batches(trainer)
    for batch in batches:
        trainer.step(batch)
    batch = batches[0]._replace(moment=torch.full((14,), trainer.events))
    for name in trainer.sides:
        with torch.no_grad():
            output, slope, vector = trainer.tangent(name, batch)
            asked = trainer.with_history(batch)
            vectors = trainer.look_up(asked)
            own = vectors[name]
            noise = torch.randn(own.shape, generator=torch.Generator().manual_seed(1))
            there = trainer.recommender.output_from(asked, vectors)
            torch.testing.assert_close(output + (slope * (own - vector)).sum(1), there)
            for step in (1e-3, 1.0) if model == "mf" else (1e-3,):
                moved = own + step * noise
                expected = trainer.recommender.output_from(asked, {**vectors, name: moved})
                found = output + (slope * (moved - vector)).sum(1)
                torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)
        assert slope.is_contiguous()
        assert not slope.requires_grad
        assert not output.requires_grad


def test_several_outputs_have_no_tangent():
    trainer = make("hard", MMoE)
    batch = all_batches(trainer)[0]
    trainer.step(batch)
    assert trainer.tangent("users", batch) is None


def test_an_empty_batch_teaches_nothing():
    for kind, model in (("soft", "deepfm"), ("replay", "din"), ("all", "mf")):
        trainer = make(kind, model)
        full = all_batches(trainer)[0]
        trainer.step(full)
        before = everything(trainer)
        assert trainer.step(full.at(torch.arange(0))).shape == (0,)
        assert everything(trainer) == before


# Ids.


def test_tables_grow_geometrically_with_new_ids(monkeypatch):
    trainer = make("others", "deepfm")
    grown = Counter()
    for name, side in trainer.sides.items():
        plain_grow = side.grow

        def grow(ids, name=name, plain_grow=plain_grow):
            grown[name] += 1
            plain_grow(ids)

        monkeypatch.setattr(side, "grow", grow)
    for one in range(250):
        ids = [torch.tensor([one])] * 3
        trainer.step(Batch.of(ids, torch.ones(1)))
        sizes = [side.table.num_embeddings for side in trainer.sides.values()]
        assert all(one < size <= max(FIRST, (one + 1) * 9 // 8 + 1) for size in sizes)
    assert all(count <= 35 for count in grown.values())
    assert len(grown) == 3


def test_an_event_without_an_id_is_not_counted_in_that_table():
    trainer = make("hard", "deepfm")
    counts = Counter()
    for batch in all_batches(trainer):
        trainer.step(batch)
        counts.update(one for one in batch.columns[:, 0].tolist() if one >= 0)
    side = trainer.sides["shop"]
    assert side.members.sizes.sum() == len(counts)
    assert all(side.buffer.counts[one] == count for one, count in counts.items())
    assert side.members.events.sum() == sum(counts.values())
    assert trainer.sides["users"].members.events.sum() == trainer.events == 6 * 14


def test_an_event_without_an_id_is_evidence_for_nobody():
    trainer = make("soft", "deepfm")
    batch = all_batches(trainer)[0]
    nobody = batch._replace(columns=torch.full_like(batch.columns, -1))
    shop = trainer.sides["shop"].table
    before, users = shop.evidence.clone(), trainer.sides["users"].table.evidence.clone()
    for again in (False, True):
        trainer.step(nobody, again=again)
    assert torch.equal(shop.evidence, before)
    assert not torch.equal(trainer.sides["users"].table.evidence, users)


# Histories and replay.


class Seen:
    """What a recommender was asked for."""

    def __init__(self, trainer, monkeypatch):
        self.batches = []
        plain_output = trainer.recommender.output_from

        def output_from(batch, vectors):
            self.batches.append((batch, {name: v.shape for name, v in vectors.items()}))
            return plain_output(batch, vectors)

        monkeypatch.setattr(trainer.recommender, "output_from", output_from)


def slow_history(past, moment=None):
    """Of the latest items that are kept those from before a moment, at the end of the row."""
    items = [item for at, item in past[-LENGTH:] if moment is None or at < moment]
    return [-1] * (LENGTH - len(items)) + items


@given(st.sampled_from(["soft", "hard", "replay"]), st.integers(0, 99))
@settings(max_examples=8)
def test_histories_hold_the_latest_items_from_before_each_batch(kind, seed):
    with pytest.MonkeyPatch.context() as patch:
        trainer = make(kind, "din")
        seen, past, number = Seen(trainer, patch), {}, 0
        for batch in all_batches(trainer, seed=seed):
            seen.batches.clear()
            users, items = batch.user.tolist(), batch.item.tolist()
            trainer.step(batch)
            learned, shapes = seen.batches[0]
            expected = [slow_history(past.get(user, [])) for user in users]
            assert learned.history[: len(users)].tolist() == expected
            assert shapes[HISTORY] == (len(learned.user), LENGTH, DIM)
            # Events that are learned or judged later have what was before them.
            replayed = [learned.at(torch.arange(len(users), len(learned.user)))]
            replayed += [other for other, _ in seen.batches[1:] if other.moment is not None]
            for other in replayed:
                for user, moment, history in zip(
                    other.user.tolist(), other.moment.tolist(), other.history.tolist(), strict=True
                ):
                    assert history == slow_history(past.get(user, []), moment)
            for user, item in zip(users, items, strict=True):
                past.setdefault(user, []).append((number, item))
                number += 1


def test_histories_of_events_one_at_a_time_are_exact(monkeypatch):
    trainer = make("soft", "din")
    seen, past = Seen(trainer, monkeypatch), []
    for item in (3, 1, 1, 5, 2, 0, 4):
        seen.batches.clear()
        ids = [torch.tensor([2]), torch.tensor([item]), torch.tensor([0])]
        trainer.step(Batch.of(ids, torch.ones(1)))
        expected = [-1] * (LENGTH - len(past[-LENGTH:])) + past[-LENGTH:]
        assert seen.batches[0][0].history.tolist() == [expected]
        past.append(item)


@pytest.mark.parametrize("kind", ["soft", "hard", "replay"])
def test_histories_that_are_given_are_taken(kind, monkeypatch):
    trainer = make(kind, "din")
    batches = all_batches(trainer)
    for batch in batches[:3]:
        trainer.step(batch)
    seen = Seen(trainer, monkeypatch)
    history = torch.randint(-1, 4, (14, LENGTH), generator=torch.Generator().manual_seed(0))
    for again in (True, False):
        seen.batches.clear()
        trainer.step(batches[0]._replace(history=history), again=again)
        # Another pass first looks how well the events went; all of it is of the same batch.
        asked = [one for one, _ in seen.batches if one.history is not None]
        assert asked[0].history[:14].tolist() == history.tolist()


def test_later_passes_add_nothing_to_histories():
    trainer = make("soft", "din")
    batch = all_batches(trainer)[0]
    trainer.step(batch)
    before = trainer.history.counts.tolist()
    trainer.step(batch, again=True)
    assert trainer.history.counts.tolist() == before


@pytest.mark.parametrize("model", ["mf", "din"])
def test_the_latest_events_of_the_ids_of_a_batch_are_learned_with_it_each_once(model, monkeypatch):
    trainer = make("replay", model)
    seen, log = Seen(trainer, monkeypatch), []
    places = len(trainer.sides)
    for batch in all_batches(trainer):
        ids = [one.tolist() for one in batch.ids()]
        expected = set()
        for place in range(places):
            for one in set(ids[place]) - {-1}:
                own = [number for number, event in enumerate(log) if event[place] == one]
                expected.update(own[-MOVING.latest :])
        seen.batches.clear()
        trainer.step(batch)
        learned, _ = seen.batches[0]
        count = len(batch.user)
        assert learned.moment[count:].tolist() == sorted(expected)
        replayed = list(zip(*(one[count:].tolist() for one in learned.ids()), strict=True))
        assert replayed == [log[number][:-1] for number in sorted(expected)]
        assert learned.target[count:].tolist() == [log[number][-1] for number in sorted(expected)]
        log += list(zip(*ids, batch.target.tolist(), strict=True))


# How it descends.


@pytest.mark.parametrize("again", [False, True])
def test_all_parameters_take_the_gradients_of_the_batch(again):
    """Full tables, so that all is what torch would do."""
    how = RowDescentConfig(rule="sgd", learning_rate=0.1, average=True)
    trainer = make("plain", "deepfm", columns=0, plain=how)
    trainer.recommender.items = trainer.sides["items"].table
    batch = all_batches(trainer)[0]
    slow = copy.deepcopy(trainer.recommender)
    trainer.step(batch, again=again)
    losses = slow.loss.of_samples(slow(batch), batch.target)
    losses.sum().backward()
    for name, ids in (("users", batch.user), ("items", batch.item)):
        table, found = slow.whole_tables[name], trainer.recommender.whole_tables[name]
        counts = torch.bincount(table.row_of(ids), minlength=len(table.weight)).clamp(min=1)
        expected = table.weight.detach() - 0.1 * table.weight.grad / counts.unsqueeze(1)
        torch.testing.assert_close(found.weight.detach(), expected)
    network = dict(slow.model.named_parameters())
    optimizer = torch.optim.Adam(network.values(), lr=1e-3)
    for parameter in network.values():
        parameter.grad /= len(batch.user)
    optimizer.step()
    for name, value in trainer.recommender.model.named_parameters():
        torch.testing.assert_close(value, network[name])


def test_bytes_are_those_of_the_sides_the_network_and_the_histories():
    trainer = make("all", "din")
    trainer.step(all_batches(trainer)[0])
    network = sum(p.numel() for p in trainer.recommender.model.parameters())
    tensors = len(list(trainer.recommender.model.parameters()))
    sides = sum(side.nbytes for side in trainer.sides.values())
    assert trainer.nbytes == sides + trainer.history.nbytes + 8 * network + 4 * tensors


def test_a_sweep_moves_ids_alone():
    trainer = make("hard", "mf")
    for batch in all_batches(trainer, batches=8):
        trainer.step(batch)
    before = copy.deepcopy(trainer.recommender.state_dict())
    moved = trainer.sides["users"].moved
    trainer.sweep()
    after = trainer.recommender.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed <= {"users.assignment", "items.assignment"}
    assert trainer.sides["users"].moved > moved
