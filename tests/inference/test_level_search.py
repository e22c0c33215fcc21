"""The best items where vectors are sums of shared rows: branch and bound over their codes."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.data.seen_items import SeenItems
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.embeddings.personal import BiasedEmbedding, PersonalEmbedding
from celrec.inference.level_search import CodeTree, item_codes, summed_items
from celrec.inference.search import ItemGroups
from celrec.inference.top_k import TopK
from celrec.models.registry import MODELS
from celrec.recommender.batch import Batch
from celrec.recommender.model import Model


def slow_best(scores, priority, k, excluded):
    """The k best of one user, by sorting all items; what is no number wins nothing."""
    items = [i for i in range(len(scores)) if i not in excluded and scores[i] == scores[i]]
    items.sort(key=lambda item: (-scores[item], -priority[item], item))
    return items[:k]


def levelled(items, dim, clusters, generator, **shape):
    """A table with random codes in all levels, some of them never used together."""
    table = LevelledEmbedding(items, dim, max_clusters=clusters, **shape)
    for level in table.clustered_levels:
        labels = torch.randint(clusters, (items,), generator=generator)
        labels[torch.randperm(items, generator=generator)[:clusters]] = torch.arange(clusters)
        level.start_from(labels)
    return table


@st.composite
def cases(draw):
    """A factorisation of few bits, so that all scores are exact and many are equal."""
    users, items = draw(st.integers(1, 5)), draw(st.integers(1, 60))
    parts, width = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    clusters, levels = draw(st.integers(1, min(items, 6))), draw(st.integers(1, 4))
    table = levelled(items, parts * width, clusters, generator, levels=levels, parts=parts)
    people = FullEmbedding(users, parts * width)
    kind = draw(st.sampled_from(["plain", "biased", "personal"]))
    ids = st.integers(0, items - 1)
    if kind == "biased":
        table, people = BiasedEmbedding(table), BiasedEmbedding(people)
    if kind == "personal":
        table = PersonalEmbedding(table)
        table.give(torch.tensor(sorted(draw(st.sets(ids))), dtype=torch.int64))
    model = Model(people, table)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-3, 4, parameter.shape, generator=generator) / 4)
    priority = draw(st.lists(st.integers(0, 3), min_size=items, max_size=items))
    pairs = draw(st.lists(st.tuples(st.integers(0, users - 1), ids), max_size=60))
    filters = draw(st.none() | st.lists(ids)), draw(st.none() | st.lists(ids))
    return model, priority, pairs, *filters, draw(st.lists(st.integers(-1, users - 1), max_size=6))


def predicted(model, user, items):
    with torch.no_grad():
        return model(Batch.pairs(torch.full((items,), user), torch.arange(items))).tolist()


@given(cases(), st.integers(1, 65))
@settings(max_examples=200)
def test_filters_and_ties_are_those_of_a_sort(case, k):
    model, priority, pairs, allowed, banned, asked = case
    items, seen = len(priority), SeenItems()
    seen.add([user for user, _ in pairs], [item for _, item in pairs])
    top = TopK(model, priority).within(allowed, banned)
    best = top.recommend(np.array(asked, np.int64), k, seen=seen)
    out = set() if allowed is None else set(range(items)) - set(allowed)
    out |= set(banned or ())
    for row, user in enumerate(asked):
        scores = predicted(model, user, items)
        gone = out | {item for who, item in pairs if who == user}
        expected = slow_best(scores, priority, k, gone)
        assert best.items[row].tolist() == expected + [-1] * (k - len(expected))
        assert best.scores[row, : len(expected)].tolist() == [scores[item] for item in expected]
        assert (best.scores[row, len(expected) :] == -np.inf).all()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("levels", "parts"), [(2, 1), (3, 1), (1, 4), (2, 2)])
def test_rounding_loses_nothing(levels, parts, biased):
    items, users, k = 3_000, 20, 15
    generator = torch.Generator().manual_seed(levels)
    table = levelled(items, 8, 12, generator, levels=levels, parts=parts)
    people = FullEmbedding(users, 8)
    if biased:
        table, people = BiasedEmbedding(table), BiasedEmbedding(people)
    model = Model(people, table)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    best = TopK(model, np.zeros(items)).recommend(np.arange(users), k)
    for user in range(users):
        scores = np.array(predicted(model, user, items))
        np.testing.assert_allclose(best.scores[user], np.sort(scores)[::-1][:k], rtol=1e-5)
        np.testing.assert_allclose(best.scores[user], scores[best.items[user]], rtol=1e-5)


@pytest.mark.parametrize("where", ["row", "bias"])
def test_scores_that_are_no_numbers_win_nothing(where):
    table = levelled(40, 2, 5, torch.Generator().manual_seed(0), levels=3)
    items = BiasedEmbedding(table)
    model = Model(BiasedEmbedding(FullEmbedding(3, 2)), items)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    if where == "row":
        table.clustered_levels[1].weight.data[2] = float("nan")
    else:
        items.bias.data[:20] = float("nan")
    priority = np.arange(40)
    best = TopK(model, priority).recommend([0, 1, 2], 40)
    for user in range(3):
        expected = slow_best(predicted(model, user, 40), priority, 40, ())
        assert best.items[user].tolist() == expected + [-1] * (40 - len(expected))


def test_the_tree_has_each_item_once_below_its_codes():
    table = levelled(200, 4, 5, torch.Generator().manual_seed(0), levels=3)
    codes = item_codes(table, 200)
    labels = codes @ np.array([25, 5, 1])
    tree = CodeTree.of(ItemGroups.of(labels, np.arange(200, dtype=np.int32)), codes, table)
    found = Counter()
    for branch, first in enumerate(tree.first):
        for pair in range(*tree.branch_starts[branch : branch + 2]):
            for group in range(*tree.pair_starts[pair : pair + 2]):
                rows = np.array([first, tree.second[pair], *tree.later[group]])
                for item in tree.members[slice(*tree.starts[group : group + 2])]:
                    assert (rows - tree.level_starts[:-1] == codes[item]).all()
                    found[item] += 1
    assert found == Counter(range(200))


def test_only_sums_over_levels_are_searched_so():
    def made(table, users=None, **model):
        return summed_items(Model(users or FullEmbedding(3, 4), table, **model))

    sums = LevelledEmbedding(9, 4, max_clusters=3, levels=2)
    assert made(sums) is sums
    assert made(BiasedEmbedding(sums), BiasedEmbedding(FullEmbedding(3, 4))) is sums
    assert made(PersonalEmbedding(sums)) is None
    assert made(FullEmbedding(9, 4)) is None
    assert made(LevelledEmbedding(9, 4, max_clusters=3, levels=1)) is None
    assert made(LevelledEmbedding(9, 4, max_clusters=3, padding_idx=0)) is None
    assert made(sums, model=MODELS["deepfm"](4, 0)) is None


@pytest.mark.parametrize("name", ["neumf", "deepfm"])
def test_networks_find_the_best(name):
    generator = torch.Generator().manual_seed(1)
    network = MODELS[name](10, 0)
    dim = 10 + network.extra_columns
    model = Model(FullEmbedding(3, dim), levelled(50, dim, 4, generator, levels=2), network)
    model.items.levels[1].weight.data.normal_(generator=generator)
    best = TopK(model.eval(), np.zeros(50)).recommend([0, 1, 2], 7)
    for user in range(3):
        scores = np.array(predicted(model, user, 50))
        np.testing.assert_allclose(best.scores[user], np.sort(scores)[::-1][:7], rtol=1e-4)


def test_similar_items_share_all_codes_first():
    table = LevelledEmbedding(6, 2, max_clusters=2, levels=2)
    table.levels[0].start_from(torch.tensor([0, 0, 0, 1, 1, 1]))
    table.levels[1].start_from(torch.tensor([0, 1, 0, 0, 1, 0]))
    table.levels[0].weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    table.levels[1].weight.data.copy_(torch.tensor([[0.0, 0.0], [0.3, 0.3]]))
    found = TopK(Model(FullEmbedding(1, 2), table), np.zeros(6)).similar([0], 5)
    assert found.items.tolist() == [[2, 1, 4, 3, 5]]


def test_serving_keeps_the_levels():
    table = LevelledEmbedding(6, 2, max_clusters=2, levels=2)
    model = Model(FullEmbedding(1, 2), table)
    assert model.with_materialised_items() is model
