"""Layers in plain numbers, one sample at a time, and what samples are made of."""

import math
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from celrec.models.interaction import History


class Sample(NamedTuple):
    """What a model is called with."""

    user: torch.Tensor
    item: torch.Tensor
    history: History | None = None
    features: torch.Tensor | None = None


def shaken(module, seed=0):
    """The module in double precision, with no parameter left as it began."""
    rng = torch.Generator().manual_seed(seed)
    module = module.double()
    with torch.no_grad():
        for value in module.parameters():
            value.copy_(torch.randn(value.shape, generator=rng, dtype=value.dtype) * 0.7)
    return module


@st.composite
def samples(draw, columns, fields=0, lengths=None):
    """One sample without any batch axis."""
    rng = torch.Generator().manual_seed(draw(st.integers(0, 1000)))

    def random(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    history = None
    if lengths is not None:
        filled = draw(st.lists(st.booleans(), min_size=lengths[0], max_size=lengths[1]))
        filled = torch.tensor(filled, dtype=torch.bool)
        history = History(random(len(filled), columns), filled)
    features = random(fields, columns) if fields else None
    return Sample(random(columns), random(columns), history, features)


def at(tensor, place, own=1):
    """What broadcasting takes of a tensor at a place; its last `own` axes are kept whole."""
    lead = tensor.shape[: tensor.dim() - own]
    place = place[len(place) - len(lead) :]
    return tensor[tuple(0 if size == 1 else i for i, size in zip(place, lead, strict=True))]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def linear(layer, vector):
    """W·x + c, row by row."""
    weight = layer.weight.tolist()
    bias = [0.0] * len(weight) if layer.bias is None else layer.bias.tolist()
    return [dot(row, vector) + constant for row, constant in zip(weight, bias, strict=True)]


def relu(vector):
    return [max(x, 0.0) for x in vector]


def sigmoid(vector):
    return [1 / (1 + math.exp(-x)) for x in vector]


def softmax(vector):
    exponentials = [math.exp(x) for x in vector]
    return [x / sum(exponentials) for x in exponentials]


def layers(module, kind):
    return [layer for layer in module.modules() if isinstance(layer, kind)]


def times(first, second):
    """Number by number."""
    return [a * b for a, b in zip(first, second, strict=True)]


def tower(module, vector):
    """Every linear layer but the last is followed by a PReLU of its own."""
    *hidden, top = layers(module, nn.Linear)
    for layer, activation in zip(hidden, layers(module, nn.PReLU), strict=True):
        slope = activation.weight.item()
        vector = [x if x > 0 else slope * x for x in linear(layer, vector)]
    (number,) = linear(top, vector)
    return number


def attention(module, target, keys):
    """The weights of keys, all of which are filled: the four inputs are literally side by side."""
    scores = []
    for key in keys:
        difference = [q - k for q, k in zip(target, key, strict=True)]
        product = [q * k for q, k in zip(target, key, strict=True)]
        score = tower(module, [*target, *key, *difference, *product])
        scores.append(score / math.sqrt(len(target)))
    return softmax(scores)


def known(history):
    """The vectors at filled places, oldest first."""
    pairs = zip(history.vectors.tolist(), history.filled.tolist(), strict=True)
    return [vector for vector, filled in pairs if filled]


def joined(vectors):
    """Vectors side by side."""
    return [x for vector in vectors for x in vector]


class LargestTensor(TorchDispatchMode):
    """How many numbers the largest tensor has that is given to a product or made by anything."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten.expand.default:  # a view, which takes no memory
            for tensor in (*args, made):
                if isinstance(tensor, torch.Tensor):
                    self.size = max(self.size, tensor.numel())
        return made
