import pytest
import torch

from celrec.config.building import make_model
from celrec.offline.gradient_descent import GradientDescent
from reproduce.table14 import EXPERIMENTS
from tests.reproduce.entries import by_place, settings

TABLE = EXPERIMENTS["table14"]


@pytest.mark.parametrize(
    ("row", "paper", "kind"),
    [
        ("GD", 0.8654, torch.optim.SGD),
        ("Adam", 0.8720, torch.optim.Adam),
        ("AdaGrad", 0.9160, torch.optim.Adagrad),
        ("RMSProp", 0.8754, torch.optim.RMSprop),
    ],
)
def test_rows_are_optimisers_of_averaged_gradients(log_with_genres, row, paper, kind):
    entry = by_place(TABLE)[row, "2 %"]
    how = settings(entry)
    model = make_model(log_with_genres, entry.trial.plan)
    assert type(GradientDescent(model, log_with_genres, how.solver).optimizer) is kind
    assert how.solver.average
    assert entry.trial.plan.compression == "34"
    assert entry.paper == paper
    assert entry.setting == "solver.learning_rate"
    assert entry.tuned == entry.trial
    assert entry.trial.change[entry.setting] in entry.values


def test_there_are_no_other_rows():
    assert len(by_place(TABLE)) == 4
