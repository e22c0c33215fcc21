import numpy as np
import pytest
import torch

from celrec.embeddings.posterior import IMPOSSIBLE, PosteriorEmbedding
from celrec.offline.fitting import fit
from reproduce.lite_table import BEST_ROW, MIXTURES, THEIRS, LiteTable, keep_best_rows
from tests.reproduce.entries import by_place, small

TABLE = LiteTable()


def test_mixtures_and_the_paper_s_loop_differ_in_nothing_but_the_preset():
    entries = by_place(TABLE)
    assert len(entries) == 6
    for data, rows, paper in (("ml-100k", "17", 0.8824), ("ml-1m", "40", 0.7901)):
        mixtures, best, theirs = (entries[row, data] for row in (MIXTURES, BEST_ROW, THEIRS))
        assert mixtures.trial == best.trial == mixtures.tuned
        assert mixtures.trial.plan.compression == rows
        assert theirs.trial == mixtures.trial.having("plan.preset", "paper")
        assert (mixtures.paper, theirs.paper) == (None, paper)
        assert len(theirs.values) == len(mixtures.values)


def test_the_best_row_is_the_one_with_the_least_evidence_against_it():
    torch.manual_seed(0)
    table = PosteriorEmbedding(30, 4, rows=5)
    table.evidence.copy_(torch.randint(1, 255, table.evidence.shape))
    table.evidence[3] = table.evidence[-1]  # as if nothing were known of it
    before, weights = table.evidence.clone(), table.weights(torch.arange(-1, 30))
    keep_best_rows(table)
    for number, evidence in enumerate(before):
        if number in (3, 30):
            assert torch.equal(table.evidence[number], evidence)
        else:
            best = int(evidence.argmin())
            expected = torch.full_like(evidence, IMPOSSIBLE)
            expected[best] = 0
            assert torch.equal(table.evidence[number], expected)
    now = table.weights(torch.arange(-1, 30))
    torch.testing.assert_close(now[[0, 4]], weights[[0, 4]])
    others = [number for number in range(31) if number not in (0, 4)]
    assert torch.equal(now[others].argmax(1), weights[others].argmax(1))
    assert bool((now[others].max(1).values == 1).all())


@pytest.mark.usefixtures("all_data_are_small")
def test_a_cell_tells_the_error_with_the_best_rows_and_a_loop_without_mixtures_none():
    entries = by_place(TABLE)
    mixtures, theirs = (
        small(entries[row, "ml-100k"], steps=4, validate_every=2) for row in (MIXTURES, THEIRS)
    )
    found = TABLE.run(mixtures.cell())
    split = mixtures.split()
    model = fit(split, mixtures.plan, change=mixtures.changed).model
    error = np.square(model.predict(split.test).numpy() - split.test.target).mean()
    assert found["test"]["mse"] == pytest.approx(error)
    keep_best_rows(model.items)
    error = np.square(model.predict(split.test).numpy() - split.test.target).mean()
    assert found["best_row"] == pytest.approx(error)
    assert found["best_row"] != found["test"]["mse"]
    assert TABLE.measured(entries[MIXTURES, "ml-100k"], found) == found["test"]["mse"]
    assert TABLE.measured(entries[BEST_ROW, "ml-100k"], found) == found["best_row"]
    literal = TABLE.run(theirs.cell())
    assert literal["best_row"] is None
    assert TABLE.measured(entries[THEIRS, "ml-100k"], literal) == literal["test"]["mse"]
    assert TABLE.serves(theirs.cell(), literal)
    assert not TABLE.serves(theirs.cell(), {"valid": 1.0, "test": {}})
