"""Promises about the code that torch makes from a table."""

from __future__ import annotations

import torch

from celrec.testing._tables import Factory, everyone, pulled, same, trainable


def exported(make: Factory) -> None:
    """torch.export gives the same vectors, for batches of any size, in both modes."""
    table = make(padding_idx=0)
    size = ({0: torch.export.Dim("size")},)
    for mode in ("train", "eval"):
        table.train(mode == "train")
        program = torch.export.export(table, (torch.arange(4),), dynamic_shapes=size).module()
        for ids in (torch.tensor([-1]), torch.arange(7) - 2, everyone(table)):
            same(program(ids), table(ids), f"vectors of {len(ids)} ids after {mode}()")


def compiled(make: Factory) -> None:
    """torch.compile takes the table in one piece, without the minutes that machine code takes."""
    table = make(padding_idx=0)
    ids = everyone(table)
    # All tables have one `forward`, which the compiler gives up on after a few of them.
    torch.compiler.reset()
    code = torch.compile(table, backend="aot_eager", fullgraph=True)
    same(code(ids), table(ids), "vectors")
    if trainable(table):
        pull = torch.randn(len(ids), table.embedding_dim)
        expected, found = pulled(table, ids, pull), pulled(table, ids, pull, code)
        for name, slope in expected.items():
            same(found[name], slope, f"gradients of {name}")
