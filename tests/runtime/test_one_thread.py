import pytest
import torch

import celrec
from celrec.config.plan import Plan
from celrec.offline.fitting import fit
from celrec.online import trainer as online_trainer
from celrec.runtime.threads import one_thread


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_there_is_one_inside_and_as_many_as_before_outside():
    with one_thread():
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_what_goes_wrong_inside_changes_nothing_outside():
    @one_thread()
    def fail():
        assert torch.get_num_threads() == 1
        raise RuntimeError

    for _ in range(2):
        with pytest.raises(RuntimeError):
            fail()
        assert torch.get_num_threads() == 2


def test_online_learning_has_one_thread(monkeypatch):
    seen = []
    usual = online_trainer.OnlineTrainer.descend

    def watched(self, *given):
        seen.append(torch.get_num_threads())
        return usual(self, *given)

    monkeypatch.setattr(online_trainer.OnlineTrainer, "descend", watched)
    log = celrec.Planted(rows=600, users=20, items=15, item_clusters=3).interactions()
    fit(celrec.Split.random(log), Plan(model="nmf", embedding="cel-lite", compression="4"))
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2
