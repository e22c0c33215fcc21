import numpy as np
import pytest

from celrec.config.building import starting_clusters
from celrec.offline.fitting import fit
from reproduce.table5 import EXPERIMENTS
from tests.reproduce.entries import by_place, settings, small, validation_records

TABLE = EXPERIMENTS["table5"]
pytestmark = pytest.mark.usefixtures("all_data_are_small")


def test_the_papers_numbers_stand_in_their_places():
    entries = by_place(TABLE)
    assert entries["By genre", "ml-1m, 18 rows"].paper == 1.0515
    assert entries["By mean rating", "ml-1m, 200 rows"].paper == 0.8380
    assert entries["By genre, then CEL", "ml-1m, 200 rows"].paper == 0.7776
    assert entries["By mean rating, then CEL", "ml-1m, 40 rows"].paper == 0.7892
    assert entries["CEL", "ml-1m, 18 rows"].paper == 0.7985
    assert len(entries) == 13
    assert [column for row, column in entries if row == "By genre"] == ["ml-1m, 18 rows"]
    usual = entries["CEL", "ml-1m, 40 rows"].trial
    assert all(entry.tuned == usual for entry in entries.values())


@pytest.mark.parametrize(
    ("row", "start"), [("By genre", "genres"), ("By mean rating", "ratings:19")]
)
def test_rules_alone_make_all_clusters(row, start):
    trial = small(by_place(TABLE, quick=True)[row, "ml-100k, 19 rows"], steps=6)
    split = trial.split()
    fitted = fit(split, trial.plan, change=trial.changed)
    assert {(j.clusters, j.moved) for j in fitted.validation_records["choose"]} == {(19, 0)}
    learned = fitted.model.items.assignment[:-1].numpy()
    assert np.array_equal(learned, starting_clusters(start, split.train_and_valid(), "items", 0))


@pytest.mark.parametrize("row", ["By genre, then CEL", "By mean rating, then CEL"])
def test_cel_goes_on_from_as_many_clusters_as_there_are_genres(row):
    entries = by_place(TABLE, quick=True)
    told = validation_records(small(entries[row, "ml-100k, 34 rows"], steps=40, validate_every=1))
    assert 19 <= told[0].clusters < 22
    assert told[-1].clusters == 34
    told = validation_records(small(entries[row, "ml-100k, 19 rows"], steps=6))
    assert {record.clusters for record in told} == {19}
    assert told[0].moved > 0


def test_cel_alone_begins_with_one_cluster():
    entry = by_place(TABLE)["CEL", "ml-1m, 40 rows"]
    assert entry.trial == entry.tuned
    assert entry.trial.plan.start is None
    assert settings(entry).schedule.split_every == 1
