"""Models as graphs of ONNX."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from torch.export import ExportedProgram

from celrec.errors import CelrecError
from celrec.serving._quiet import quiet

OUTPUT = "prediction"
"""The name of what a graph puts out."""
ABOUT = "celrec"
"""The key of the metadata that tell what a graph is."""
_NEEDED = ("onnx", "onnxscript")


def write_onnx(path: Path, program: ExportedProgram, about: str) -> None:
    """Write an .onnx file of standard operators alone, with `about` in its metadata.

    Its inputs have the names that the program takes them by, and batches of any size.
    Of a model of more than 1.5 GB the numbers are in a file beside it, `model.onnx.data`: one
    file of this format can hold no more than 2 GB.
    """
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise CelrecError(
            f"format 'onnx' needs {' and '.join(missing)}, not installed here; "
            "pip install 'celrec[export]'"
        )
    from onnx.checker import check_model

    names = {name: {0: "batch"} for name in program.example_inputs[1]}
    with quiet():
        try:
            graph = torch.onnx.export(
                program, dynamo=True, verbose=False, output_names=[OUTPUT], dynamic_shapes=names
            )
        except torch.onnx.OnnxExporterError as error:
            raise CelrecError(
                f"format 'onnx' cannot hold this model ({_cause(error)}); take 'pt2' or "
                "'safetensors'"
            ) from error
        if graph is None:
            raise CelrecError("format 'onnx' cannot hold this model; take 'pt2' or 'safetensors'")
        for node in graph.model.graph.all_nodes():  # notes of the exporter's, long ones
            node.metadata_props.clear()
        graph.model.metadata_props[ABOUT] = about
        graph.save(path)
        check_model(path)


def _cause(error: BaseException) -> str:
    """What went wrong at first, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().partition("\n")[0]
