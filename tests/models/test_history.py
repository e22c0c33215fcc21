import pytest
import torch
from torch.utils import _pytree

from celrec.errors import CelrecError
from celrec.models.interaction import History


def test_it_is_a_pair_of_vectors_and_of_what_is_filled():
    vectors, filled = torch.randn(2, 3, 4), torch.tensor([[False, True, True]] * 2)
    history = History(vectors, filled)
    assert history.vectors is vectors
    assert history.filled is filled
    assert tuple(history) == (vectors, filled, None, None, None)


def test_torch_sees_the_tensors_in_it():
    # So that it can be given to an exported model.
    history = History(torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.bool))
    leaves, form = _pytree.tree_flatten(history)
    assert len([leaf for leaf in leaves if leaf is not None]) == 2
    assert isinstance(_pytree.tree_unflatten(leaves, form), History)


def test_vectors_are_gathered_where_only_rows_are_given():
    rows, row = torch.randn(5, 4), torch.randint(5, (2, 3))
    history = History(None, torch.ones(2, 3, dtype=torch.bool), rows, row)
    assert torch.equal(history.vectors, rows[row])
    gathered = history.gathered()
    assert torch.equal(gathered.given, rows[row])
    assert gathered[1:] == history[1:]


def test_one_of_vectors_and_rows_is_needed():
    with pytest.raises(CelrecError, match="neither vectors nor rows"):
        _ = History(None, torch.ones(2, 3, dtype=torch.bool)).vectors
