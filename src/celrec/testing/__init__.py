"""Whether an embedding keeps what `Embedding` promises: for methods of one's own too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from celrec.testing import _capturing, _keeping, _learning, _looking_up
from celrec.testing._tables import Factory

__all__ = ["check_embedding"]


def check_embedding(
    factory: Factory, *, exact_row_gradients: bool = True, capture: bool = True
) -> None:
    """Raise an AssertionError, whose one line names the promise, for the first that is broken.

    `factory(**options)` makes a fresh table each time that it is called, with `padding_idx`
    and `dtype` as options. It should make a small one, of ten ids and three columns or so,
    and give settings other values than they have by default: then one that is not
    saved is missed. Random numbers come from torch's seed, which is as before afterwards.

    Gradients are compared with differences, (v(p + ε) − v(p − ε)) / 2ε for numbers p of
    each parameter. Where vectors are rounded and gradients go straight through, say
    `exact_row_gradients=False`: it is then only seen whether they lead where they should.
    A table none of whose parameters takes gradients is spared all that is about learning.

    `capture=False` leaves out torch.export and torch.compile, which take a second or more.

    A method of one's own, v(id) = length[id] · direction:

    >>> from torch import nn
    >>> from celrec.embeddings.embedding import Embedding
    >>> from celrec.embeddings.embedding import Memory
    >>> from celrec.embeddings.embedding import Traits
    >>> class RankOne(Embedding):
    ...     traits = Traits(low_time=True, low_memory=True, incremental=False)
    ...
    ...     def __init__(self, num_embeddings, embedding_dim, padding_idx=None, dtype=None):
    ...         super().__init__(num_embeddings, embedding_dim, padding_idx)
    ...         self.length = nn.Parameter(torch.randn(num_embeddings + 1, dtype=dtype))
    ...         self.direction = nn.Parameter(torch.randn(embedding_dim, dtype=dtype))
    ...
    ...     def vectors(self, ids):
    ...         seen = (ids >= 0) & (ids < self.num_embeddings)
    ...         place = torch.where(seen, ids, self.num_embeddings)
    ...         return self.length[place].unsqueeze(-1) * self.direction
    ...
    ...     def memory(self, *, training=False):
    ...         return Memory(self.length.nbytes + self.direction.nbytes, 0)

    >>> def make(**options):
    ...     return RankOne(12, 3, **options)
    >>> check_embedding(make)

    What is said where a promise is broken:

    >>> RankOne.memory = lambda table, training=False: Memory(table.length.nbytes, 0)
    >>> check_embedding(make)
    Traceback (most recent call last):
    AssertionError: RankOne: memory is told to the byte: of torch.float32, 52 told, 64 held
    """
    gradients = partial(_learning.gradients, exact=exact_row_gradients)
    promises: dict[str, Callable[[Factory], None]] = {
        "ids of any shape and integer type have vectors": _looking_up.shapes,
        "vectors have the float type that is asked for": _looking_up.float_types,
        "any integer has a finite vector, in training as in serving": _looking_up.unseen,
        "the seed of torch decides the vectors": _looking_up.seed,
        "gradients are right": gradients,
        "vectors can be learned": _learning.descent,
        "padding is zero and takes no gradient": _learning.padding,
        "adapting keeps parameters, shapes and finite numbers": _learning.adapting,
        "non-negative parameters make non-negative vectors": _learning.non_negative,
        "a copy goes its own way": _keeping.copies,
        "a state restores the vectors": _keeping.state,
        "settings and state make the table again": _keeping.settings,
        "a change of the float type keeps the vectors": _keeping.moves,
        "a settled table has the vectors that are served": _keeping.settled,
        "memory is told to the byte": _keeping.memory,
        "the budget is kept or the overrun told": _keeping.budget,
        "a table grows if it is said to": _keeping.growth,
        "a table drops ids and nothing else, or refuses to": _keeping.dropping,
    }
    if capture:
        promises["exported code gives the same vectors"] = _capturing.exported
        promises["compiled code gives the same vectors and gradients"] = _capturing.compiled
    promises["a fresh table takes the state of one that has grown"] = _keeping.grown_state
    with torch.random.fork_rng(devices=[]):
        name = type(factory()).__name__
        for promise, check in promises.items():
            torch.manual_seed(0)
            try:
                check(factory)
            except Exception as error:
                raise AssertionError(f"{name}: {promise}: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    first = next(iter(str(error).splitlines()), "")
    return first if isinstance(error, AssertionError) else f"{type(error).__name__}: {first}"
