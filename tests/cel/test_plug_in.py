"""Clustered tables with what else people use: compilers, exports, optimisers, processes."""

import copy
import inspect
import subprocess
import sys
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn, optim

import celrec
from celrec.cel.autograd_evidence import AutogradEvidence
from celrec.cel.evidence import DistributedEvidence

USERS, ITEMS, TAGS, DIM = 9, 24, 15, 4


class Model(nn.Module):
    """Somebody's model of users, items and bags of tags."""

    def __init__(self, dtype=None):
        super().__init__()
        torch.manual_seed(0)
        self.user = nn.Embedding(USERS, DIM, dtype=dtype)
        self.item = nn.Embedding(ITEMS, DIM, dtype=dtype)
        self.tags = nn.EmbeddingBag(TAGS, DIM, mode="sum", padding_idx=0, dtype=dtype)
        self.layer = nn.Linear(2 * DIM, 1, dtype=dtype)

    def forward(self, user, item, tags):
        both = torch.cat([self.user(user) * self.item(item), self.tags(tags)], -1)
        return self.layer(both).squeeze(-1)


ROWS = {"item": 6, "tags": 4}


def make_batch(seed=0, size=48):
    rng = torch.Generator().manual_seed(seed)
    item = torch.randint(ITEMS, (size,), generator=rng)
    return (
        torch.randint(USERS, (size,), generator=rng),
        item,
        torch.randint(TAGS, (size, 3), generator=rng),
        (item % 3).float() + torch.randn(size, generator=rng) / 10,
    )


def objective_of(model):
    def objective(batch):
        *features, target = batch
        return (model(*features).float() - target) ** 2

    return objective


adam = partial(optim.Adam, lr=0.02)


def plugged_in(start="one", dtype=None, make=adam, probe=objective_of, **schedule):
    """A model with clustered tables, its objective, optimiser and clusterers."""
    model = Model(dtype)
    optimizer = make(model.parameters())
    objective = probe(model)
    schedule = {"split_every": 3, "reassign_every": 6, **schedule}
    clusterers = celrec.clusterize(model, ROWS, objective, optimizer, start=start, **schedule)
    return model, objective, optimizer, clusterers


def train(objective, optimizer, clusterers, steps=12):
    moves = []
    for step in range(steps):
        batch = make_batch(step % 4)
        objective(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for clusterer in clusterers.values():
            moves += clusterer.step(batch)
    return moves


UNSEEN = (
    torch.tensor([0, 1, 2]),
    torch.tensor([-1, ITEMS, 2**40]),
    torch.tensor([[-5, 1, 2], [TAGS, 0, 0], [1, 1, 1]]),
)


def check_compiled(backend):
    model, objective, optimizer, clusterers = plugged_in()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for seed in range(2):  # what was compiled has to see later moves
        features = make_batch(seed)[:3]
        torch.testing.assert_close(compiled(*features), model(*features))
        unseen = [ids.repeat(16, *(1,) * (ids.dim() - 1)) for ids in UNSEEN]
        torch.testing.assert_close(compiled(*unseen), model(*unseen))
        pull = torch.arange(48.0)
        gradients = []
        for run in (compiled, model):
            (run(*features) * pull).sum().backward()
            gradients.append([parameter.grad.clone() for parameter in model.parameters()])
            optimizer.zero_grad()
        torch.testing.assert_close(*gradients)
        assert {move.kind for move in train(objective, optimizer, clusterers)} > {"split"}


def test_a_compiled_model_sees_splits_and_reassignments():
    check_compiled("aot_eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, by torch
def test_machine_code_sees_splits_and_reassignments():
    check_compiled("inductor")


def test_a_compiled_model_can_be_the_objective():
    compiled = plugged_in(
        probe=lambda model: objective_of(torch.compile(model, backend="eager", fullgraph=True))
    )
    plain = plugged_in()
    assert train(*compiled[1:]) == train(*plain[1:])
    assert torch.equal(compiled[0].item.assignment, plain[0].item.assignment)


def test_an_exported_model_takes_batches_of_any_size_and_unseen_ids():
    model, objective, optimizer, clusterers = plugged_in()
    train(objective, optimizer, clusterers)
    size = torch.export.Dim("size")
    shapes = ({0: size}, {0: size}, {0: size})
    exported = torch.export.export(model, make_batch()[:3], dynamic_shapes=shapes).module()
    for features in (make_batch(1)[:3], make_batch(1, size=7)[:3], UNSEEN):
        torch.testing.assert_close(exported(*features), model(*features))


def test_a_copy_of_a_model_goes_its_own_way():
    model, objective, optimizer, clusterers = plugged_in()
    train(objective, optimizer, clusterers, steps=4)
    features = make_batch()[:3]
    twin = copy.deepcopy(model)
    before = model(*features)
    assert torch.equal(twin(*features), before)
    train(objective, optimizer, clusterers)
    assert torch.equal(twin(*features), before)
    assert not torch.equal(model(*features), before)
    celrec.declusterize(twin)
    torch.testing.assert_close(twin(*features), before)


def test_a_model_comes_back_from_safetensors(tmp_path):
    model, objective, optimizer, clusterers = plugged_in()
    train(objective, optimizer, clusterers)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    fresh = plugged_in()[0]
    fresh.load_state_dict(load_file(tmp_path / "model.safetensors"))
    for features in (make_batch(1)[:3], UNSEEN):
        assert torch.equal(fresh(*features), model(*features))
    assert fresh.item.num_clusters == model.item.num_clusters > 1
    assert torch.equal(fresh.item.parent, model.item.parent)


OPTIMISERS = {
    name: partial(kind, lr=0.02)
    for name, kind in vars(optim).items()
    if inspect.isclass(kind)
    and issubclass(kind, optim.Optimizer)
    and name not in ("Optimizer", "SparseAdam", "LBFGS", "Muon")
} | {
    "momentum": partial(optim.SGD, lr=0.02, momentum=0.9),
    "amsgrad": partial(optim.Adam, lr=0.02, amsgrad=True),
    "centred": partial(optim.RMSprop, lr=0.02, momentum=0.9, centered=True),
    "fused": partial(optim.AdamW, lr=0.02, fused=True),
    "one by one": partial(optim.Adam, lr=0.02, foreach=False),
}


def rows_of(value, weight):
    return torch.is_tensor(value) and value.shape[:1] == weight.shape[:1]


@pytest.mark.parametrize("name", OPTIMISERS)
def test_any_optimiser_goes_on_from_a_split_as_if_nothing_were(name):
    model, objective, optimizer, clusterers = plugged_in(make=OPTIMISERS[name], split_every=0)
    train(objective, optimizer, clusterers, steps=5)
    weight, batch = model.item.weight, make_batch()
    before = model(*batch[:3])
    state = copy.deepcopy(dict(optimizer.state[weight]))
    assert len(clusterers["item"].split()) == 1
    assert torch.equal(model(*batch[:3]), before)
    for key, value in optimizer.state[weight].items():
        if rows_of(value, weight):
            assert torch.equal(value[1], value[0])
            assert torch.equal(value[[0, 2, 3, 4, 5]], state[key][[0, 2, 3, 4, 5]])
        else:
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(state[key]))
    for _ in range(3):  # under equal gradients, parent and child stay together
        weight.grad = torch.zeros_like(weight)
        weight.grad[:2] = torch.tensor([0.3, -0.1, 0.7, 0.0])
        optimizer.step()
    assert torch.equal(weight[0], weight[1])
    assert not torch.equal(weight[0], weight[2])


@pytest.mark.parametrize("name", OPTIMISERS)
def test_any_optimiser_takes_up_a_learned_table(name):
    model = Model()
    optimizer = OPTIMISERS[name](model.parameters())
    objective = objective_of(model)
    train(objective, optimizer, {}, steps=3)
    clusterers = celrec.clusterize(model, ROWS, objective, optimizer)
    for value in optimizer.state[model.item.weight].values():
        assert not torch.is_tensor(value) or value.shape[:1] != (ITEMS,)
    train(objective, optimizer, clusterers, steps=3)
    assert model.item.weight.isfinite().all()


def test_rows_of_16_bits_are_split_by_gradients_of_enough_precision():
    # Sums of 16 bits would stop at 256 ones, and all ids would seem to pull alike.
    table = celrec.ClusteredEmbedding(4, 2, max_clusters=2, dtype=torch.bfloat16)
    pull = torch.tensor([1.0, 1.0, 1.0, -1.0], dtype=torch.bfloat16)
    counts = torch.tensor([1000, 3000, 2000, 5000])
    ids = torch.repeat_interleave(torch.arange(4), counts)

    def objective(ids):
        return table(ids).sum(-1) * pull[ids]

    evidence = AutogradEvidence(table, objective, data=[ids])
    gradients = evidence.gradients(torch.arange(4))
    assert gradients.dtype == torch.float32
    assert torch.equal(gradients, (-pull.float() * counts)[:, None].expand(-1, 2))
    torch.testing.assert_close(evidence.losses()[:, 0], evidence.own_losses(), rtol=1e-5, atol=1e-5)
    own = float(objective(torch.tensor([1])).float().detach())
    assert float(evidence.own_losses()[1]) == pytest.approx(3000 * own, rel=1e-3)
    celrec.Clusterer(table, None, evidence).split()
    assert table.sizes().tolist() == [3, 1] or table.members(0).tolist() == [3]


def test_a_model_of_16_bits_trains():
    model, objective, optimizer, clusterers = plugged_in(dtype=torch.bfloat16)
    batch = make_batch()
    before = objective(batch).mean().detach()
    moves = train(objective, optimizer, clusterers, steps=24)
    assert {move.kind for move in moves} == {"split", "reassign"}
    assert model.item.weight.dtype == torch.bfloat16
    assert model.item.num_clusters == 6
    assert objective(batch).mean() < 0.8 * before


def objective_under_autocast(model):
    def objective(batch):
        *features, target = batch
        with torch.autocast("cpu", dtype=torch.bfloat16):
            predicted = model(*features)
        assert predicted.dtype == torch.bfloat16
        return (predicted.float() - target) ** 2

    return objective


def test_a_model_trains_under_autocast():
    model, objective, optimizer, clusterers = plugged_in(probe=objective_under_autocast)
    before = objective(make_batch()).mean().detach()
    moves = train(objective, optimizer, clusterers, steps=24)
    assert {move.kind for move in moves} == {"split", "reassign"}
    assert model.item.weight.dtype == torch.float32
    assert objective(make_batch()).mean() < 0.8 * before


def test_a_hook_of_the_optimiser_is_enough():
    # For loops that belong to somebody else; evidence comes from given batches.
    model = Model()
    optimizer = optim.Adam(model.parameters(), lr=0.02)
    clusterers = celrec.clusterize(
        model, ROWS, objective_of(model), optimizer, start="one", data=[make_batch()], split_every=2
    )
    optimizer.register_step_post_hook(lambda *_: [c.step() for c in clusterers.values()] and None)
    train(objective_of(model), optimizer, {}, steps=12)
    assert (model.item.num_clusters, model.tags.table.num_clusters) == (6, 4)
    for parameter in model.parameters():  # evidence leaves no gradients behind
        assert parameter.grad is None


def test_a_column_of_ids_and_a_row_of_losses_belong_together():
    # As in DeepCTR-Torch, which looks up a column of ids.
    table = celrec.ClusteredEmbedding(6, 2, max_clusters=3)
    table.start_from(torch.arange(6) % 3)
    ids = torch.tensor([0, 3, 3, 5, 1])
    pull = torch.randn(5, 2)

    def objective(shape, history=None):
        if history is not None:
            table(history)
        return (table(ids.view(shape)).view(5, 2) * pull).sum(-1)

    plain = AutogradEvidence(table, lambda _: objective((5,)), data=[None])
    column = AutogradEvidence(table, lambda _: objective((5, 1)), data=[None])
    # Ids with the very shape of the losses come first, whatever else is looked up.
    mixed = AutogradEvidence(
        table, lambda _: objective((5,), history=ids.flip(0).view(5, 1)), data=[None]
    )
    for evidence in (column, mixed):
        assert torch.equal(evidence.interactions(), plain.interactions())
        torch.testing.assert_close(evidence.losses(), plain.losses())
        members = torch.arange(6)
        torch.testing.assert_close(evidence.gradients(members), plain.gradients(members))


WORKER = """
import sys
import torch
from torch import distributed, nn, optim
import celrec
from celrec.cel.evidence import DistributedEvidence
from tests.cel import test_plug_in as here

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
model = here.Model()
clusterers = celrec.clusterize(
    model, here.ROWS, here.objective_of(model), start="one", split_every=2, reassign_every=4
)
parallel = nn.parallel.DistributedDataParallel(model)
optimizer = optim.Adam(parallel.parameters(), lr=0.02)
for clusterer in clusterers.values():
    clusterer.optimizer = optimizer
    if "alone" not in sys.argv:
        clusterer.evidence = DistributedEvidence(clusterer.evidence)
for step in range(12):
    batch = here.make_batch(2 * (step % 2) + rank)  # other samples in each process
    here.objective_of(parallel)(batch).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    for clusterer in clusterers.values():
        clusterer.step(batch)
torch.save(model.state_dict(), f"{folder}/{rank}.pt")
distributed.destroy_process_group()
"""


def run_in_two_processes(folder, *words):
    folder.mkdir()
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(rank), str(folder), *words])
        for rank in range(2)
    ]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def alike(first, second):
    return all(torch.equal(value, second[name]) for name, value in first.items())


def test_processes_with_other_samples_make_the_same_moves(tmp_path):
    first, second = run_in_two_processes(tmp_path / "together")
    assert alike(first, second)
    assert int(first["item._active"]) == 6
    assert int(first["tags.table._active"]) == 4


@pytest.mark.slow
def test_without_shared_evidence_they_would_not(tmp_path):
    assert not alike(*run_in_two_processes(tmp_path / "alone", "alone"))


def test_evidence_of_processes_is_that_of_all_samples(tmp_path):
    # One process has all samples; nothing is sent anywhere.
    model, objective, _, _ = plugged_in(start="learned")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1
    )
    try:
        own = AutogradEvidence(model.item, objective, data=[make_batch()])
        shared = DistributedEvidence(own)
        ids = torch.arange(ITEMS)
        assert torch.equal(shared.gradients(ids), own.gradients(ids))
        assert torch.equal(shared.losses(), own.losses())
        assert torch.equal(shared.own_losses(), own.own_losses())
        assert torch.equal(shared.interactions(), own.interactions())
    finally:
        torch.distributed.destroy_process_group()
