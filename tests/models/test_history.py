import torch
from torch.utils import _pytree

from celrec.models.history import History


def test_it_is_a_pair_of_vectors_and_of_what_is_filled():
    vectors, filled = torch.randn(2, 3, 4), torch.tensor([[False, True, True]] * 2)
    history = History(vectors, filled)
    assert history.vectors is vectors
    assert history.filled is filled
    assert tuple(history) == (vectors, filled, None, None)


def test_torch_sees_the_tensors_in_it():
    # So that it can be given to an exported model.
    history = History(torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.bool))
    leaves, form = _pytree.tree_flatten(history)
    assert len([leaf for leaf in leaves if leaf is not None]) == 2
    assert isinstance(_pytree.tree_unflatten(leaves, form), History)
