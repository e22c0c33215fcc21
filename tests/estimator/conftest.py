from dataclasses import replace

import polars as pl
import pytest

from celrec import Planted, Recommender
from celrec.config.presets import PRESETS
from tests.estimator.small import SMALL


@pytest.fixture(scope="module", autouse=True)
def few_steps():
    """Few data leave none to validate on, and then training takes all the steps that it may."""
    with pytest.MonkeyPatch.context() as patch:
        for model in ("mf", "nmf"):
            how = PRESETS[model]["default"]
            fewer = replace(how, schedule=replace(how.schedule, steps=50))
            patch.setitem(PRESETS[model], "default", fewer)
        yield


@pytest.fixture(scope="module")
def log():
    """Users are numbers, items texts."""
    rows = Planted(2_000, 40, 30, dim=2, item_clusters=4, noise=0.3).interactions().to_frame()
    return rows.select(
        "user", pl.format("item {}", "item").alias("item"), pl.col("target").alias("rating")
    )


@pytest.fixture(scope="module")
def fitted(log):
    return Recommender(**SMALL).fit(log)


@pytest.fixture(scope="module")
def live(log):
    return Recommender(**SMALL).partial_fit(log)


@pytest.fixture(params=["fitted", "live"])
def rec(request):
    return request.getfixturevalue(request.param)
