import pytest

from celrec import read
from celrec.config.plan import Plan
from celrec.evaluation.ranking import relevant_from


def log_of(*targets):
    ids = list(range(len(targets)))
    return read({"user": ids, "item": ids, "rating": [float(one) for one in targets]})


@pytest.mark.parametrize(
    ("how", "targets", "expected"),
    [
        ({}, (1, 5, 3), 3.2),
        ({}, (0, 1, 1), 1.0),
        ({}, (1, 1), 1.0),
        ({"model": "mmoe", "positive": 4.0}, (1, 5), 4.0),
        ({"model": "deepfm", "loss": "cross-entropy", "positive": 4.0}, (0, 1), 1.0),
        ({"model": "deepfm", "loss": "ranking"}, (2, 5), None),
    ],
)
def test_what_is_liked_depends_on_the_targets_and_on_what_was_trained(how, targets, expected):
    assert relevant_from(Plan(**how), log_of(*targets), 3.2) == expected
