import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celrec.embeddings.kmeans import draw_start, k_means, nearest


def test_centroids_are_near_the_best_there_are():
    torch.manual_seed(0)
    centres = 10 * torch.randn(6, 3)
    points = (centres.repeat(50, 1) + 0.1 * torch.randn(300, 3))[torch.randperm(300)]
    for seed in range(5):
        centroids = k_means(points, 6, torch.Generator().manual_seed(seed))
        assert nearest(points, centroids)[1].mean() < 0.1


def test_different_points_have_centroids_of_their_own_if_there_are_enough():
    points = torch.randn(10, 2)[torch.randint(10, (600,))]
    for clusters in (10, 25):
        centroids = k_means(points, clusters, torch.Generator().manual_seed(0))
        assert nearest(points, centroids)[1].max() < 1e-5


@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 10**6), st.booleans(), st.booleans())
@settings(max_examples=60)
def test_distances_are_those_of_the_nearest_centroid(width, clusters, seed, level, exact):
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(23, width, generator=generator)
    centroids = torch.randn(clusters, width, generator=generator)
    if level:
        centroids[:, 0] = 0.5
    cluster, distance = nearest(points, centroids, exact=exact)
    slow = torch.cdist(points, centroids, compute_mode="donot_use_mm_for_euclid_dist")
    torch.testing.assert_close(distance, slow.min(1).values.square(), atol=1e-4, rtol=1e-4)
    chosen = slow.gather(1, cluster[:, None])[:, 0]
    torch.testing.assert_close(chosen, slow.min(1).values, atol=1e-3, rtol=1e-4)


def test_many_points_are_looked_at_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr("celrec.embeddings.kmeans.CELLS", 20)  # five points at a time
    points, centroids = torch.randn(23, 4), torch.randn(4, 4)
    slow = torch.cdist(points, centroids)
    assert nearest(points, centroids)[0].tolist() == slow.argmin(1).tolist()


@pytest.mark.parametrize("width", [2, 5])
def test_points_that_are_no_numbers_have_some_centroid(width):
    points = torch.full((3, width), torch.nan)
    assert nearest(points, torch.randn(4, width))[0].ge(0).all()


@given(st.integers(0, 10**6), st.integers(1, 6))
@settings(max_examples=30)
def test_a_start_is_drawn_by_the_squares_of_distances(seed, clusters):
    points = torch.randn(9, 2, generator=torch.Generator().manual_seed(seed))
    draws = torch.rand(clusters, dtype=torch.float64)
    expected = [seed % 9]
    for draw in draws.tolist():
        chances = [
            min(float((point - points[one]).double().square().sum()) for one in expected)
            for point in points
        ]
        edges = np.cumsum(chances)
        expected.append(int(np.flatnonzero(edges > draw * edges[-1])[0]))
    assert torch.equal(draw_start(points, seed % 9, draws), points[expected])
