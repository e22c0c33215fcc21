"""What several processes add up to, computed one after the other in this one."""

from functools import partial

import pytest
import torch

import celrec
from celrec import Plan, Planted
from celrec.config.building import make_model
from celrec.config.offline import MinibatchConfig
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.offline.minibatch import MinibatchDescent
from celrec.offline.samples import BatchShard
from celrec.runtime.communicator import LOCAL
from tests.ranks import Rank

PLANS = {
    "deepfm": {"model": "deepfm", "side": "both"},
    "din": {"model": "din"},
    "dien": {"model": "dien"},
    "mmoe": {"model": "mmoe", "positive": 3.0, "preset": "default"},
    "ranking": {"model": "din", "loss": "ranking"},
    "collapsed": {"model": "neumf", "rank": 12, "side": "both"},
    "tree": {"model": "deepfm", "embedding": "etree"},
}


def solver_of(name):
    planted = Planted(400, 30, 20, dim=2, item_clusters=3).interactions()
    shops = planted.to_frame().with_columns(shop=celrec.read(planted.to_frame()).item % 4)
    log = planted if name == "collapsed" else celrec.read(shops, columns=["shop"])
    plan = Plan(**{"rank": 4, "compression": "3", "preset": "scratch", **PLANS[name]})
    model = make_model(log, plan).double()
    for table in model.tables.values():
        if isinstance(table, ClusteredEmbedding):
            table.start_from(torch.arange(table.num_embeddings) % 3)
    if name in ("deepfm", "din"):  # rows that are drawn
        model.deviations["users"] = torch.rand(log.num_users + 1, 3, 3)
    solver = MinibatchDescent(model, log, MinibatchConfig(l2=0.3), 0)
    solver.start(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, dtype=torch.float64)
    return solver


def slopes(solver, samples, communicator):
    """The gradients that one of several processes has of a batch."""
    model = solver.model.train()
    generator = torch.Generator().manual_seed(4)
    whole = solver.with_negatives(
        solver.samples.take(torch.arange(len(solver.samples))[:samples]), generator
    )
    part = BatchShard(whole, communicator)
    model.draw_normal = partial(part.normal, generator)
    solver.communicator = communicator
    loss = (model.objective(part.batch) * part.weight).sum() / part.whole_weight
    loss = loss + solver.penalties(part)
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    after = torch.rand(1, generator=generator)  # all have drawn as many numbers
    return dict(zip(names, found, strict=True)), after


@pytest.mark.parametrize("samples", [50, 3, 1])
@pytest.mark.parametrize("name", PLANS)
def test_gradients_of_parts_sum_up_to_that_of_the_batch(name, samples):
    solver = solver_of(name)
    expected, drawn = slopes(solver, samples, LOCAL)
    assert any(slope is not None and bool(slope.any()) for slope in expected.values())
    for size in (2, 5):
        parts = [slopes(solver, samples, Rank(rank, size)) for rank in range(size)]
        assert all(torch.equal(after, drawn) for _, after in parts)
        for key, whole in expected.items():
            found = [part[key] for part, _ in parts]
            assert [slope is None for slope in found] == [whole is None] * size
            if whole is not None:
                torch.testing.assert_close(sum(found), whole, rtol=1e-6, atol=1e-9, msg=key)
