import copy

import pytest
import torch
from torch import nn

from celrec import CelrecError
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.clustered_bag import ClusteredEmbeddingBag

IDS, DIM = 12, 3
MODES = ["sum", "mean", "max"]


def make(mode="mean", padding_idx=None, include_last_offset=False, dtype=None):
    """A bag whose clusters have different rows."""
    torch.manual_seed(0)
    table = ClusteredEmbedding(IDS, DIM, max_clusters=5, padding_idx=padding_idx, dtype=dtype)
    table.start_from(torch.arange(IDS) % 5)
    table.unseen_cluster = 2
    return ClusteredEmbeddingBag(table, mode=mode, include_last_offset=include_last_offset)


def plain(bags):
    """The bag of torch with a row for each id."""
    table = nn.EmbeddingBag(
        IDS,
        DIM,
        mode=bags.mode,
        padding_idx=bags.padding_idx,
        include_last_offset=bags.include_last_offset,
        dtype=bags.weight.dtype,
    )
    with torch.no_grad():
        table.weight.copy_(bags.weight[bags.table.row_of(torch.arange(IDS))])
    return table


def inputs(seed=0):
    """Ids in a row with an empty bag in the middle and one at the end, and a matrix."""
    rng = torch.Generator().manual_seed(seed)
    flat = torch.randint(IDS, (20,), generator=rng)
    return flat, torch.tensor([0, 3, 3, 10, 20]), torch.randint(IDS, (6, 4), generator=rng)


def both_ways(bags, *given):
    """Without and with a probe, which goes another way."""
    table = bags.table
    with bags.probing(lambda held: table.weight[table.row_of(held.ids)]):
        probed = bags(*given)
    return bags(*given), probed


@pytest.mark.parametrize("padding", [None, 4])
@pytest.mark.parametrize("mode", MODES)
def test_bags_are_those_of_torch(mode, padding):
    bags = make(mode, padding)
    flat, offsets, matrix = inputs()
    for given in ((flat, offsets), (matrix,), (flat.int(), offsets.int()), (matrix.short(),)):
        expected = plain(bags)(*(one.long() for one in given))
        for found in both_ways(bags, *given):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("padding", [None, 4])
def test_weights_of_samples_are_those_of_torch(padding):
    bags = make("sum", padding)
    flat, offsets, matrix = inputs()
    for given in ((flat, offsets, torch.rand(20)), (matrix, None, torch.rand(6, 4))):
        for found in both_ways(bags, *given):
            torch.testing.assert_close(found, plain(bags)(*given))


@pytest.mark.parametrize("mode", MODES)
def test_the_last_offset_may_be_the_end(mode):
    bags = make(mode, include_last_offset=True)
    flat, offsets, _ = inputs()
    assert bags(flat, offsets).shape == (4, DIM)
    for found in both_ways(bags, flat, offsets):
        torch.testing.assert_close(found, plain(bags)(flat, offsets))


@pytest.mark.parametrize("mode", MODES)
def test_bags_of_nothing_but_padding_are_zero(mode):
    bags = make(mode, padding_idx=4)
    ids = torch.tensor([[4, 4], [4, 9]])  # 9 shares the row of the padding
    for found in both_ways(bags, ids):
        assert found[0].eq(0).all()
        assert torch.equal(found[1], bags.weight[4])


@pytest.mark.parametrize("mode", MODES)
def test_unseen_ids_have_the_row_of_their_cluster(mode):
    bags = make(mode)
    for found in both_ways(bags, torch.tensor([[-1], [IDS], [2**40]])):
        torch.testing.assert_close(found, bags.weight[2].expand(3, -1))


@pytest.mark.parametrize("padding", [None, 4])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_gradients_reach_the_rows_of_the_ids(mode, padding):
    bags = make(mode, padding)
    reference = plain(bags)
    flat, offsets, _ = inputs()
    pull = torch.randn(5, DIM)
    (bags(flat, offsets) * pull).sum().backward()
    (reference(flat, offsets) * pull).sum().backward()
    rows = bags.table.row_of(torch.arange(IDS))
    expected = torch.zeros_like(bags.weight).index_add(0, rows, reference.weight.grad)
    torch.testing.assert_close(bags.weight.grad, expected)


def test_it_tells_what_the_bag_of_torch_tells():
    bags = make("max", padding_idx=4)
    assert (bags.num_embeddings, bags.embedding_dim, bags.padding_idx) == (IDS, DIM, 4)
    assert bags.weight is bags.table.weight
    assert bags.memory() == bags.table.memory()
    assert bags.memory(training=True) == bags.table.memory(training=True)
    assert "mode='max'" in repr(bags)
    assert "include_last_offset=True" in repr(make(include_last_offset=True))


def test_it_is_copied_saved_exported_and_captured_like_a_table():
    bags = make(padding_idx=4)
    ids = torch.tensor([[0, 4, -1, 11], [4, 4, 4, 4], [1, 2, 3, 2**40]])
    twin = copy.deepcopy(bags)
    with torch.no_grad():
        twin.weight.add_(1)
    assert not torch.equal(twin(ids), bags(ids))
    twin.load_state_dict(bags.state_dict())
    assert torch.equal(twin(ids), bags(ids))
    size = ({0: torch.export.Dim("size")},)
    exported = torch.export.export(bags, (ids,), dynamic_shapes=size).module()
    assert torch.equal(exported(ids), bags(ids))
    assert torch.equal(exported(ids.repeat(3, 1)), bags(ids.repeat(3, 1)))
    captured = torch.compile(bags, backend="aot_eager", fullgraph=True)
    assert torch.equal(captured(ids), bags(ids))


def test_a_mode_has_to_be_known():
    with pytest.raises(CelrecError, match=r"^mode must be one of sum, mean, max, not 'min'$"):
        make("min")


def test_ids_in_a_row_need_offsets():
    with pytest.raises(CelrecError, match="offsets are missing"):
        make()(torch.arange(3))
