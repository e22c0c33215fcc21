"""The conformance check of embedding methods."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from celrec.testing import gradient_checks, state_checks
from celrec.testing.tables import Factory


def check_embedding(
    factory: Factory, *, exact_row_gradients: bool = True, capture: bool = True
) -> None:
    """Check that an embedding method implements the contract of `Embedding`.

    Raises an AssertionError of one line, which names the first requirement that is violated.

    Gradients are compared with central differences, (v(p + ε) − v(p − ε)) / 2ε for values p of
    each parameter. Tables without trainable parameters skip all checks of training. Random
    numbers come from torch's global generator, whose state is restored afterwards.

    Args:
        factory: `factory(**options)` returns a new table at every call and takes `padding_idx`
            and `dtype`. Tables should be small, with about ten ids and three columns, and
            settings should differ from their defaults, so that missing ones are noticed.
        exact_row_gradients: False for straight-through gradients, as of rounded vectors: then
            they must only reduce the loss.
        capture: Check torch.export and torch.compile too, which takes a second or more.

    An example, v(id) = length[id] · direction:

    >>> from torch import nn
    >>> from celrec.embeddings import Embedding, Memory, Traits
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

    A violated requirement:

    >>> RankOne.memory = lambda table, training=False: Memory(table.length.nbytes, 0)
    >>> check_embedding(make)
    Traceback (most recent call last):
    AssertionError: RankOne: memory() counts every byte: torch.float32: 52 reported, 64 allocated

    """
    with torch.random.fork_rng(devices=[]):
        name = type(factory()).__name__
        for requirement, check in _requirements(exact_row_gradients, capture).items():
            torch.manual_seed(0)
            try:
                check(factory)
            except Exception as error:
                raise AssertionError(f"{name}: {requirement}: {_one_line(error)}") from error


def _requirements(exact_row_gradients: bool, capture: bool) -> dict[str, Callable[[Factory], None]]:
    requirements: dict[str, Callable[[Factory], None]] = {
        "ids of any shape and integer type have vectors": gradient_checks.shapes,
        "vectors have the requested dtype": gradient_checks.float_types,
        "any integer has a finite vector, in training and serving": gradient_checks.unseen,
        "the seed of torch determines the vectors": gradient_checks.seed,
        "gradients are right": partial(gradient_checks.gradients, exact=exact_row_gradients),
        "vectors can be learned": gradient_checks.descent,
        "padding is zero and takes no gradient": gradient_checks.padding,
        "adapting keeps parameters, shapes and finite numbers": gradient_checks.adapting,
        "non-negative parameters make non-negative vectors": gradient_checks.non_negative,
        "a deep copy is independent": state_checks.copies,
        "a state restores the vectors": state_checks.state,
        "settings and state recreate the table": state_checks.settings,
        "a change of dtype keeps the vectors": state_checks.moves,
        "a settled table has the vectors as served": state_checks.settled,
        "memory() counts every byte": state_checks.memory,
        "the size is as requested, or overrun and repr() say otherwise": state_checks.budget,
        "a table grows if traits.incremental": state_checks.growth,
        "keep() drops the other ids only, or raises an error": state_checks.dropping,
    }
    if capture:
        requirements["exported code gives the same vectors"] = gradient_checks.exported
        requirements["compiled code gives the same vectors and gradients"] = (
            gradient_checks.compiled
        )
    requirements["a fresh table loads the state of one that has grown"] = state_checks.grown_state
    return requirements


def _one_line(error: Exception) -> str:
    first = next(iter(str(error).splitlines()), "")
    return first if isinstance(error, AssertionError) else f"{type(error).__name__}: {first}"
