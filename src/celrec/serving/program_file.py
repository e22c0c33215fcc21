"""Models as programs of torch.export."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.export import Dim, ExportedProgram

from celrec.serving._quiet import quiet
from celrec.serving.scorer import Scorer

ABOUT = "export.json"
"""The extra file inside a .pt2 that tells what it is."""


def program_of(scorer: Scorer) -> ExportedProgram:
    """The scorer as one graph, for batches of any size but 0."""
    example = scorer.example(3)  # torch takes 1 for a size that never changes
    batch = Dim("batch", min=1)
    shapes = {name: {0: batch} for name in example}
    with quiet(), torch.no_grad():
        program = torch.export.export(scorer, (), example, dynamic_shapes=shapes)
    for node in program.graph.nodes:  # it tells where the source lies, and goes to others
        node.meta.pop("stack_trace", None)
    return program


def write_program(path: Path, program: ExportedProgram, about: str) -> None:
    """Write a .pt2 file, with `about` in it: see `ABOUT`.

    `torch.export.load(path).module()` takes the ids by name, as the scorer does.

    >>> from tempfile import mkdtemp
    >>> from celrec.embeddings.full import FullEmbedding
    >>> from celrec.training.factorisation import Factorisation
    >>> path = Path(mkdtemp(), "model.pt2")
    >>> scorer = Scorer(Factorisation(FullEmbedding(2, 3), FullEmbedding(5, 3)))
    >>> write_program(path, program_of(scorer), "{}")
    >>> torch.export.load(path).module()(user=torch.tensor([0]), item=torch.tensor([-1])).shape
    torch.Size([1])
    """
    example = program.example_inputs
    program.example_inputs = None  # they would be kept as a pickle
    try:
        with quiet():
            torch.export.save(program, path, extra_files={ABOUT: about})
    finally:
        program.example_inputs = example
