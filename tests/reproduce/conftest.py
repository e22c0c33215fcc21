from dataclasses import replace

import polars as pl
import pytest

from celrec import Planted
from reproduce import presence, trial


@pytest.fixture
def all_data(monkeypatch):
    """As if every data set were there."""
    monkeypatch.setattr(presence, "find_dataset", lambda name: name)


@pytest.fixture
def small_log(monkeypatch):
    """In the place of every data set a small log."""
    log = Planted(rows=3000, users=40, items=50, dim=3, item_clusters=4).interactions()
    monkeypatch.setattr(trial, "load_dataset", lambda _: log)
    trial.load_log.cache_clear()
    yield log
    trial.load_log.cache_clear()


@pytest.fixture(scope="session")
def log_with_genres():
    """A small log, with as many genres as MovieLens-100k has."""
    log = Planted(rows=4000, users=60, items=120, dim=3, item_clusters=10, noise=0.3).interactions()
    genres = [[f"genre {number % 19}", "another"] for number in range(log.num_items)]
    return replace(log, item_features=pl.DataFrame({"genres": genres}))


@pytest.fixture
def all_data_are_small(all_data, log_with_genres, monkeypatch):  # noqa: ARG001
    """As if every data set were there, and were a small log with genres."""
    monkeypatch.setattr(trial, "load_dataset", lambda _: log_with_genres)
    trial.load_log.cache_clear()
    yield
    trial.load_log.cache_clear()
