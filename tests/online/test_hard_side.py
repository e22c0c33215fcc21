import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.cel.tangent_kernels import draw_candidates, hashed
from celrec.config.online import OnlineClusterConfig, RowDescentConfig
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.online.hard_clusters import HardClusterTrainer
from celrec.online.latest_evidence import RecentEvents
from celrec.online.table_trainer import Observation, Tangent
from celrec.recommender.batch import Batch

IDS, PARTNERS, DIM = 12, 7, 3
NEVER = 1e9


class LossProbe:
    """(row·partner − target)², partners being fixed."""

    kind = "squared-error"

    def __init__(self, table, seed=0):
        self.table = table
        generator = torch.Generator().manual_seed(seed)
        self.partners = torch.randn(PARTNERS, DIM, generator=generator)

    def losses(self, side, batch, candidates, vectors=None):
        assert (side, vectors) == ("users", None)
        return ((candidates * self.partners[batch.item]).sum(-1) - batch.target).square()

    def gradients(self, side, batch):
        assert side == "users"
        partner = self.partners[batch.item]
        error = (self.table(batch.user).detach() * partner).sum(-1) - batch.target
        return 2 * error.unsqueeze(1) * partner

    def tangent(self, side, batch):
        assert side == "users"
        partner, own = self.partners[batch.item], self.table(batch.user).detach()
        return Tangent((own * partner).sum(-1), partner, own)


class Unknown(LossProbe):
    """The same, of whose loss no kernel knows."""

    kind = "made up"

    def tangent(self, side, batch):
        raise AssertionError


def make_side(clusters=IDS, start=None, *, ids=IDS, seed=0, tables=2, place=0, **moving):
    torch.manual_seed(3)
    table = ClusteredEmbedding(ids, DIM, max_clusters=clusters)
    if start is not None:
        table.start_from(torch.tensor(start))
    how = OnlineClusterConfig(**{"limit": NEVER, **moving})
    buffer = RecentEvents(how.latest, place, tables, ids=table.num_embeddings)
    return HardClusterTrainer("users", table, RowDescentConfig(), how, buffer, seed=seed)


def feed(side, probe, events, *, again=False):
    """Observe events, each an id, a partner and a target."""
    user, item, target = (torch.tensor(column) for column in zip(*events, strict=True))
    vectors = {"users": side.lookup(user)}
    batch = Batch(user, item, target.float())
    with torch.no_grad():
        side.observe(Observation(batch, user, vectors, again), probe)


events_of_all = st.tuples(
    st.integers(0, IDS - 1), st.integers(0, PARTNERS - 1), st.floats(-2, 2, width=32)
)
batches_of_all = st.lists(st.lists(events_of_all, min_size=1, max_size=12), min_size=1, max_size=6)


# Chance.


def test_hashed_numbers_look_like_those_of_a_die():
    ids = np.arange(20_000)
    one, same, other = hashed(ids, 5), hashed(ids, 5), hashed(ids, 6)
    assert (one == same).all()
    assert one.min() >= 0
    assert one.max() < 1
    shares = np.bincount((one * 10).astype(int), minlength=10) / len(ids)
    np.testing.assert_allclose(shares, 0.1, atol=0.012)
    for a, b in ((one, other), (one[:-1], one[1:])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.04


def test_candidates_are_the_own_cluster_and_others_by_chance():
    own = np.arange(3000) % 7
    drawn = draw_candidates(own, 7, 5, 11)
    assert drawn.shape == (6, 3000)
    assert (drawn[0] == own).all()
    shares = np.stack([np.bincount(row, minlength=7) for row in drawn[1:]]) / 3000
    np.testing.assert_allclose(shares, 1 / 7, atol=0.03)
    assert (draw_candidates(own, 7, 5, 11) == drawn).all()
    assert (draw_candidates(own, 7, 5, 12)[1:] != drawn[1:]).mean() > 0.7
    for first, second in ((0, 1), (1, 4), (3, 4)):  # independent of each other
        equal = (drawn[1 + first] == drawn[1 + second]).mean()
        assert equal == pytest.approx(1 / 7, abs=0.03)
    assert draw_candidates(own, 7, 0, 11).tolist() == [own.tolist()]


# Bookkeeping.


def check_books(side, counts, limit):
    table, members = side.table, side.members
    clusters = table.num_clusters
    assert members.sizes.sum() == len(counts)
    assert members.events.sum() == sum(counts.values())
    assert (members.sizes[:clusters] > 0).all()
    assert (members.sizes[clusters:] == 0).all()
    everyone = []
    for cluster in range(clusters):
        some = members.of(cluster).tolist()
        assert all(table.assignment[one] == cluster for one in some)
        assert members.events[cluster] == sum(counts[one] for one in some)
        if clusters < table.max_clusters and len(some) > 1:
            assert members.events[cluster] <= 2 * limit
        everyone += some
    assert sorted(everyone) == sorted(counts)
    kept = side.buffer.counts
    assert all(kept[one] == count for one, count in counts.items())
    check_tree(side.table)


def check_tree(table):
    """From every cluster the way up ends, at one of the start."""
    for cluster in range(table.num_clusters):
        way = [cluster]
        while (above := int(table.parent[way[-1]])) >= 0:
            assert above not in way
            assert above < table.num_clusters
            way.append(above)


@given(
    batches_of_all,
    st.sampled_from([1.0, 2.5, 6.0]),
    st.sampled_from([1, 3, IDS]),
    st.sampled_from(["always", "doubling"]),
    st.sampled_from([None, 3]),
    st.sampled_from([None, 0.5, 100.0]),
    st.data(),
)
@settings(max_examples=80)
def test_the_books_are_right_after_any_batch(batches, limit, clusters, schedule, own, near, data):
    side = make_side(
        clusters,
        limit=limit,
        schedule=schedule,
        own_row_above=own,
        merge_within=near,
        candidates=4,
        latest=3,
    )
    probe, counts = LossProbe(side.table), {}
    for batch in batches:
        again = bool(counts) and data.draw(st.booleans())
        if again:  # events that were there before
            batch = [event for event in batch if event[0] in counts]
        if not batch:
            continue
        feed(side, probe, batch, again=again)
        if not again:
            for one, _, _ in batch:
                counts[one] = counts.get(one, 0) + 1
        check_books(side, counts, limit)
        if own is not None and side.table.num_clusters < clusters:
            for one in {event[0] for event in batch}:
                if counts[one] > own:
                    assert side.members.sizes[side.table.assignment[one]] == 1


def test_ids_may_come_late():
    side = make_side(4, limit=4.0)
    probe = LossProbe(side.table)
    feed(side, probe, [(0, 1, 1.0), (1, 1, -1.0)])
    side.grow(40)
    feed(side, probe, [(39, 1, 1.0), (20, 2, 0.5), (39, 0, 0.0)])
    check_books(side, {0: 1, 1: 1, 39: 2, 20: 1}, 4.0)


# Moving.


def slow_objective(side, probe, kept, cluster):
    """Loss on the kept events and the prior, by loops."""
    row = side.table.weight[cluster].tolist()
    mean = side.state_dict()["mean"].tolist()
    total = side.moving.prior / 2 * sum((r - m) ** 2 for r, m in zip(row, mean, strict=True))
    for partner, target in kept:
        other = probe.partners[partner].tolist()
        output = sum(r * o for r, o in zip(row, other, strict=True))
        total += (output - target) ** 2
    return total


@given(
    batches_of_all,
    st.sampled_from([0.0, 2.0]),
    st.integers(1, 6),
    st.sampled_from([0, 2**31 + 7, 2**63 - 1]),
    st.sampled_from([LossProbe, Unknown]),
)
@settings(max_examples=60)
def test_an_id_moves_to_the_best_of_the_clusters_that_are_tried(batches, prior, tried, seed, kind):
    clusters, latest = 5, 3
    start = np.arange(IDS) % clusters
    side = make_side(
        clusters, start, prior=prior, candidates=tried, latest=latest, schedule="always", seed=seed
    )
    probe, log, members = kind(side.table), {}, {}
    seen = 0
    for batch in batches:
        before = side.table.assignment.tolist()
        feed(side, probe, batch)
        seen += len(batch)
        for one, partner, target in batch:
            log.setdefault(one, []).append((partner, target))
            if one not in members:
                members[one] = before[one]
        ids = sorted({one for one, _, _ in batch})
        own = np.array([before[one] for one in ids])
        moment = (seen ^ (seed << 32)) % 2**63
        drawn = draw_candidates(own, clusters, tried, moment)
        for place, one in enumerate(ids):
            kept = log[one][-latest:]
            costs = {int(k): slow_objective(side, probe, kept, int(k)) for k in drawn[:, place]}
            best = min(costs, key=costs.get)
            alone = list(members.values()).count(members[one]) == 1
            goal = members[one] if alone else best
            found = int(side.table.assignment[one])
            assert costs[found] <= costs[before[one]] + 1e-4  # never worse than it was
            if found != goal:  # a tie but for rounding
                assert costs[found] == pytest.approx(costs[goal], abs=1e-4)
            members[one] = found


def test_the_mean_row_is_that_of_what_was_looked_up_lately():
    side = make_side(4, np.arange(IDS) % 4)
    probe, mean, seen = LossProbe(side.table), np.zeros(DIM), 0
    for batch in [[(0, 1, 1.0), (1, 1, 0.0)], [(2, 0, 1.0)], [(3, 2, 1.0)] * 40]:
        vectors = side.table(torch.tensor([one for one, _, _ in batch])).detach().numpy()
        feed(side, probe, batch)
        share = max(0.01, 10 / (10 + seen / len(batch)))
        mean = mean + share * (vectors.mean(0) - mean)
        seen += len(batch)
        np.testing.assert_allclose(side.state_dict()["mean"], mean, rtol=1e-5)


def spied(side, monkeypatch):
    judged = []
    plain = side.reassign

    def spy(ids, probe):
        judged.extend(ids.tolist())
        plain(ids, probe)

    monkeypatch.setattr(side, "reassign", spy)
    return judged


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=20), max_size=8))
def test_ids_are_judged_when_they_come_to_1_2_4_8_events(batches):
    with pytest.MonkeyPatch.context() as patch:
        side = make_side(3, np.arange(IDS) % 3)
        judged, probe, counts = (
            spied(side, patch),
            LossProbe(side.table),
            dict.fromkeys(range(5), 0),
        )
        for batch in batches:
            expected = []
            for one in sorted(set(batch)):
                before, counts[one] = counts[one], counts[one] + batch.count(one)
                if any(before < 2**power <= counts[one] for power in range(12)):
                    expected.append(one)
            judged.clear()
            feed(side, probe, [(one, 0, 1.0) for one in batch])
            assert judged == expected


@pytest.mark.parametrize("every", [1, 100])
def test_all_ids_of_a_batch_are_judged_always_if_that_is_asked_for(every, monkeypatch):
    side = make_side(3, np.arange(IDS) % 3, schedule="always", every=every)
    judged, probe = spied(side, monkeypatch), LossProbe(side.table)
    for _ in range(3):
        feed(side, probe, [(5, 0, 1.0), (2, 0, 1.0), (5, 1, 1.0)])
    assert judged == [2, 5] * 3


@given(
    st.lists(st.lists(st.integers(0, IDS - 1), min_size=1, max_size=9), min_size=1, max_size=8),
    st.integers(1, 25),
    st.sampled_from([0, 1000]),
)
def test_looks_are_so_many_events_apart_and_make_up_for_all_since(batches, every, past):
    with pytest.MonkeyPatch.context() as patch:
        side = make_side(IDS, limit=2.0, every=every, candidates=3)
        plain = make_side(IDS, limit=NEVER)  # looks each time
        judged, due = spied(side, patch), spied(plain, patch)
        probe, waiting, since = LossProbe(side.table), set(), 0
        side.load_state_dict({**side.state_dict(), "events": past, "looked": past})
        for batch in batches:
            events = [(one, one % PARTNERS, float(one)) for one in batch]
            clusters = side.table.num_clusters
            feed(side, probe, events)
            feed(plain, LossProbe(plain.table), events)
            waiting |= set(due)
            due.clear()
            since, past = since + len(batch), past + len(batch)
            if since < every and since < past // 8:
                assert judged == []
                assert side.table.num_clusters == clusters
                continue
            assert judged == sorted(waiting)
            judged.clear()
            waiting.clear()
            since = 0
            assert not len(side.members.crowded(np.flatnonzero(side.counts), 4.0))


def test_in_another_pass_an_id_is_judged_about_once_however_many_events_it_has(monkeypatch):
    ids, passes = 300, 10
    side = make_side(3, np.arange(ids) % 3, ids=ids, candidates=0)
    probe, rng = LossProbe(side.table), np.random.default_rng(0)
    events = np.repeat(np.arange(ids), 1 + np.arange(ids) % 10)
    feed(side, probe, [(int(one), 0, 1.0) for one in events])
    sizes, counted = side.members.events.copy(), side.buffer.counts.copy()
    judged = spied(side, monkeypatch)
    for _ in range(passes):
        for part in np.array_split(rng.permutation(events), 20):
            feed(side, probe, [(int(one), 0, 1.0) for one in part], again=True)
    times = np.bincount(judged, minlength=ids) / passes
    for events_each in range(10):  # whoever has that many
        assert times[events_each::10].mean() == pytest.approx(1, abs=0.25)
    # Nothing is counted twice.
    assert (side.members.events == sizes).all()
    assert (side.buffer.counts == counted).all()


def test_nobody_moves_where_there_is_one_cluster_or_none_is_tried():
    for side in (make_side(3), make_side(3, np.arange(IDS) % 3, candidates=0)):
        before = side.table.assignment.clone()
        feed(side, LossProbe(side.table), [(0, 0, 1.0), (3, 1, -1.0)] * 10)
        assert torch.equal(side.table.assignment, before)
        assert side.moved == 0


def test_a_sweep_judges_everybody_who_has_events():
    clusters = 4
    side = make_side(clusters, np.arange(IDS) % clusters, candidates=40, prior=0.0)
    probe = LossProbe(side.table)
    rng = np.random.default_rng(1)
    events = [
        (one, int(partner), float(rng.normal()))
        for one in range(IDS - 1)  # the last has none
        for partner in rng.integers(PARTNERS, size=6)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(side, "reassign", lambda ids, probe: None)  # noqa: ARG005
        feed(side, probe, events)
    with torch.no_grad():
        side.sweep(probe)
    log = {one: [event[1:] for event in events if event[0] == one] for one in range(IDS - 1)}
    settled = 0
    for one, kept in log.items():
        costs = [slow_objective(side, probe, kept, k) for k in range(clusters)]
        own = int(side.table.assignment[one])
        settled += costs[own] == pytest.approx(min(costs), abs=1e-4)
    assert settled >= IDS - 1 - clusters  # some may have been the last of theirs
    check_books(side, dict.fromkeys(log, 6), NEVER)


# Splitting.


def slow_splits(gradients, counts):
    """Both groups of each cut along the top eigenvector that is as even in events as can be."""
    centred = gradients - gradients.mean(0)
    direction = np.linalg.svd(centred)[2][0]
    order = np.argsort(centred @ direction).tolist()
    cuts = [(order[:at], order[at:]) for at in range(1, len(order))]
    uneven = [abs(int(counts[low].sum()) - int(counts[high].sum())) for low, high in cuts]
    best = [cut for cut, difference in zip(cuts, uneven, strict=True) if difference == min(uneven)]
    return [{frozenset(low), frozenset(high)} for low, high in best], min(uneven)


@given(st.integers(0, 10_000), st.sampled_from([LossProbe, Unknown]))
def test_a_cluster_is_cut_along_the_first_component_with_events_as_even_as_can_be(seed, kind):
    rng = np.random.default_rng(seed)
    side = make_side(2, limit=20.0, latest=4, candidates=0)
    probe = kind(side.table, seed)
    counts = rng.integers(1, 8, size=IDS)
    events = [
        (one, int(rng.integers(PARTNERS)), float(rng.normal()))
        for one in np.repeat(np.arange(IDS), counts).tolist()
    ]
    before = side.table(torch.arange(-1, IDS)).detach().clone()
    feed(side, probe, events)
    if counts.sum() <= 40:
        assert side.table.num_clusters == 1
        return
    # Predictions are the same as before.
    assert torch.equal(side.table(torch.arange(-1, IDS)), before)
    kept = {one: [event for event in events if event[0] == one][-4:] for one in range(IDS)}
    row = before[0].numpy().astype(np.float64)
    gradients = np.zeros((IDS, DIM))
    for one, some in kept.items():
        for _, partner, target in some:
            other = probe.partners[partner].double().numpy()
            gradients[one] -= 2 * (row @ other - target) * other
    even, uneven = slow_splits(gradients, counts)
    found = {frozenset(side.members.of(cluster).tolist()) for cluster in range(2)}
    assert found in even
    assert abs(side.members.events[0] - side.members.events[1]) == uneven


def test_a_new_row_descends_as_its_parent_did():
    side = make_side(2, limit=2.0, candidates=0)
    ids = torch.arange(IDS)
    side.lookup(ids)
    side.learn(torch.randn(IDS, DIM) * 3)
    feed(side, LossProbe(side.table), [(one, one % PARTNERS, 1.0) for one in range(IDS)])
    assert side.table.num_clusters == 2
    side.lookup(torch.tensor([side.members.of(0)[0], side.members.of(1)[0]]))
    side.learn(torch.ones(2, DIM))
    torch.testing.assert_close(side.table.weight[0], side.table.weight[1])


def test_gradients_that_are_no_numbers_are_told():
    side = make_side(2, limit=2.0)
    probe = LossProbe(side.table)
    probe.partners[:] = torch.nan
    with pytest.raises(CelrecError, match="gradients must be finite; lower the learning rate"):
        feed(side, probe, [(one, 0, 1.0) for one in range(IDS)])


def test_the_limit_may_depend_on_how_many_events_there_were_each_counted_once():
    told = []

    def limit(events):
        told.append(events)
        return events / 4

    side = make_side(IDS, limit=limit, candidates=3)
    probe, counts = LossProbe(side.table), {}
    for number in range(20):
        batch = [((number * 5 + k * 7) % IDS, k % PARTNERS, float(k)) for k in range(6)]
        feed(side, probe, batch)
        for one, _, _ in batch:
            counts[one] = counts.get(one, 0) + 1
        check_books(side, counts, sum(counts.values()) / 4)
        feed(side, probe, batch, again=True)
    assert told == [6 * (number // 2 + 1) for number in range(40)]
    assert 2 <= side.table.num_clusters < IDS


def test_an_id_with_many_events_gets_a_cluster_of_its_own():
    side = make_side(5, own_row_above=3)
    probe = LossProbe(side.table)
    feed(side, probe, [(0, 1, 1.0), (1, 1, 1.0), (2, 2, 1.0), *[(4, 0, 1.0)] * 3])
    assert side.table.num_clusters == 1
    before = side.table(torch.arange(IDS)).detach().clone()
    feed(side, probe, [(4, 0, 1.0)])
    assert side.table.num_clusters == 2
    assert side.members.of(int(side.table.assignment[4])).tolist() == [4]
    assert torch.equal(side.table(torch.arange(IDS)), before)
    feed(side, probe, [(4, 0, 1.0)] * 9)  # it has one already
    assert side.table.num_clusters == 2


# State, bytes.


@pytest.mark.parametrize("rule", ["adagrad", "sgd"])
@pytest.mark.parametrize("every", [1, 20])
def test_a_state_goes_on_as_if_nothing_had_happened(rule, every):
    rng = np.random.default_rng(0)
    batches = [
        [(int(u), int(i), float(rng.normal())) for u, i in rng.integers(0, PARTNERS, size=(15, 2))]
        for _ in range(12)
    ]

    def make():
        side = make_side(6, limit=10.0, latest=3, candidates=3, every=every)
        config = OnlineClusterConfig(limit=10.0, latest=3, candidates=3, every=every)
        buffer = RecentEvents(3, 0, 2, ids=side.table.num_embeddings)
        rows = RowDescentConfig(rule=rule)
        return HardClusterTrainer("users", side.table, rows, config, buffer)

    def go_on(side, batches, first=0):
        for number, batch in enumerate(batches, first):
            side.lookup(torch.tensor([one for one, _, _ in batch]))
            side.learn(torch.tensor([[t, -t, 1.0] for _, _, t in batch]))
            feed(side, LossProbe(side.table), batch, again=number % 4 == 3)

    whole = make()
    go_on(whole, batches)
    for stop in (4, 8, 9, 11):
        first, second = make(), make()
        go_on(first, batches[:stop])
        assert bool(len(first.state_dict()["seen"])) == (
            every > 1 and stop > 8
        )  # between two looks
        second.table.load_state_dict(copy.deepcopy(first.table.state_dict()))
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        go_on(second, batches[stop:], stop)
        for name, value in whole.table.state_dict().items():
            assert torch.equal(value, second.table.state_dict()[name])
        assert (whole.events, whole.moved) == (second.events, second.moved)
        assert torch.equal(whole.state_dict()["mean"], second.state_dict()["mean"])
    assert whole.moved > 0
    assert whole.table.num_clusters > 2


def test_bytes_are_those_of_all_that_is_held():
    side = make_side(4)
    assert side.nbytes == side.buffer.nbytes + side.members.nbytes + side.descent.nbytes
    assert side.buffer.nbytes >= IDS * (8 + 20 * 8)


# Dropping ids.


@given(batches_of_all, st.sets(st.integers(0, IDS - 1)).map(sorted), st.sampled_from([1, 30]))
@settings(max_examples=50)
def test_the_books_are_right_after_ids_were_dropped_and_whatever_comes(batches, kept, every):
    side = make_side(5, limit=2.5, latest=3, candidates=4, every=every)
    probe, counts = LossProbe(side.table), {}

    def take(batch):
        feed(side, probe, batch)
        for one, _, _ in batch:
            counts[one] = counts.get(one, 0) + 1

    for batch in batches:
        take(batch)
    ids = np.array([one for one in kept if one in counts], np.int64)
    everyone = torch.from_numpy(ids)
    events = side.buffer.replay(ids)
    vectors = side.table(torch.cat([everyone, torch.tensor([-1])])).tolist()
    descent = side.descent.squares[side.table.row_of(everyone).numpy()].tolist()
    pending = [set(side.state_dict()[name].tolist()) for name in ("due", "seen")]
    side.keep(ids)
    number = {one: place for place, one in enumerate(ids.tolist())}
    counts = {number[one]: count for one, count in counts.items() if one in number}
    renumbered = torch.arange(len(ids))
    assert side.table(torch.cat([renumbered, torch.tensor([-1])])).tolist() == vectors
    assert side.descent.squares[side.table.row_of(renumbered).numpy()].tolist() == descent
    owner, batch = side.buffer.replay(renumbered.numpy())
    assert owner.tolist() == events[0].tolist()
    assert batch.item.tolist() == events[1].item.tolist()
    assert batch.target.tolist() == events[1].target.tolist()
    for before, name in zip(pending, ("due", "seen"), strict=True):
        assert set(side.state_dict()[name].tolist()) == {
            number[one] for one in before if one in number
        }
    books_of_those_who_are_left(side, counts)
    side.grow(IDS)
    for batch in batches:
        take(batch)
        books_of_those_who_are_left(side, counts)


def books_of_those_who_are_left(side, counts):
    """Only the cluster of unseen ids may be without a member."""
    table, everyone = side.table, []
    for cluster in range(table.num_clusters):
        some = side.members.of(cluster).tolist()
        assert some or cluster == table.unseen_cluster
        assert all(table.assignment[one] == cluster for one in some)
        assert side.members.events[cluster] == sum(counts[one] for one in some)
        everyone += some
    assert sorted(everyone) == sorted(counts)
    assert not side.members.sizes[table.num_clusters :].any()
    assert bool(table.sizes().all())
    check_tree(table)


def test_clusters_of_those_who_are_gone_are_there_for_others():
    side = make_side(4, np.arange(IDS) % 4, limit=2.0, candidates=0)
    probe = LossProbe(side.table)
    feed(side, probe, [(one, one % PARTNERS, 1.0) for one in range(IDS)])
    assert side.table.num_clusters == 4
    side.keep(np.array([0, 4, 5, 8]))  # of clusters 0 and 1
    assert side.table.num_clusters == 2
    assert side.members.of(0).tolist() == [3, 1, 0]
    feed(side, probe, [(one, one, 1.0) for one in range(4)] * 3)
    assert side.table.num_clusters == 4


def test_bytes_are_those_of_who_is_left():
    side = make_side(4)
    bytes_of_few = side.nbytes
    side.grow(10_000)
    feed(side, LossProbe(side.table), [(one, 0, 1.0) for one in range(10_000)])
    assert side.nbytes > 100 * bytes_of_few
    side.keep(np.arange(IDS))
    assert side.nbytes == bytes_of_few


@pytest.mark.parametrize("place", [0, 1, 2])
def test_partners_that_are_gone_are_nobody_and_others_have_new_numbers(place):
    side = make_side(tables=3, place=place, latest=2)
    ids = [torch.tensor(values) for values in ([4, 5, 4, 4], [0, 1, 0, 6], [3, 3, -1, 2])]
    ids[0], ids[place] = ids[place], ids[0]
    batch = Batch.of(ids, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    vectors = {"users": torch.zeros(4, DIM)}
    side.observe(Observation(batch, ids[place], vectors), LossProbe(side.table))
    before = [one.tolist() for one in side.latest(np.array([4, 5])).ids()]
    for other in {0, 1, 2} - {place}:
        numbers = np.array([1, -1, 0, -1, 2, 3, -1])
        side.renumber(other, numbers)
        before[other] = [-1 if one < 0 else int(numbers[one]) for one in before[other]]
        assert [one.tolist() for one in side.latest(np.array([4, 5])).ids()] == before
