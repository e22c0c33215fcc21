import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from celrec.cel.split import (
    SPLIT_METHODS,
    Members,
    gpca,
    gradient_random_projection,
    gradient_two_means,
    random_split,
    user_inspired_two_means,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def members(gradients, partners=None):
    gradients = torch.as_tensor(gradients)
    return Members(gradients, torch.ones(len(gradients)), partners)


def normal(rows, columns, seed=0):
    return torch.randn(rows, columns, generator=generator(seed), dtype=torch.float64)


@given(st.integers(2, 30), st.integers(1, 6), st.integers(0, 1000))
def test_gpca_scores_are_those_of_the_first_singular_vector(rows, columns, seed):
    gradients = normal(rows, columns, seed)
    _, singular, directions = np.linalg.svd(gradients.numpy(), full_matrices=False)
    assume(len(singular) == 1 or singular[0] > 1.01 * singular[1])  # else there is no first one
    direction = directions[0]
    direction *= np.sign(direction[np.abs(direction).argmax()])
    expected = gradients.numpy() @ direction
    assert np.allclose(gpca(members(gradients), generator()), expected, atol=1e-9)


@given(st.integers(2, 30), st.integers(1, 6), st.integers(0, 1000))
def test_gpca_is_neither_random_nor_moved_by_the_sign_of_all_gradients(rows, columns, seed):
    gradients = normal(rows, columns, seed)
    first = gpca(members(gradients), generator(1))
    assert torch.equal(gpca(members(gradients), generator(2)), first)
    assert torch.equal(gpca(members(-gradients), generator()), -first)


def test_gpca_looks_at_gradients_in_double_precision():
    single = normal(30, 6).float()
    scores = gpca(members(single), generator())
    assert torch.equal(scores, gpca(members(single.double()), generator()))


def test_no_gradients_at_all_give_equal_scores():
    for method in (gpca, gradient_random_projection, gradient_two_means):
        assert method(members(torch.zeros(4, 3)), generator()).tolist() == [0] * 4


@given(st.integers(0, 2**40))
def test_random_methods_are_decided_by_the_generator(seed):
    known = members(normal(10, 3), partners=normal(10, 2, seed=1))
    for method in SPLIT_METHODS.values():
        first, second = (method(known, generator(seed)) for _ in range(2))
        assert torch.equal(first, second)
        assert first.shape == (10,)
        assert first.isfinite().all()


@pytest.mark.parametrize("method", [random_split, gradient_random_projection])
def test_another_seed_gives_other_scores(method):
    known = members(normal(10, 3))
    assert not torch.equal(method(known, generator(0)), method(known, generator(1)))


def test_a_random_split_does_not_look_at_the_members():
    first = random_split(members(normal(10, 3)), generator(5))
    assert torch.equal(random_split(members(normal(10, 3, seed=1)), generator(5)), first)


def test_random_scores_are_as_often_positive_as_negative():
    scores = random_split(members(torch.zeros(10_000, 1)), generator())
    assert float((scores > 0).double().mean()) == pytest.approx(0.5, abs=0.03)
    assert float(scores.std()) == pytest.approx(1, abs=0.05)


@given(st.integers(0, 1000))
def test_a_random_projection_is_one_on_a_direction_of_length_one(seed):
    gradients = normal(20, 4)
    scores = gradient_random_projection(members(gradients), generator(seed))
    direction = np.linalg.lstsq(gradients.numpy(), scores.numpy())[0]
    assert np.allclose(gradients.numpy() @ direction, scores)
    assert np.linalg.norm(direction) == pytest.approx(1)


@given(st.lists(st.booleans(), min_size=2, max_size=60), st.integers(0, 1000))
def test_two_means_tells_two_blobs_apart(side, seed):
    assume(any(side) and not all(side))
    blob = torch.tensor(side)
    points = normal(len(side), 3, seed) + 40.0 * blob[:, None]
    found = gradient_two_means(members(points), generator(seed)) >= 0
    assert torch.equal(found, blob) or torch.equal(found, ~blob)


@pytest.mark.parametrize("origin", [1e9, -1e11])
def test_two_means_is_as_good_far_from_the_origin(origin):
    # Where distances made from squared norms would be wrong by more than the distances.
    blob = torch.arange(60) % 2 == 0
    points = normal(60, 3) + 40.0 * blob[:, None]
    near = gradient_two_means(members(points), generator())
    far = gradient_two_means(members(points + origin), generator())
    assert torch.equal(near >= 0, blob) or torch.equal(near >= 0, ~blob)
    torch.testing.assert_close(far, near, rtol=1e-4, atol=1e-3)


@given(st.integers(2, 12), st.integers(0, 1000))
def test_two_means_scores_are_distances_to_the_means_of_the_two_sides(size, seed):
    points = normal(size, 2, seed)
    scores = gradient_two_means(members(points), generator(seed))
    second = scores > 0
    assert second.any()
    assert not second.all()
    for score, point in zip(scores, points, strict=True):
        nearness = [(point - points[side].mean(0)).norm() for side in (~second, second)]
        assert float(score) == pytest.approx(float(nearness[0] - nearness[1]), abs=1e-6)


def test_the_second_centre_is_drawn_far_from_the_first():
    # Of 50 points at 0 and one at 1, the one is a centre whichever comes first.
    points = torch.zeros(51, 1)
    points[7] = 1
    for seed in range(20):
        scores = gradient_two_means(members(points), generator(seed))
        assert (scores[7] > 0) != (scores[6] > 0)


def test_two_means_of_equal_points_finds_no_difference():
    points = torch.tensor([[0.1, 0.2, 0.3]]).expand(7, 3)
    assert gradient_two_means(members(points), generator()).tolist() == [0] * 7


def test_user_inspired_splits_look_at_partners_and_not_at_gradients():
    partners = torch.tensor([[0.0], [9.0], [0.1], [9.1]])
    scores = user_inspired_two_means(members(normal(4, 2), partners), generator()) > 0
    assert scores.tolist() in ([True, False, True, False], [False, True, False, True])
    others = user_inspired_two_means(members(normal(4, 2, seed=1), partners), generator()) > 0
    assert torch.equal(scores, others)


def test_user_inspired_splits_need_partners():
    with pytest.raises(ValueError, match="partners"):
        user_inspired_two_means(members(normal(4, 2)), generator())
