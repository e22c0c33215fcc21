import math

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import celrec
from celrec import CelrecError
from celrec.embeddings.adaptive import AdaptiveEmbedding
from celrec.embeddings.prehash import PreHashEmbedding
from reproduce.film_clusters import clusters_of, describe_clusters

GENRES = ["Comedy", "Drama", "War"]


@st.composite
def films(draw):
    """Films with their genres, some ratings and clusters."""
    number = draw(st.integers(1, 8))
    genres = draw(st.lists(st.lists(st.sampled_from(GENRES), unique=True), min_size=number,
                           max_size=number))  # fmt: skip
    rated = draw(
        st.lists(st.tuples(st.integers(0, number - 1), st.integers(1, 5)), min_size=1, max_size=30)
    )
    clusters = draw(st.lists(st.integers(0, 2), min_size=number, max_size=number))
    log = celrec.read(
        {
            "user": [0] * (number + len(rated)),
            "item": [*range(number), *(item for item, _ in rated)],
            "rating": [3.0] * number + [float(rating) for _, rating in rated],
        },
        item_features=pl.DataFrame(
            {
                "item": range(number),
                "title": [f"Film {n}" for n in range(number)],
                "genres": pl.Series(genres, dtype=pl.List(pl.String)),
            }
        ),
    )
    return log[number:], np.array(clusters)  # some films are without ratings


@given(films())
def test_clusters_are_described_as_film_by_film(given_films):
    log, clusters = given_films
    expected = []
    for cluster in set(clusters.tolist()):
        members = [item for item in range(log.num_items) if clusters[item] == cluster]
        ratings = {
            item: [float(r) for i, r in zip(log.item, log.target, strict=True) if i == item]
            for item in members
        }
        every = [rating for of_item in ratings.values() for rating in of_item]
        if not every:
            continue
        mean = sum(every) / len(every)
        means = [sum(r) / len(r) for r in ratings.values() for _ in r]
        labels = log.item_features["genres"].to_list()
        genres = []
        for genre in GENRES:
            inside = sum(genre in labels[item] for item in members)
            share = inside / len(members)
            overall = sum(genre in one for one in labels) / len(labels)
            if inside:
                genres.append((genre, share, share - overall))
        genres.sort(key=lambda one: -one[2])
        known = sorted(members, key=lambda item: -len(ratings[item]))
        expected.append(
            {
                "items": len(members),
                "ratings": len(every),
                "mean": pytest.approx(mean),
                "spread": pytest.approx(
                    math.sqrt(sum((r - mean) ** 2 for r in every) / len(every)), abs=1e-6
                ),
                "item_spread": pytest.approx(
                    math.sqrt(sum((m - mean) ** 2 for m in means) / len(every)), abs=1e-6
                ),
                "titles": [f"Film {item}" for item in known if ratings[item]][:5],
                "genres": genres,
            }
        )
    found = describe_clusters(clusters, log)
    assert [one["mean"] for one in found] == sorted(one["mean"] for one in found)
    key = lambda one: (one["titles"], one["items"])  # noqa: E731
    for mine, slow in zip(sorted(found, key=key), sorted(expected, key=key), strict=True):
        above = [one[2] for one in mine.pop("genres")]
        assert above == pytest.approx([one[2] for one in slow.pop("genres")])
        assert mine == slow


def test_of_a_mixture_the_largest_weight_counts_and_anchors_have_their_own():
    table = PreHashEmbedding(5, 2, rows=3)
    table.bind(torch.tensor([4, 0]))
    table.logit.data = torch.tensor([[0.0, 9, 0], [0, 0, 1], [2, 1, 0], [0, 0, 1], [0, 0, 9]])
    rows, clusters = clusters_of(table)
    assert clusters.tolist() == [1, 2, 0, 2, 0]
    assert torch.equal(rows, table.weight.detach())


def test_rows_that_nobody_has_are_no_clusters():
    table = AdaptiveEmbedding(6, 2, rows=4)
    table.promote(torch.tensor([5]))
    rows, clusters = clusters_of(table)
    assert len(rows) == len(set(clusters.tolist())) <= 3
    assert torch.equal(rows[clusters], table(torch.arange(6)))


def test_mixtures_of_few_rows_and_logs_without_titles_are_told_of():
    with pytest.raises(CelrecError, match="ids of a PreHashEmbedding are in no clusters"):
        clusters_of(PreHashEmbedding(5, 2, rows=3, k=2))
    log = celrec.read({"user": [1], "item": [1], "rating": [1.0]})
    with pytest.raises(CelrecError, match="nothing is known of its items"):
        describe_clusters(np.array([0]), log)
