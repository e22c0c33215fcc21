"""Model files: ONNX graphs, torch.export programs and safetensors."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from celrec.config.building import describe_model, rebuild_model
from celrec.config.plan import Plan
from celrec.data.id_map import UNSEEN
from celrec.errors import CelrecError, first_line
from celrec.recommender.batch import Batch
from celrec.recommender.model import Model
from celrec.runtime.extras import require_extra


class Scorer(nn.Module):
    """Maps ids to predictions, like `predict`, in a form that torch.export and ONNX can trace.

    Ids are the dense numbers of users and items; −1 and any number out of range are unseen ids.
    Cluster assignments and features of ids are part of the module. With several tasks, the first
    one is predicted. The model is put into evaluation mode.

    >>> from celrec.embeddings.clustered import ClusteredEmbedding
    >>> from celrec.embeddings.full import FullEmbedding
    >>> from celrec.recommender.model import Model
    >>> users, items = FullEmbedding(2, 3), ClusteredEmbedding(5, 3, max_clusters=2)
    >>> scorer = Scorer(Model(users, items))
    >>> scorer(torch.tensor([0, 1, -1]), torch.tensor([4, -1, 99])).shape
    torch.Size([3])
    >>> {name: tuple(ids.shape) for name, ids in scorer.example(7).items()}
    {'user': (7,), 'item': (7,)}
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.eval()

    def forward(
        self,
        user: Tensor,
        item: Tensor,
        history: Tensor | None = None,
        columns: Tensor | None = None,
    ) -> Tensor:
        """The prediction for each pair, (batch,).

        `history` is (batch, length), for models with histories: earlier items, oldest first,
        padded with −1 in front. `columns` is (batch, columns), for models with further id columns.
        """
        pairs = Batch.pairs(user, item)
        output: Tensor = self.model(pairs._replace(history=history, columns=columns))
        return self.model.loss.prediction(output)

    def example(self, batch: int) -> dict[str, Tensor]:
        """Example inputs of `forward` for this model, by name: tensors of unseen ids."""
        shapes: dict[str, tuple[int, ...]] = {"user": (batch,), "item": (batch,)}
        if self.model.history_length:
            shapes["history"] = (batch, self.model.history_length)
        if self.model.column_names:
            shapes["columns"] = (batch, len(self.model.column_names))
        return {name: torch.full(shape, UNSEEN) for name, shape in shapes.items()}


_NOISY_LOGGERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")


@contextmanager
def quiet() -> Iterator[None]:
    """A context in which torch and ONNX log errors only."""
    loggers = [logging.getLogger(name) for name in _NOISY_LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


OUTPUT = "prediction"
"""The name of the output of a graph."""
ONNX_ABOUT = "celrec"
"""The metadata key of the description in an ONNX file."""


def write_onnx(path: Path, program: ExportedProgram, about: str) -> None:
    """Write an ONNX file of standard operators, with `about` in its metadata.

    Inputs have the names of the program's inputs, and a dynamic batch size. The format is limited
    to 2 GB per file: weights of more than 1.5 GB are written to `model.onnx.data` beside it.
    """
    require_extra("format 'onnx'", "export", "onnx", "onnxscript")
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
        for node in graph.model.graph.all_nodes():  # long notes of the exporter
            node.metadata_props.clear()
        graph.model.metadata_props[ONNX_ABOUT] = about
        graph.save(path)
        check_model(path)


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)


PROGRAM_ABOUT = "export.json"
"""The extra file inside a .pt2 file that holds the description."""


def program_of(scorer: Scorer) -> ExportedProgram:
    """The scorer as a torch.export program with a dynamic batch size of at least 1."""
    example = scorer.example(3)  # torch.export would specialise on a batch of 1
    batch = Dim("batch", min=1)
    shapes = {name: {0: batch} for name in example}
    with quiet(), torch.no_grad():
        program = torch.export.export(scorer, (), example, dynamic_shapes=shapes)
    for node in program.graph.nodes:  # paths of source files are private
        node.meta.pop("stack_trace", None)
    return program


def write_program(path: Path, program: ExportedProgram, about: str) -> None:
    """Write a .pt2 file with `about` as its extra file `PROGRAM_ABOUT`.

    `torch.export.load(path).module()` takes ids as keyword arguments, like `Scorer.forward`.

    >>> from tempfile import mkdtemp
    >>> from celrec.embeddings.full import FullEmbedding
    >>> from celrec.recommender.model import Model
    >>> path = Path(mkdtemp(), "model.pt2")
    >>> scorer = Scorer(Model(FullEmbedding(2, 3), FullEmbedding(5, 3)))
    >>> write_program(path, program_of(scorer), "{}")
    >>> torch.export.load(path).module()(user=torch.tensor([0]), item=torch.tensor([-1])).shape
    torch.Size([1])
    """
    example = program.example_inputs
    program.example_inputs = None  # torch would pickle them
    try:
        with quiet():
            torch.export.save(program, path, extra_files={PROGRAM_ABOUT: about})
    finally:
        program.example_inputs = example


_ABOUT, _PLAN, _MODEL = "celrec", "plan", "model"  # the keys of the metadata


def write_safetensors(path: Path, model: Model, plan: Plan, about: str) -> None:
    """Write the state dict of a model, with what is needed to build it again.

    Metadata keys: `celrec` holds `about`; `plan` and `model` are for `read_safetensors`.
    """
    metadata = {
        _ABOUT: about,
        _PLAN: json.dumps(asdict(plan)),
        _MODEL: json.dumps(describe_model(model)),
    }
    try:
        save_file(dict(model.state_dict()), path, metadata)
    except SafetensorError as error:  # raised when the disk is full
        raise CelrecError(f"{path}: cannot write the model ({error}); make room") from error


def read_safetensors(path: str | Path) -> Model:
    """Load a model that `write_safetensors` wrote, from this file alone.

    Histories of users are not in the file: models that need them get them from the caller, as
    an input of `Scorer`.

    >>> from tempfile import mkdtemp
    >>> from celrec.embeddings.full import FullEmbedding
    >>> from celrec.recommender.model import Model
    >>> path = Path(mkdtemp(), "model.safetensors")
    >>> model = Model(FullEmbedding(2, 3), FullEmbedding(5, 3))
    >>> write_safetensors(path, model, Plan(embedding="full", rank=3), "{}")
    >>> bool((read_safetensors(path).items.weight == model.items.weight).all())
    True
    """
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
        model = rebuild_model(Plan(**json.loads(metadata[_PLAN])), json.loads(metadata[_MODEL]))
        model.load_state_dict(load_file(path))
    except FileNotFoundError as error:
        raise CelrecError(f"{path}: no such file") from error
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise CelrecError(
            f"{path}: not a model that celrec exported ({first_line(error)}); export it again"
        ) from error
    return model
