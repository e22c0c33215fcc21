"""Moves that several processes make together, each of which knows some of the members."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch

from celrec.cel.reassignment import Reassignment
from celrec.cel.split import Splitter
from celrec.cel.split_scores import NORMALISATIONS, SPLIT_METHODS, Members
from celrec.cel.thresholds import THRESHOLDS, nth_smallest
from celrec.errors import DivergedError
from celrec.runtime.communicator import Communicator, Partition

WORKER = """
import sys
import torch
from torch import distributed
from celrec.runtime.communicator import Ranks
from tests.runtime import test_share as here

rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size
)
torch.save(here.moves(Ranks.here(), sys.argv[4:]), f"{folder}/{rank}.pt")
distributed.destroy_process_group()
"""
SPLITTERS = [
    Splitter(*choice) for choice in itertools.product(SPLIT_METHODS, NORMALISATIONS, THRESHOLDS)
]


KINDS = ("pair", "many", "equal", "ties", "silent")


def members_of(kind):
    """Gradients, interactions and partners of a cluster's members."""
    rng = torch.Generator().manual_seed(len(kind))
    count = {"pair": 2, "many": 70}.get(kind, 9)
    gradients = torch.randn(count, 3, generator=rng)
    if kind == "equal":
        gradients[:] = gradients[0]
    if kind == "ties":
        gradients = gradients.sign()
    interactions = torch.randint(0, 9, (count,), generator=rng)
    if kind == "silent":
        interactions[:] = 0
    return gradients, interactions, torch.randn(count, 3, generator=rng)


def split(splitter, kind, communicator):
    gradients, interactions, partners = members_of(kind)
    share = Partition(communicator, communicator.cuts(interactions.numpy()))
    mine = share.mine
    members = Members(gradients[mine], interactions[mine], partners[mine], share)
    generator = torch.Generator().manual_seed(1)
    return share.joined(splitter.leaving(members, generator))


def reassign(seed, communicator):
    rng = torch.Generator().manual_seed(seed)
    count, clusters = 3 + 5 * seed, 4 + seed // 4
    # Few levels, so that there are ties; and one cluster that all want to go to.
    losses = torch.randint(0, 4, (count, clusters), generator=rng).float()
    losses[:, seed % clusters] -= seed % 3
    current = torch.randint(0, clusters, (count,), generator=rng)
    interactions = torch.randint(0, 9, (count,), generator=rng)
    share = Partition(communicator, communicator.cuts(interactions.numpy()))
    rule = Reassignment(keep=0.3 * (seed % 2), evidence=seed % 4, margin=0.1 * (seed % 3))
    return rule(losses[share.mine], current, interactions, torch.Generator().manual_seed(2), share)


def order_statistics(communicator):
    values = torch.randn(50, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    values[10:20] = 0.0
    values[15] = -0.0
    values[30:33] = torch.tensor([1e300, -1e300, 5e-324], dtype=torch.float64)
    share = Partition.even(communicator, len(values))
    mine = values[share.mine]
    wanted = (0, 1, 24, 49)
    found = torch.tensor([nth_smallest(mine, n, share) for n in wanted], dtype=torch.float64)
    assert torch.equal(found, values.sort().values[list(wanted)])
    return found


def moves(communicator, kinds):
    """All that is decided together, by any number of processes."""
    found = {"order": order_statistics(communicator)}
    for number, splitter in enumerate(SPLITTERS):
        for kind in kinds or KINDS[number % 5 :][:1]:
            found[f"{kind} {number}"] = split(splitter, kind, communicator)
    for seed in range(12):
        found[f"reassigned {seed}"] = reassign(seed, communicator)
    bad = torch.full((1, 2), torch.nan if communicator.rank == communicator.size - 1 else 0.0)
    share = Partition.even(communicator, communicator.size)
    if communicator.size > 1:
        with pytest.raises(DivergedError, match="finite"):
            Splitter().leaving(Members(bad, torch.ones(1), share=share), torch.Generator())
    return found


def by_hand(losses, current, interactions, rule, drawn):
    """The rules of a reassignment, member by member."""
    after = list(current)
    gains = [row[k] - min(row) for row, k in zip(losses, current, strict=True)]
    for j, (row, k) in enumerate(zip(losses, current, strict=True)):
        enough = interactions[j] >= rule.evidence and drawn[j] >= rule.keep
        if enough and row[k] - min(row) > rule.margin * interactions[j]:
            after[j] = row.index(min(row))
    while emptied := set(current) - set(after):
        for k in emptied:
            former = [j for j, was in enumerate(current) if was == k]
            after[min(former, key=lambda j: (gains[j], j))] = k
    return after


@pytest.mark.parametrize("seed", range(8))
def test_reassignment_by_rules_of_caution_written_out(seed):
    rng = np.random.default_rng(seed)
    losses = rng.integers(0, 4, (12, 5)).astype(np.float32)
    current, interactions = rng.integers(0, 5, 12), rng.integers(0, 9, 12)
    rule = Reassignment(keep=0.3, evidence=2, margin=0.1)
    drawn = torch.rand(12, generator=torch.Generator().manual_seed(2)).tolist()
    found = rule(
        torch.from_numpy(losses),
        torch.from_numpy(current),
        torch.from_numpy(interactions),
        torch.Generator().manual_seed(2),
    )
    expected = by_hand(losses.tolist(), current.tolist(), interactions.tolist(), rule, drawn)
    assert found.tolist() == expected


@pytest.mark.parametrize(
    ("size", "kinds"), [(3, ()), pytest.param(7, KINDS, marks=pytest.mark.slow)]
)
def test_processes_with_some_members_each_make_the_moves_of_one(tmp_path, size, kinds):
    expected = moves(Communicator.alone(), kinds)
    words = [str(size), str(tmp_path), *kinds]
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(rank), *words]) for rank in range(size)
    ]
    assert [worker.wait(timeout=120) for worker in workers] == [0] * size
    for rank in range(size):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], value), name


@pytest.mark.parametrize("count", [0, 1, 3, 10])
def test_shares_are_all_there_is_each_once(count):
    shares = [Partition.even(Communicator(rank, 4), count) for rank in range(4)]
    places = [place for share in shares for place in range(count)[share.mine]]
    assert places == list(range(count))
    sizes = [share.mine.stop - share.mine.start for share in shares]
    assert max(sizes) - min(sizes) <= 1
