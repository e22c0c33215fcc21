import itertools

import pytest
import torch
from torch import nn

from celrec import CelrecError
from celrec.cel.autograd_evidence import BagEvidence
from celrec.cel.clusterer import Clusterer
from celrec.cel.reassignment import Reassignment
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.clustered_bag import ClusteredEmbeddingBag

IDS, DIM, PADDING = 10, 3, 4
MODES = ["sum", "mean", "max"]
CHOICES = list(itertools.product(MODES, (False, True)))


class Model(nn.Module):
    """A loss that depends on the bag in a way that is not linear."""

    def __init__(self, mode="mean", broadcasts=True):
        super().__init__()
        torch.manual_seed(0)
        table = ClusteredEmbedding(
            IDS, DIM, max_clusters=4, padding_idx=PADDING, dtype=torch.float64
        )
        table.start_from(torch.arange(IDS) % 4)
        self.tags = ClusteredEmbeddingBag(table, mode=mode)
        self.layer = nn.Linear(DIM, 1, dtype=torch.float64)
        self.broadcasts = broadcasts

    def forward(self, batch):
        ids, offsets, target = batch
        vectors = self.tags(ids, offsets)
        if not self.broadcasts:
            vectors = vectors.view(len(target), DIM)
        return (self.layer(vectors).squeeze(-1).tanh() - target) ** 2


def make_batches(seed=0):
    """Bags of 0 … 4 ids, with ids twice in a bag, padding and an unseen id."""
    rng = torch.Generator().manual_seed(seed)
    batches = []
    for sizes in ([3, 0, 2, 4, 1, 2], [1, 2, 3]):
        ids = torch.randint(IDS, (sum(sizes),), generator=rng)
        ids[:2] = 7  # twice in the first bag, or in two
        ids[-1] = -1
        offsets = torch.tensor([0, *itertools.accumulate(sizes[:-1])])
        target = torch.randn(len(sizes), generator=rng, dtype=torch.float64)
        batches.append((ids, offsets, target))
    return batches


def bags_of(batch):
    ids, offsets, target = batch
    ends = [*offsets.tolist()[1:], len(ids)]
    for start, end, one in zip(offsets.tolist(), ends, target, strict=True):
        yield ids[start:end].tolist(), one


def loss_of(model, vectors, target):
    """Of one sample with these vectors in its bag, padding left out."""
    if not vectors:
        whole = torch.zeros(DIM, dtype=torch.float64)
    elif model.tags.mode == "max":
        whole = torch.stack(vectors).amax(0)
    else:
        whole = torch.stack(vectors).sum(0)
        if model.tags.mode == "mean":
            whole = whole / len(vectors)
    return (model.layer(whole).squeeze(-1).tanh() - target) ** 2


def by_hand(model, batches, replace):
    """Σ over samples with id j of the loss if `replace(j, vector)` were the vector of j."""
    table = model.tags.table
    total = torch.zeros(IDS, dtype=torch.float64)
    for batch in batches:
        for held, target in bags_of(batch):
            held = [one for one in held if one != PADDING]
            for one in {one for one in held if one >= 0}:
                vectors = [table.weight[table.row_of(torch.tensor(other))] for other in held]
                vectors = [
                    replace(one, vector) if other == one else vector
                    for other, vector in zip(held, vectors, strict=True)
                ]
                total[one] += loss_of(model, vectors, target).detach()
    return total


@pytest.mark.parametrize(("mode", "broadcasts"), CHOICES)
def test_losses_are_those_of_one_id_with_another_row_the_others_as_they_are(mode, broadcasts):
    model, batches = Model(mode, broadcasts), make_batches()
    evidence = BagEvidence(model.tags, model, data=batches)
    expected = [
        by_hand(model, batches, lambda _, __, k=k: model.tags.weight[k].detach()) for k in range(4)
    ]
    torch.testing.assert_close(evidence.losses(), torch.stack(expected, 1))
    own = by_hand(model, batches, lambda _, vector: vector)
    torch.testing.assert_close(evidence.own_losses(), own)
    current = evidence.losses().gather(1, model.tags.table.assignment[:-1, None].long()).squeeze(1)
    torch.testing.assert_close(current, own)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_the_slopes_of_the_loss_by_the_vector_of_one_id(mode):
    model, batches = Model(mode), make_batches()
    with torch.no_grad():  # where two vectors of a bag are equal, a maximum has no slope
        model.tags.table.start_from(torch.arange(IDS) % 4)
    if mode == "max":
        batches = [
            (torch.tensor([0, 1, 2, 3, 0, 3]), torch.tensor([0, 2, 5]), torch.randn(3).double())
        ]
    evidence = BagEvidence(model.tags, model, data=batches)
    slopes, step = [], 1e-6
    for axis in torch.eye(DIM, dtype=torch.float64) * step:
        up = by_hand(model, batches, lambda _, vector, a=axis: vector.detach() + a)
        down = by_hand(model, batches, lambda _, vector, a=axis: vector.detach() - a)
        slopes.append((up - down) / (2 * step))
    members = torch.tensor([7, 0, 3, 8, PADDING])
    found = evidence.gradients(members)
    torch.testing.assert_close(found, -torch.stack(slopes, 1)[members], rtol=1e-5, atol=1e-7)
    assert found.abs().sum() > 0.1


def test_a_sample_counts_once_for_every_id_in_its_bag():
    model, batches = Model(), make_batches()
    expected = [0] * IDS
    for batch in batches:
        for held, _ in bags_of(batch):
            for one in set(held) - {-1, PADDING}:
                expected[one] += 1
    found = BagEvidence(model.tags, model, data=batches).interactions()
    assert found.tolist() == expected
    assert sum(expected) < sum(len(ids) for ids, _, _ in batches)  # some were there twice


def test_another_look_up_of_as_many_bags_is_left_as_it_is():
    model = Model("sum")

    def objective(batch):
        first, second = batch
        return (model.tags(first) * model.tags(second)).sum(-1)

    batch = (torch.tensor([[0, 1], [2, 3]]), torch.tensor([[0, 5], [2, 2]]))
    evidence = BagEvidence(model.tags, objective, data=[batch])
    rows, table = model.tags.weight.detach(), model.tags.table
    second = model.tags(batch[1]).detach()
    losses = evidence.losses()
    for k in range(4):
        other = rows[table.row_of(torch.tensor(1))]
        torch.testing.assert_close(losses[0, k], (rows[k] + other) @ second[0])
    torch.testing.assert_close(evidence.gradients(torch.tensor([0])), -second[:1])


def test_as_many_bags_as_losses_are_needed():
    model = Model()
    evidence = BagEvidence(model.tags, lambda ids: model.tags(ids).sum(), data=[torch.ones(2, 2)])
    with pytest.raises(CelrecError, match="no 1 bags, as many as it has losses; give one loss per"):
        evidence.own_losses()


def test_a_clusterer_finds_the_clusters_of_ids_in_bags():
    # Ids of two kinds, and the target counts those of one kind in the bag.
    torch.manual_seed(0)
    table = ClusteredEmbedding(20, 1, max_clusters=2)
    bags = ClusteredEmbeddingBag(table, mode="sum")
    kind = torch.arange(20) % 2

    def objective(ids):
        return (bags(ids).squeeze(-1) - kind[ids].sum(1)) ** 2

    optimizer = torch.optim.Adam(bags.parameters(), lr=0.1)
    clusterer = Clusterer(
        bags,
        optimizer,
        objective,
        split_every=40,
        reassign_every=30,
        reassignment=Reassignment(keep=0.0),
    )
    assert clusterer.table is table
    for _ in range(120):
        ids = torch.randint(20, (64, 3))
        objective(ids).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        clusterer.step(ids)
    found = table.assignment[:-1].long()
    assert torch.equal(found, kind) or torch.equal(found, 1 - kind)
    assert objective(torch.randint(20, (100, 3))).mean() < 0.01
