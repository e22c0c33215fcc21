"""Checks of torch.export and torch.compile."""

from __future__ import annotations

import torch

from celrec.testing.tables import Factory, gradients_of, probe_ids, same, trainable


def exported(make: Factory) -> None:
    """Exported programs give the same vectors for any batch size, in both modes."""
    table = make(padding_idx=0)
    size = ({0: torch.export.Dim("size")},)
    for mode in ("train", "eval"):
        table.train(mode == "train")
        program = torch.export.export(table, (torch.arange(4),), dynamic_shapes=size).module()
        for ids in (torch.tensor([-1]), torch.arange(7) - 2, probe_ids(table)):
            same(program(ids), table(ids), f"vectors of {len(ids)} ids after {mode}()")


def compiled(make: Factory) -> None:
    """The table compiles without graph breaks (with `aot_eager`, which skips code generation)."""
    table = make(padding_idx=0)
    ids = probe_ids(table)
    # All tables share one `forward`, and the compiler stops after a few recompilations.
    torch.compiler.reset()
    code = torch.compile(table, backend="aot_eager", fullgraph=True)
    same(code(ids), table(ids), "vectors")
    if trainable(table):
        weights = torch.randn(len(ids), table.embedding_dim)
        expected, found = gradients_of(table, ids, weights), gradients_of(table, ids, weights, code)
        for name, gradient in expected.items():
            same(found[name], gradient, f"gradients of {name}")
