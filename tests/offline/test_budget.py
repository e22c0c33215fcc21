from itertools import pairwise

import numpy as np
import pytest
import torch

from celrec import CelrecError, Plan, Planted, Split, fit
from celrec.config.byte_budget import parse_budget
from celrec.offline.budget import BudgetSearch
from celrec.offline.packing import Candidate, Levels, compressed

METHODS = ("cel", "kmeans", "rq", "pq", "int8", "int4", "full")


@pytest.fixture(scope="module")
def split():
    log = Planted(6000, 120, 90, dim=3, item_clusters=9, noise=0.3, seed=3).interactions()
    return Split.random(log)


@pytest.fixture(scope="module")
def full(split):
    return fit(split, Plan("full", model="mf", rank=6)).model


def search_of(split, full):
    return BudgetSearch(full, split.train, split.valid, 6)


def size_of(model):
    return sum(table.memory().total for table in model.whole_tables.values())


@pytest.mark.parametrize(
    ("text", "ids", "found"),
    [("50kB", 10, 50_000), ("2B/id", 300, 600), ("2.5B/id", 1000, 2500), (1234, 5, 1234)],
)
def test_a_budget_is_bytes_or_bytes_an_id(text, ids, found):
    assert parse_budget(text, ids) == found


@pytest.mark.parametrize("text", ["", "50 apples", "5/id", "-3kB", "kB", "1e3"])
def test_other_words_are_refused(text):
    with pytest.raises(CelrecError, match="budget must be bytes such as 50kB or 2B/id, not"):
        parse_budget(text, 10)


TOO_SMALL = {(method, 3) for method in ("int8", "int4", "full")}


@pytest.mark.parametrize(
    ("method", "each"),
    [(name, each) for name in METHODS for each in (3, 14) if (name, each) not in TOO_SMALL],
)
def test_the_choice_fits_in_the_budget_and_its_size_is_that_of_the_tables(
    split, full, method, each
):
    budget = each * (split.train.num_users + split.train.num_items)
    choice = search_of(split, full).best(budget, method)
    model = compressed(full, split.train, choice.candidate)
    assert size_of(model) == choice.size <= budget
    error = (model.predict(split.valid) - torch.tensor(split.valid.target)).square().mean()
    assert float(error) == pytest.approx(choice.valid_loss, rel=1e-5)


def test_more_bytes_never_have_a_higher_error_on_validation_data(split, full):
    search, losses, last = search_of(split, full), [], None
    for each in (2, 4, 8, 16):
        choice = search.best(each * 210, "cel", last)
        losses.append(choice.valid_loss)
        last = choice.settings
    assert all(later <= earlier * 1.02 for earlier, later in pairwise(losses))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("method", "budget"), [("cel", 20), *((name, 630) for name, _ in sorted(TOO_SMALL))]
)
def test_too_few_bytes_are_refused_with_how_many_there_must_be(split, full, method, budget):
    with pytest.raises(CelrecError, match=f"{budget} bytes are too few .* give more, such as"):
        search_of(split, full).best(budget, method)


def test_validation_data_are_needed(split, full):
    with pytest.raises(CelrecError, match="budget needs validation data"):
        BudgetSearch(full, split.train, split.valid[:0], 6)


@pytest.mark.parametrize("bias_rows", [0, 4])
@pytest.mark.parametrize("method", ["cel", "rq"])
def test_packed_models_predict_about_what_the_full_fit_does(split, full, method, bias_rows):
    codes = "joint" if method == "cel" else "weighted-k-means"
    candidate = Candidate(method, 6, Levels(64, 3), Levels(64, 3), bias_rows, codes)
    model = compressed(full, split.train, candidate)
    # Where there are fewer sums than rows, a level has rows to spare.
    assert size_of(model) <= candidate.size(split.train.num_users, split.train.num_items)
    apart = np.square((model.predict(split.test) - full.predict(split.test)).numpy()).mean()
    assert apart < 0.05 * float(full.predict(split.test).var())
