"""Collective operations, partitions, and splits and reassignments by several ranks."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec.cel.criteria import THRESHOLDS, nth_smallest
from celrec.cel.reassignment import Reassignment
from celrec.cel.split import NORMALISATIONS, SPLIT_METHODS, Members, Splitter
from celrec.errors import CelrecError, DivergedError
from celrec.runtime.communicator import LOCAL, Partition
from tests.ranks import Rank, run_ranks

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
    partition = Partition.balanced(interactions.numpy(), communicator)
    mine = partition.mine
    members = Members(gradients[mine], interactions[mine], partners[mine], partition)
    generator = torch.Generator().manual_seed(1)
    return partition.all_gather(splitter.leaving(members, generator))


def reassign(seed, communicator):
    rng = torch.Generator().manual_seed(seed)
    count, clusters = 3 + 5 * seed, 4 + seed // 4
    # Few levels, so that there are ties; and one cluster that all want to go to.
    losses = torch.randint(0, 4, (count, clusters), generator=rng).float()
    losses[:, seed % clusters] -= seed % 3
    current = torch.randint(0, clusters, (count,), generator=rng)
    interactions = torch.randint(0, 9, (count,), generator=rng)
    partition = Partition.balanced(interactions.numpy(), communicator)
    rule = Reassignment(keep=0.3 * (seed % 2), evidence=seed % 4, margin=0.1 * (seed % 3))
    return rule(
        losses[partition.mine], current, interactions, torch.Generator().manual_seed(2), partition
    )


def order_statistics(communicator):
    values = torch.randn(50, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    values[10:20] = 0.0
    values[15] = -0.0
    values[30:33] = torch.tensor([1e300, -1e300, 5e-324], dtype=torch.float64)
    partition = Partition.even(len(values), communicator)
    mine = values[partition.mine]
    wanted = (0, 1, 24, 49)
    found = torch.tensor([nth_smallest(mine, n, partition) for n in wanted], dtype=torch.float64)
    assert torch.equal(found, values.sort().values[list(wanted)])
    return found


def moves(communicator, *kinds):
    """All that is decided together, by any number of processes."""
    found = {"order": order_statistics(communicator)}
    for number, splitter in enumerate(SPLITTERS):
        for kind in kinds or KINDS[number % 5 :][:1]:
            found[f"{kind} {number}"] = split(splitter, kind, communicator)
    for seed in range(12):
        found[f"reassigned {seed}"] = reassign(seed, communicator)
    bad = torch.full((1, 2), torch.nan if communicator.rank == communicator.size - 1 else 0.0)
    partition = Partition.even(communicator.size, communicator)
    if communicator.size > 1:
        with pytest.raises(DivergedError, match="finite"):
            Splitter().leaving(Members(bad, torch.ones(1), partition=partition), torch.Generator())
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


def check_moves(each_found, *kinds):
    expected = moves(LOCAL, *kinds)
    for found in each_found:
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], value), name


@pytest.mark.slow
def test_seven_processes_with_some_members_each_make_the_moves_of_one(tmp_path):
    check_moves(run_ranks(7, tmp_path, moves, *KINDS), *KINDS)


@given(st.integers(0, 40), st.integers(1, 9))
def test_even_partitions_have_each_place_once_and_differ_by_one(count, size):
    ranges = [Partition.even(count, Rank(rank, size)).mine for rank in range(size)]
    assert [place for mine in ranges for place in range(count)[mine]] == list(range(count))
    sizes = [mine.stop - mine.start for mine in ranges]
    assert max(sizes) - min(sizes) <= 1


@given(st.lists(st.integers(0, 20), max_size=30), st.integers(1, 9))
def test_balanced_partitions_have_each_place_once_and_about_as_much_weight(weights, size):
    weights = np.array(weights, np.int64)
    partitions = [Partition.balanced(weights, Rank(rank, size)) for rank in range(size)]
    places = [place for each in partitions for place in range(len(weights))[each.mine]]
    assert places == list(range(len(weights)))
    sums = [int(weights[each.mine].sum()) for each in partitions]
    assert max(sums) <= weights.sum() / size + weights.max(initial=0)
    assert [each.start for each in partitions] == [each.mine.start for each in partitions]


def collectives(communicator):
    rank, size = communicator.rank, communicator.size
    large = torch.full((1 << 17,), float(rank + 1))
    many = communicator.all_reduce_many([torch.ones(2, 2), torch.full((3,), rank)])
    present, absent = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))
    present.grad = torch.full((2,), 1.0 + rank) if rank else None
    communicator.all_reduce_gradients([present, absent])
    assert absent.grad is None
    communicator.check_equal("the table", [torch.tensor([torch.nan, 1.0])])
    with pytest.raises(CelrecError, match="the table of rank 1 is not that of rank 0"):
        communicator.check_equal("the table", [torch.tensor([float(rank > 0)])])
    assert communicator.is_main == (rank == 0)
    return {
        "number": torch.tensor(communicator.all_reduce(rank + 0.5)),
        "large": communicator.all_reduce(large)[:1],
        "ones": many[0],
        "ranks": many[1],
        "gathered": communicator.all_gather(torch.full((rank, 2), rank)),
        "gradient": present.grad,
        "size": torch.tensor(Partition.even(7, communicator).total_size(large[: rank + 1])),
        "ranks of all": torch.tensor([size]),
    }


def collectives_and_moves(communicator):
    return {"collectives": collectives(communicator), "moves": moves(communicator)}


@pytest.fixture(scope="module")
def three_ranks(tmp_path_factory):
    """What three processes find: started once, as that takes seconds."""
    return run_ranks(3, tmp_path_factory.mktemp("ranks"), collectives_and_moves)


def test_three_processes_with_some_members_each_make_the_moves_of_one(three_ranks):
    check_moves([found["moves"] for found in three_ranks])


def test_collective_operations_of_three_ranks(three_ranks):
    for found in (found["collectives"] for found in three_ranks):
        assert float(found["number"]) == 4.5
        assert found["large"].tolist() == [6.0]
        assert found["ones"].tolist() == [[3.0, 3.0], [3.0, 3.0]]
        assert found["ranks"].tolist() == [3.0, 3.0, 3.0]
        assert found["gathered"].tolist() == [[1, 1], [2, 2], [2, 2]]
        assert found["gradient"].tolist() == [5.0, 5.0]
        assert int(found["size"]) == 6
        assert found["ranks of all"].tolist() == [3]


def test_alone_every_collective_operation_is_the_identity():
    value, parameter = torch.ones(2), torch.nn.Parameter(torch.ones(2))
    parameter.grad = gradient = torch.ones(2)
    LOCAL.all_reduce_gradients([parameter])
    LOCAL.check_equal("nothing", [value])
    assert parameter.grad is gradient
    assert LOCAL.all_reduce(value) is value
    assert LOCAL.all_gather(value) is value
    assert LOCAL.all_reduce_many([value])[0] is value
    assert (LOCAL.rank, LOCAL.size, LOCAL.is_main) == (0, 1, True)
