import copy

import pytest
import torch

from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import Memory
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.personal import BiasedEmbedding

IDS = 6
EVERYONE = [*range(IDS), -1, IDS, 2**40, -(2**40)]


def clustered(**options):
    table = ClusteredEmbedding(IDS, 2, max_clusters=3, **options)
    table.start_from(torch.tensor([0, 0, 1, 1, 0, 1]))
    table.unseen_cluster = 1
    return table


def full(**options):
    return FullEmbedding(IDS, 2, **options)


def modulo(**options):
    return ModuloEmbedding(IDS, 2, rows=3, **options)


def mixed(**options):
    warm = torch.tensor([True, False, False, True, False, False])
    return MixedEmbedding.personalise(clustered(**options), warm)


@pytest.fixture(params=[clustered, full, modulo, mixed], ids=lambda make: make.__name__)
def rows(request):
    return request.param


def with_biases(rows, **options):
    """Biases 1, 2, … for the ids, -1 for unseen ones."""
    table = BiasedEmbedding(rows(**options))
    with torch.no_grad():
        table.bias.copy_(torch.tensor([*range(1, IDS + 1), -1]))
    return table


def test_the_last_column_is_the_bias_and_the_others_are_the_row(rows):
    table = with_biases(rows)
    ids = torch.tensor(EVERYONE)
    vectors = table(ids)
    assert table.embedding_dim == 3
    assert torch.equal(vectors[:, :-1], table.rows(ids))
    assert vectors[:, -1].tolist() == [1, 2, 3, 4, 5, 6, -1, -1, -1, -1]
    assert torch.equal(table(ids.reshape(5, 2)), vectors.reshape(5, 2, 3))


def test_biases_begin_as_zero(rows):
    table = BiasedEmbedding(rows())
    assert table.bias.tolist() == [0] * (IDS + 1)
    assert table(torch.tensor(EVERYONE))[:, -1].tolist() == [0] * 10


def test_ids_that_share_a_row_have_biases_of_their_own():
    table = with_biases(clustered)
    assert torch.equal(table.rows.row_of(torch.tensor([0, 1, 4])), torch.zeros(3).long())
    assert table(torch.tensor([0, 1, 4]))[:, -1].tolist() == [1, 2, 5]


def test_the_gradient_of_a_bias_comes_from_its_id_alone(rows):
    table = with_biases(rows)
    ids = torch.tensor([[2, 0], [2, -1], [IDS, 99]])
    pull = torch.randn(3, 2, 3)
    (table(ids) * pull).sum().backward()
    expected = torch.zeros(IDS + 1)
    expected[0] = pull[0, 1, 2]
    expected[2] = pull[0, 0, 2] + pull[1, 0, 2]
    expected[-1] = pull[1, 1, 2] + pull[2, 0, 2] + pull[2, 1, 2]
    torch.testing.assert_close(table.bias.grad, expected)
    gradient, table.rows.weight.grad = table.rows.weight.grad, None
    (table.rows(ids) * pull[..., :-1]).sum().backward()
    torch.testing.assert_close(gradient, table.rows.weight.grad)


def test_training_a_bias_moves_no_other_and_no_row(rows):
    table = with_biases(rows)
    ids = torch.tensor(EVERYONE)
    before = table(ids).detach()
    optimizer = torch.optim.SGD(table.parameters(), lr=0.5)
    table(torch.tensor(3))[-1].backward()
    optimizer.step()
    before[3, -1] -= 0.5
    torch.testing.assert_close(table(ids).detach(), before)


def test_unseen_ids_learn_one_bias_together(rows):
    table = with_biases(rows)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.5)
    table(torch.tensor([99]))[0, -1].backward()
    optimizer.step()
    biases = table(torch.tensor(EVERYONE))[:, -1].tolist()
    assert biases == [1, 2, 3, 4, 5, 6, -1.5, -1.5, -1.5, -1.5]


@pytest.mark.parametrize("padding", [0, -1])
def test_padding_has_no_bias_either_and_learns_none(rows, padding):
    table = with_biases(rows, padding_idx=padding)
    assert table.padding_idx == padding % IDS
    vectors = table(torch.tensor([padding % IDS, 2]))
    assert vectors[0].tolist() == [0, 0, 0]
    assert vectors[1, -1].item() == 3
    vectors.sum().backward()
    assert table.bias.grad.tolist() == [0, 0, 1, 0, 0, 0, 0]


def test_an_unseen_id_is_not_taken_for_the_padding_at_the_end(rows):
    table = with_biases(rows, padding_idx=-1)
    assert table(torch.tensor([-1, IDS]))[:, -1].tolist() == [-1, -1]


@pytest.mark.parametrize(("dtype", "bytes_each"), [(torch.float32, 4), (torch.float64, 8)])
def test_biases_count_as_memory(dtype, bytes_each):
    # Two rows in use, three allocated, of two numbers each; seven biases.
    table = BiasedEmbedding(clustered(dtype=dtype))
    assert table.bias.dtype == dtype
    assert table.memory() == Memory((2 * 2 + 7) * bytes_each, 7)
    index = 7 + 3 * 4 + 8  # the assignment, the split tree, the number of clusters
    assert table.memory(training=True) == Memory((3 * 2 + 7) * bytes_each, index)


def test_the_bytes_beyond_those_of_the_rows_are_those_of_the_biases(rows):
    for training in (False, True):
        alone = rows().memory(training=training)
        memory = BiasedEmbedding(rows()).memory(training=training)
        assert (memory.table - alone.table, memory.index - alone.index) == (7 * 4, 0)


def test_a_state_dict_restores_rows_and_biases(rows):
    table, fresh = with_biases(rows), BiasedEmbedding(rows())
    fresh.load_state_dict(copy.deepcopy(table.state_dict()))
    ids = torch.tensor(EVERYONE)
    assert torch.equal(fresh(ids), table(ids))
    assert torch.equal(fresh.bias, table.bias)


def test_the_rows_may_be_split_and_merged_beneath_the_biases():
    table = with_biases(clustered)
    ids = torch.tensor(EVERYONE)
    before = table(ids).detach()
    new = table.rows.split(0, torch.tensor([1]))
    assert torch.equal(table(ids), before)
    table.rows.merge(0, new)
    assert torch.equal(table(ids), before)


def test_a_probe_of_the_rows_is_seen_through_the_biases():
    table = with_biases(clustered)
    with table.rows.probing(lambda ids: torch.full((*ids.shape, 2), 7.0)):
        assert table(torch.tensor([1, -1])).tolist() == [[7, 7, 2], [7, 7, -1]]
