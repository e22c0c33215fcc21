import torch

from celrec.embeddings.full import FullEmbedding


def test_every_id_has_a_row_of_its_own_like_in_a_plain_table():
    table = FullEmbedding(9, 4)
    plain = torch.nn.Embedding.from_pretrained(table.weight.detach()[:-1])
    ids = torch.tensor([[0, 8], [3, 3]])
    assert torch.equal(table(ids), plain(ids))
    assert table.row_of(torch.arange(9)).tolist() == list(range(9))


def test_all_unseen_ids_share_one_more_row_that_begins_as_the_mean():
    table = FullEmbedding(9, 4)
    unseen = table(torch.tensor([-1, 9, 2**50]))
    assert torch.equal(unseen, table.weight[-1].expand(3, 4))
    torch.testing.assert_close(table.weight[-1], table.weight[:-1].mean(0))
    assert table.num_rows == len(table.weight) == 10


def test_it_takes_no_memory_but_for_its_rows():
    memory = FullEmbedding(9, 4).memory()
    assert (memory.table, memory.index) == (10 * 4 * 4, 0)
