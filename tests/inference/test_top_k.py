import tracemalloc
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec import CelrecError, Planted, read
from celrec.config import building
from celrec.config.building import make_model
from celrec.config.plan import Plan
from celrec.data.seen_items import SeenItems
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.personal import BiasedEmbedding, PersonalEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.embeddings.registry import METHODS
from celrec.inference import top_k
from celrec.inference.scores import LinearScores, NetworkScores
from celrec.inference.top_k import TopK
from celrec.models.registry import MODELS
from celrec.recommender.batch import Batch
from celrec.recommender.model import Model

OF_ROWS = {name for name, method in METHODS.items() if not method.budget_only}

USERS, ITEMS = 9, 40
PRIORITY = np.arange(ITEMS) * 7 % 11  # with equal ones


def slow_best(scores, priority, k, excluded=()):
    """The k best of one user, by sorting all items."""
    items = [item for item in range(len(scores)) if item not in excluded]
    items.sort(key=lambda item: (-scores[item], -priority[item], item))
    return items[:k]


def predictions(model, log, users):
    """(users, items), one row of a log after the other."""
    rows = np.repeat(np.asarray(users, np.int32), ITEMS)
    every = replace(
        log,
        user=rows,
        item=np.tile(np.arange(ITEMS, dtype=np.int32), len(users)),
        target=np.zeros(len(rows), np.float32),
        timestamp=None,
        columns={
            name: replace(c, values=np.full(len(rows), -1)) for name, c in log.columns.items()
        },
    )
    return model.predict(every).view(len(users), ITEMS).numpy()


def seen_of(pairs):
    seen = SeenItems()
    seen.add([user for user, _ in pairs], [item for _, item in pairs])
    return seen


def assert_best(best, scores, k, priority, excluded):
    """The answers are right, up to rounding where scores are all but equal."""
    assert best.items.shape == best.scores.shape == (len(scores), k)
    for row, answer in enumerate(best.items.tolist()):
        expected = slow_best(scores[row], priority, k, excluded[row])
        there = [item for item in answer if item >= 0]
        assert len(set(there)) == len(there) == len(expected)
        assert answer[len(there) :] == [-1] * (k - len(there))
        assert not set(there) & set(excluded[row])
        told = best.scores[row, : len(there)]
        np.testing.assert_allclose(told, scores[row][there], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(told, scores[row][expected], rtol=1e-4, atol=1e-5)
        assert (best.scores[row, len(there) :] == -np.inf).all()
        assert (np.diff(told) <= 0).all()


# All tables and all models.


@pytest.fixture(scope="module")
def log():
    """Ratings with shops, and features on both sides."""
    rows = Planted(600, USERS, ITEMS, dim=2, item_clusters=4).interactions().to_frame()
    return read(
        rows.with_columns(shop=pl.Series([f"shop {n % 5}" for n in range(600)])),
        columns=["shop"],
        user_features=pl.DataFrame({"user": range(USERS), "city": [n % 3 for n in range(USERS)]}),
        item_features=pl.DataFrame({"item": range(ITEMS), "genres": [["a", "b"], ["c"]] * 20}),
    )


def made(log, plan):
    """A model with tables that are not trivial."""
    model = make_model(log, plan)
    with torch.no_grad():
        for table in (model.users, model.items):
            inner = table.rows if isinstance(table, BiasedEmbedding) else table
            if isinstance(table, BiasedEmbedding):
                table.bias.normal_()
            if isinstance(inner, ClusteredEmbedding):
                ids = torch.arange(inner.num_embeddings)
                inner.start_from(ids % inner.max_clusters)
            if isinstance(inner, PosteriorEmbedding):
                inner.evidence.random_(0, 60)
    if plan.network:
        model.remember(log)
    return model


def check(model, log, **how):
    rng = np.random.default_rng(0)
    users = [0, 3, -1, 8, 5]
    top = TopK(model, PRIORITY, **how)
    scores = predictions(model, log, users)
    nobody = [()] * len(users)
    for k in (1, 7, ITEMS + 2):
        assert_best(top.recommend(users, k), scores, k, PRIORITY, nobody)
    pairs = [(user, item) for user in users for item in rng.permutation(ITEMS)[: 3 * max(user, 0)]]
    allowed, banned = rng.permutation(ITEMS)[:25], rng.permutation(ITEMS)[:6]
    out = set(range(ITEMS)) - set(allowed.tolist()) | set(banned.tolist())
    gone = [out | {i for u, i in pairs if u == user} for user in users]
    best = top.within(allowed, banned).recommend(users, 6, seen=seen_of(pairs))
    assert_best(best, scores, 6, PRIORITY, gone)
    return top


@pytest.mark.parametrize("model", ["nmf", "mf"])
@pytest.mark.parametrize("embedding", sorted(OF_ROWS - {"cel-lite", "hashgnn"}))
def test_factorisations_with_any_table_find_the_best(log, embedding, model):
    if model == "mf" and METHODS[embedding].tree:
        pytest.skip("knows no biases")
    log = replace(log, columns={})
    plan = Plan(embedding, "5", rank=6, model=model, side="items")
    check(made(log, plan), log)


@pytest.mark.parametrize("features", [True, False])
@pytest.mark.parametrize("embedding", ["cel", "cel-int8", "full", "modulo", "qr", "cel-lite"])
@pytest.mark.parametrize("model", MODELS)
def test_networks_with_any_table_find_the_best(log, embedding, model, features, monkeypatch):
    monkeypatch.setattr(building, "HISTORY_LENGTH", 4)
    positive = 3.5 if model == "mmoe" else None
    if embedding == "cel-lite" and model not in ("deepfm", "din"):
        pytest.skip("as the others")
    plan = Plan(
        embedding, "5", rank=10, model=model, features=features, positive=positive, side="both"
    )
    top = check(made(log, plan), log)
    assert top.candidates is None


@pytest.mark.parametrize("loss", ["cross-entropy", "ranking"])
def test_what_is_told_is_what_is_predicted(log, loss):
    clicks = replace(log, target=(log.target > 3).astype(np.float32))
    model = made(clicks, Plan("cel", "5", rank=4, model="deepfm", loss=loss))
    check(model, clicks)
    if loss == "cross-entropy":
        scores = TopK(model, PRIORITY).recommend([0]).scores
        assert ((scores > 0) & (scores < 1)).all()


@pytest.mark.parametrize("preset", ["default", "paper"])
@pytest.mark.parametrize("model", ["mf", "nmf", "deepfm"])
@pytest.mark.parametrize("personalise", ["none", "2"])
def test_what_is_learned_online_finds_the_best(log, preset, model, personalise):
    log = replace(log, columns={})
    plan = Plan("cel-lite", "5", rank=4, model=model, preset=preset, personalise=personalise)
    recommender = made(log, plan)
    if personalise != "none":
        recommender.items.give(torch.tensor([1, 5, 6, 30]))
        recommender.items.offset.data.normal_()
    check(recommender, log)


def test_clusters_with_rows_of_their_own_and_packed_ones_find_the_best(log):
    log = replace(log, columns={})
    shared = ClusteredEmbedding(ITEMS, 4, max_clusters=6)
    shared.start_from(torch.arange(ITEMS) % 6)
    users = FullEmbedding(USERS, 4)
    warm = torch.arange(ITEMS) % 5 == 0
    mixed = MixedEmbedding.personalise(shared, warm)
    torch.nn.init.normal_(mixed.weight)
    packed = QuantisedEmbedding(ClusteredEmbedding(ITEMS, 4, max_clusters=6), packed=True)
    for items in (mixed, packed, shared):
        check(Model(users, items), log)
    biased = BiasedEmbedding(mixed)
    torch.nn.init.normal_(biased.bias)
    check(Model(BiasedEmbedding(users), biased), log)


# The order of equals: with numbers of few bits, all scores are exact.

Eighths = st.integers(-8, 8).map(lambda n: n / 8)


@st.composite
def cases(draw):
    """A factorisation of few bits, priorities, what was seen, allowed and banned, and users."""
    users, items, dim = draw(st.integers(1, 6)), draw(st.integers(1, 30)), draw(st.integers(1, 3))
    kind = draw(st.sampled_from(["cel", "biased", "personal", "full", "mixed"]))
    count = draw(st.integers(1, min(items, 5)))
    ids = st.integers(0, items - 1)
    shared = ClusteredEmbedding(items, dim, max_clusters=count)
    labels = torch.tensor(draw(st.lists(st.integers(0, count - 1), min_size=items, max_size=items)))
    labels[:count] = torch.arange(count)
    shared.start_from(labels)
    own = torch.tensor(sorted(draw(st.sets(ids))), dtype=torch.int64)
    table, people = shared, FullEmbedding(users, dim)
    if kind == "full":
        table = FullEmbedding(items, dim)
    if kind == "personal":
        table = PersonalEmbedding(shared)
        table.give(own)
    if kind == "mixed":
        table = MixedEmbedding.personalise(shared, torch.zeros(items).bool().index_fill(0, own, 1))
    if kind == "biased":
        table, people = BiasedEmbedding(shared), BiasedEmbedding(people)
    model = Model(people, table)
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.randint(-3, 4, parameter.shape, generator=generator)
            parameter.copy_(values / 4)
    priority = draw(st.lists(st.integers(0, 3), min_size=items, max_size=items))
    pairs = draw(st.lists(st.tuples(st.integers(0, users - 1), ids), max_size=60))
    allowed = draw(st.none() | st.lists(ids))
    banned = draw(st.none() | st.lists(ids))
    asked = draw(st.lists(st.integers(-1, users - 1), max_size=6))
    return model, priority, pairs, allowed, banned, asked


@given(cases(), st.integers(1, 35))
@settings(max_examples=100)
def test_filters_and_ties_are_those_of_a_sort(case, k):
    model, priority, pairs, allowed, banned, asked = case
    items = len(priority)
    top = TopK(model, priority).within(allowed, banned)
    best = top.recommend(np.array(asked, np.int64), k, seen=seen_of(pairs))
    out = set() if allowed is None else set(range(items)) - set(allowed)
    out |= set(banned or ())
    for row, user in enumerate(asked):
        with torch.no_grad():
            scores = model(Batch.pairs(torch.full((items,), user), torch.arange(items))).tolist()
        gone = out | {item for who, item in pairs if who == user}
        expected = slow_best(scores, priority, k, gone)
        assert best.items[row].tolist() == expected + [-1] * (k - len(expected))
        assert best.scores[row, : len(expected)].tolist() == [scores[item] for item in expected]
    whole = TopK(model, priority).recommend(np.array(asked, np.int64), k)
    assert whole.items.shape == (len(asked), k)


@given(cases(), st.integers(1, 35))
@settings(max_examples=40)
def test_the_most_similar_are_those_of_the_largest_cosines(case, k):
    model, priority, _, allowed, banned, _ = case
    items = len(priority)
    best = TopK(model, priority).within(allowed, banned).similar(np.arange(items), k)
    with torch.no_grad():
        vectors = model.items(torch.arange(items))[:, : model.item_rows.embedding_dim].double()
    lengths = vectors.norm(dim=1).clamp(min=1e-12)
    cosines = (vectors @ vectors.T / lengths[:, None] / lengths).numpy()
    out = set() if allowed is None else set(range(items)) - set(allowed)
    out |= set(banned or ())
    for item, answer in enumerate(best.items.tolist()):
        expected = slow_best(cosines[item].round(5), priority, k, out | {item})
        there = [other for other in answer if other >= 0]
        assert len(there) == len(expected) == len(set(there))
        assert not set(there) & (out | {item})
        told = best.scores[item, : len(there)]
        np.testing.assert_allclose(told, cosines[item][there], atol=1e-5)
        np.testing.assert_allclose(told, cosines[item][expected], atol=1e-5)
        assert (told <= 1).all()


def test_the_own_cluster_comes_first_by_priority_and_biases_do_not_count():
    table = ClusteredEmbedding(6, 2, max_clusters=3)
    table.start_from(torch.tensor([0, 0, 0, 1, 1, 2]))
    table.weight.data.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.1], [2.0, 0.5]]))
    items = BiasedEmbedding(table)
    items.bias.data.copy_(torch.tensor([5.0, 0, 9, 1, 2, 3, 0]))
    model = Model(BiasedEmbedding(FullEmbedding(2, 2)), items)
    found = TopK(model, [1, 3, 2, 0, 4, 0]).similar([0, 5], 5)
    assert found.items.tolist() == [[1, 2, 5, 4, 3], [1, 2, 0, 4, 3]]
    assert found.scores[0, :2].tolist() == [1, 1]


def test_recency_can_be_the_priority_as_well_as_popularity():
    table = ClusteredEmbedding(5, 1, max_clusters=1)
    model = Model(FullEmbedding(1, 1), table)
    seen = SeenItems()
    seen.add([0, 1, 2, 3, 4], [3, 1, 3, 3, 0])
    popular = TopK(model, np.array([1, 1, 0, 3, 0])).recommend([-1], 5).items
    latest = TopK(model, seen.recency(5)).recommend([-1], 5).items
    assert popular.tolist() == [[3, 0, 1, 2, 4]]
    assert latest.tolist() == [[0, 3, 1, 2, 4]]
    never = np.iinfo(np.int64).min
    extremes = np.array([never, np.iinfo(np.int64).max, 0, never, 0])
    assert TopK(model, extremes).recommend([0], 5).items.tolist() == [[1, 2, 4, 0, 3]]
    unsigned = np.array([0, 2, 1, 0, 255], np.uint8)
    assert TopK(model, unsigned).recommend([0], 5).items.tolist() == [[4, 1, 2, 0, 3]]


# Blocks.


@pytest.mark.parametrize("pairs", [1, 7, 64, 1000])
@pytest.mark.parametrize("model", ["nmf", "din"])
def test_the_result_does_not_depend_on_how_much_is_done_at_once(log, monkeypatch, pairs, model):
    plan = Plan("cel", "15", rank=6, model=model, features=False)
    made_model = made(replace(log, columns={}), plan)
    top = TopK(made_model, PRIORITY)
    users = np.tile(np.arange(-1, USERS), 3)
    whole = top.recommend(users, 5)
    for scores in (LinearScores, NetworkScores):
        monkeypatch.setattr(scores, "at_once", pairs)
    monkeypatch.setattr(top_k, "LEAST_USERS", 1 + pairs % 5)
    parts = top.recommend(users, 5)
    np.testing.assert_allclose(parts.scores, whole.scores, rtol=1e-5)
    assert (parts.items == whole.items).mean() > 0.99


def test_memory_is_bounded_however_many_users_ask():
    items, users = 20_000, 20_000
    table = ClusteredEmbedding(items, 8, max_clusters=2_000)
    table.start_from(torch.arange(items) % 2_000)
    top = TopK(Model(FullEmbedding(users, 8), table), np.zeros(items))
    top.recommend([0])
    most = []
    for count in (2_000, users):
        tracemalloc.start()
        best = top.recommend(np.arange(count), 1)
        most.append(tracemalloc.get_traced_memory()[1] - best.items.nbytes - best.scores.nbytes)
        tracemalloc.stop()
    # All scores would take 160 MB; what torch allocates is not traced, and is bounded by `at_once`.
    assert most[1] < most[0] + 2**20


# Candidates.


@pytest.fixture
def deepfm(log):
    return made(replace(log, columns={}), Plan("cel", "5", rank=4, model="deepfm"))


def test_with_as_many_candidates_as_items_the_result_is_exact(log, deepfm):
    log = replace(log, columns={})
    assert check(deepfm, log, candidates=ITEMS).candidates is None
    top = TopK(deepfm, PRIORITY, candidates=ITEMS - 1)
    assert top.candidates == ITEMS - 1
    # One item is banned, so all that is left are candidates.
    users = [0, -1, 4]
    scores = predictions(deepfm, log, users)
    best = top.within(banned=[3]).recommend(users, 9)
    assert_best(best, scores, 9, PRIORITY, [{3}] * 3)


def test_candidates_are_those_of_the_best_clusters_and_then_scored_one_by_one(log, deepfm):
    log = replace(log, columns={})
    users, count, k = [0, 2, -1], 11, 4
    top = TopK(deepfm, PRIORITY, candidates=count)
    scores = predictions(deepfm, log, users)
    cluster = deepfm.items.assignment[:-1].tolist()
    seen = seen_of([(0, 5), (0, 6), (2, 1)])
    gone = [{5, 6}, {1}, set()]
    best = top.recommend(users, k, seen=seen)
    for row in range(len(users)):
        order = slow_best([0.0] * ITEMS, PRIORITY, ITEMS)
        first = {c: next(item for item in order if cluster[item] == c) for c in set(cluster)}
        promise = [scores[row][first[c]] for c in cluster]
        candidates = slow_best(promise, PRIORITY, count, gone[row])
        others = set(range(ITEMS)) - set(candidates)
        assert best.items[row].tolist() == slow_best(scores[row], PRIORITY, k, others)
    # k may be more than the candidates that were asked for.
    assert (top.recommend(users, 30).items >= 0).all()


def test_candidates_are_taken_where_there_are_too_many_combinations(log, deepfm, monkeypatch):
    assert TopK(deepfm, PRIORITY).candidates is None
    monkeypatch.setattr(top_k, "EXACT_GROUPS", 7)
    assert TopK(deepfm, PRIORITY).candidates == top_k.CANDIDATES
    assert TopK(deepfm, PRIORITY, candidates=5).candidates == 5
    bare = replace(log, columns={}, item_features=None)
    for embedding, features in (("full", True), ("cel", False)):  # no clusters, or all that counts
        plan = Plan(embedding, "9", rank=4, model="deepfm", features=features)
        model = made(replace(log, columns={}) if features else bare, plan)
        assert TopK(model, PRIORITY).candidates is None
    assert TopK(made(bare, Plan("cel", "9", rank=4)), PRIORITY, candidates=5).candidates is None


# Histories.


def test_a_network_looks_at_the_history_that_it_is_told(log, monkeypatch):
    monkeypatch.setattr(building, "HISTORY_LENGTH", 4)
    model = made(replace(log, columns={}), Plan("cel", "5", rank=4, model="din", features=False))
    asked = []

    def nothing_yet(users):
        asked.append(len(users))
        return model.query_batch(users)._replace(history=torch.full((len(users), 4), -1))

    known = TopK(model, PRIORITY).recommend([0, 1])
    unknown = TopK(model, PRIORITY, query_batch=nothing_yet).recommend([0, 1])
    assert sum(asked) == 2
    assert known.scores.tolist() != unknown.scores.tolist()
    model.remember(log[:0])
    assert TopK(model, PRIORITY).recommend([0, 1]).scores.tolist() == unknown.scores.tolist()


# Mistakes.


def test_mistakes_are_told():
    model = Model(FullEmbedding(2, 1), FullEmbedding(3, 1))
    top = TopK(model, [1, 2, 3])
    for wrong, told in (
        (lambda: TopK(model, [[1, 2, 3]]), "priority must be a number for each item"),
        (lambda: TopK(model, ["a", "b", "c"]), "priority must be a number for each item"),
        (lambda: TopK(model, [1, 2, 3, 4]), "the model has 3 items"),
        (lambda: TopK(model, [1, 2, 3], candidates=0), "candidates must be positive, not 0"),
        (lambda: top.recommend([0], 0), "k must be positive, not 0"),
        (lambda: top.recommend([0.5]), "users must be a flat array of integers"),
        (lambda: top.recommend([[0]]), "users must be a flat array of integers"),
        (lambda: top.similar([3]), r"items must lie in 0 … 2, not 3"),
        (lambda: top.similar([-1]), r"items must lie in 0 … 2, not -1"),
        (lambda: top.within(allowed=[7]), r"allowed must lie in 0 … 2, not 7"),
        (lambda: top.within(banned=[-1]), r"banned must lie in 0 … 2, not -1"),
    ):
        with pytest.raises(CelrecError, match=told) as error:
            wrong()
        assert "\n" not in str(error.value)


def test_nobody_and_nothing_is_no_mistake():
    model = Model(FullEmbedding(2, 1), FullEmbedding(3, 1))
    top = TopK(model, [1, 2, 3])
    assert top.recommend([]).items.shape == (0, 10)
    assert top.similar([]).items.shape == (0, 10)
    assert top.within(allowed=[]).recommend([0, 1], 2).items.tolist() == [[-1, -1]] * 2
    assert top.within(allowed=[]).similar([0], 2).items.tolist() == [[-1, -1]]
    assert TopK(model, []).recommend([0], 2).items.tolist() == [[-1, -1]]


def test_scores_that_are_no_numbers_win_nothing():
    model = Model(FullEmbedding(1, 1), FullEmbedding(3, 1))
    model.users.weight.data.fill_(1)
    model.items.weight.data[:3, 0] = torch.tensor([1.0, float("nan"), 2.0])
    assert TopK(model, [1, 2, 3]).recommend([0], 3).items.tolist() == [[2, 0, -1]]
