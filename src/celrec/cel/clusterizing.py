"""Clustered embeddings in place of the `nn.Embedding`s of a model, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from celrec.cel.autograd_evidence import Objective
from celrec.cel.clusterer import Clusterer, make_evidence
from celrec.cel.learned_clusters import learned_levels
from celrec.cel.levelled_clusterer import LevelledClusterer
from celrec.cel.reassignment import choose_unseen
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.clustered_bag import ClusteredEmbeddingBag
from celrec.embeddings.embedding import Embedding
from celrec.embeddings.id_rows import add_parameter, average_row_state
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.errors import CelrecError


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put `new` wherever `old` is registered below `model`, in its mode."""
    new.train(old.training)
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if module is old:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, new)


STARTS = ("learned", "one")


def clusterize(
    model: nn.Module,
    rows: Mapping[str, int | str],
    objective: Objective | None = None,
    optimizer: Optimizer | None = None,
    *,
    levels: int = 1,
    start: str = "learned",
    interactions: Mapping[str, Tensor] | None = None,
    data: Sequence[Any] | None = None,
    **schedule: Any,
) -> dict[str, Clusterer | LevelledClusterer]:
    """Replace tables of a model by clustered ones, in place; the clusterers by name.

    `rows` says for each `nn.Embedding` or `nn.EmbeddingBag`, by its name in
    `model.named_modules()`, how many rows it is to have: a number, or a share of its
    ids such as `"1%"`. A table that is used in several places is replaced in all.

    With several `levels`, vectors are sums of a row of each level (`LevelledEmbedding`), and
    `rows` is the number of rows of all levels together.

    With `start="learned"` the table is compressed by `learned_levels`, and the vectors of ids
    with many `interactions` (counts per id, by name) are approximated better than others. With
    `start="one"`, for tables that are not trained yet, all ids begin in one cluster.

    The parameter object stays and only gets fewer rows (those of the first level), so references
    to it, such as those of an optimiser or a regulariser, stay valid. An `optimizer` that has
    made steps has to be passed, so that its state gets as many rows; for one that is built later,
    set `clusterer.optimizer`.

    `objective`, from a batch to the loss of each sample, and `data`, if given, are the
    evidence of the clusterers, as in `AutogradEvidence`; tables whose clusters are not to
    change need none. `schedule` has fields of `ClustererConfig`.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.ModuleDict({"user": nn.Embedding(10, 4), "item": nn.Embedding(1000, 4)})
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> def objective(batch):
    ...     user, item, rating = batch
    ...     return ((model["user"](user) * model["item"](item)).sum(-1) - rating) ** 2
    >>> clusterers = clusterize(model, {"item": "2%"}, objective, optimizer, reassign_every=1)
    >>> model["item"]
    ClusteredEmbedding(1000, 4, clusters=20 of 20)
    >>> batch = torch.randint(10, (50,)), torch.randint(1000, (50,)), torch.rand(50)
    >>> objective(batch).mean().backward()
    >>> optimizer.step()
    >>> [move.kind for move in clusterers["item"].step(batch)]  # after each step of the optimiser
    ['reassign']
    """
    if start not in STARTS:
        raise CelrecError(f"start must be one of {', '.join(STARTS)}, not {start!r}")
    if levels < 1:
        raise CelrecError(f"levels must be positive, not {levels}")
    counts = interactions or {}
    if unknown := counts.keys() - rows.keys():
        raise CelrecError(f"interactions: {min(unknown)!r} is not one of the tables in rows")
    # All checks come before any change.
    tables = _tables(model, rows)
    wanted = {name: _number(name, rows[name], table) for name, table in tables.items()}
    for name, table in tables.items():
        _check(name, table)
        if levels > 1 and not isinstance(table, nn.Embedding):
            raise CelrecError(f"levels: table {name!r} is an nn.EmbeddingBag; take levels=1 for it")
        _check_optimizer(optimizer, name, table)
    shared = {
        name: _clusters(name, table, (wanted[name], levels), start, counts.get(name))
        for name, table in tables.items()
    }
    clusterers: dict[str, Clusterer | LevelledClusterer] = {}
    for name, table in tables.items():
        new = _replaced(model, table, shared[name], optimizer)
        loss = _missing_objective if objective is None else objective
        if isinstance(new, LevelledEmbedding):
            parts = new.clustered_levels
            each = [make_evidence(part, loss, data=data, model=model) for part in parts]
            clusterers[name] = LevelledClusterer(new, optimizer, each, **schedule)
        else:
            evidence = make_evidence(new, loss, data=data, model=model)
            clusterers[name] = Clusterer(new, optimizer, evidence, **schedule)
    return clusterers


Plain = nn.Embedding | nn.EmbeddingBag
Shared = ClusteredEmbedding | ClusteredEmbeddingBag | LevelledEmbedding


def _tables(model: nn.Module, rows: Mapping[str, int | str]) -> dict[str, Plain]:
    modules = dict(model.named_modules(remove_duplicate=False))
    tables: dict[str, Plain] = {}
    for name in rows:
        table = modules.get(name)
        if not name or not isinstance(table, Plain):
            known = [key for key, module in modules.items() if key and isinstance(module, Plain)]
            raise CelrecError(
                f"rows: the model has no nn.Embedding or nn.EmbeddingBag called {name!r}; "
                f"it has {', '.join(known) or 'none'}"
            )
        for other, known_table in tables.items():
            if known_table is table:
                raise CelrecError(f"rows: {other!r} and {name!r} are one table; name it once")
        tied = [
            key
            for key, parameter in model.named_parameters(remove_duplicate=False)
            if parameter is table.weight and modules[key.rpartition(".")[0]] is not table
        ]
        if tied:
            raise CelrecError(
                f"rows: the weight of {name!r} is also {tied[0]!r}; untie them first, or use one "
                "nn.Embedding in both places"
            )
        tables[name] = table
    return tables


def _number(name: str, given: int | str, table: Plain) -> int:
    ids = table.num_embeddings
    text = str(given).strip()
    try:
        number = float(text[:-1]) / 100 * ids if text.endswith("%") else int(text)
        rows = round(number)
    except (ValueError, OverflowError) as error:
        raise CelrecError(
            f"rows[{name!r}] must be a number of rows or a share such as '1%', not {given!r}"
        ) from error
    if number <= 0:
        raise CelrecError(f"rows[{name!r}] must be positive, not {given!r}")
    return min(max(rows, 1), ids)


def _check(name: str, table: Plain) -> None:
    plain = nn.Embedding if isinstance(table, nn.Embedding) else nn.EmbeddingBag
    if type(table) is not plain:  # a subclass may do anything to its vectors
        raise CelrecError(
            f"table {name!r} is a {type(table).__name__}, not an nn.{plain.__name__} itself"
        )
    for option, remedy in (
        ("max_norm", "shared rows are not renormalised; set it to None"),
        ("scale_grad_by_freq", "rows are shared, ids are not counted; set it to False"),
        ("sparse", "the few rows have dense gradients; set it to False, with a dense optimiser"),
    ):
        if getattr(table, option):
            raise CelrecError(f"table {name!r} has {option}={getattr(table, option)}: {remedy}")
    if any((table._forward_hooks, table._forward_pre_hooks, table._backward_hooks)):
        raise CelrecError(f"table {name!r} has hooks, which would be lost; remove them first")
    padding = table.padding_idx
    if (
        isinstance(table, nn.Embedding)
        and padding is not None
        and bool(table.weight[padding].any())
    ):
        raise CelrecError(
            f"table {name!r} has a padding_idx of {padding} whose row is not zero, as that of a "
            "clustered table is; set the row to zero, or padding_idx to None"
        )


def _check_optimizer(optimizer: Optimizer | None, name: str, table: Plain) -> None:
    if optimizer is None or not table.weight.requires_grad:
        return
    if not any(one is table.weight for group in optimizer.param_groups for one in group["params"]):
        raise CelrecError(
            f"optimizer does not hold the weight of {name!r}; build it from model.parameters(), "
            "or give none"
        )


Level: TypeAlias = tuple[Tensor, Tensor]
"""The cluster of each id, and the rows of the clusters."""


@torch.no_grad()
def _clusters(
    name: str, table: Plain, sizes: tuple[int, int], start: str, interactions: Tensor | None
) -> list[Level]:
    """The levels of a table; `sizes` are the rows of all, and how many levels."""
    weight, levels = table.weight.detach(), sizes[1]
    rows = max(sizes[0] // levels, 1)
    if start == "learned":
        try:
            return learned_levels(weight, rows, levels, interactions)
        except CelrecError as error:
            raise CelrecError(f"table {name!r}: {error}") from error
    # The first rows as the model initialised them, but for that of padding.
    ids = torch.arange(len(weight), device=weight.device)
    if table.padding_idx is not None and rows < len(weight):
        ids = ids[ids != table.padding_idx]
    together = torch.zeros(len(weight), dtype=torch.int64, device=weight.device)
    first = weight[ids[:rows]]
    return [(together, first), *[(together, torch.zeros_like(first))] * (levels - 1)]


@torch.no_grad()
def _replaced(
    model: nn.Module, old: Plain, shared: list[Level], optimizer: Optimizer | None
) -> Shared:
    """Put a clustered table in the place of `old` in the model; the new module."""
    parameter = cast(nn.Parameter, old.weight)
    new = _table(old, len(shared), len(shared[0][1]))
    tables = new.clustered_levels if isinstance(new, LevelledEmbedding) else [new]
    average_row_state(optimizer, parameter, shared[0][0], tables[0].max_clusters)
    # Other references to the old table keep working.
    old.weight = nn.Parameter(parameter.data, requires_grad=parameter.requires_grad)
    parameter.grad = None
    parameter.data = shared[0][1].clone()
    tables[0].weight = parameter
    for table, (assignment, rows) in zip(tables, shared, strict=True):
        table.weight.copy_(rows)
        table.weight.requires_grad_(parameter.requires_grad)
        if table is not tables[0]:
            add_parameter(optimizer, parameter, table.weight)
        table.start_from(assignment)
        choose_unseen(table)
    module: Shared = new
    if isinstance(old, nn.EmbeddingBag):
        module = ClusteredEmbeddingBag(
            tables[0], mode=old.mode, include_last_offset=old.include_last_offset
        )
    replace_module(model, old, module)
    return module


def _table(old: Plain, levels: int, rows: int) -> ClusteredEmbedding | LevelledEmbedding:
    make = ClusteredEmbedding if levels == 1 else partial(LevelledEmbedding, levels=levels)
    return make(
        old.num_embeddings,
        old.embedding_dim,
        max_clusters=rows,
        padding_idx=old.padding_idx,
        device=old.weight.device,
        dtype=old.weight.dtype,
    )


def _missing_objective(batch: object) -> Tensor:
    del batch
    raise CelrecError("objective is missing: give clusterize the loss of each sample of a batch")


Model = TypeVar("Model", bound=nn.Module)


@torch.no_grad()
def declusterize(model: Model) -> Model:
    """Replace clustered tables by `nn.Embedding` and `nn.EmbeddingBag`, in place; the model.

    Each id gets a row of its own, equal to the one that it shared, so predictions are the
    same; but a plain table raises for unseen ids. The parameter objects stay and only get
    more rows. An optimiser that has made steps has to be built anew.

    >>> model = nn.Sequential(ClusteredEmbedding(100, 4, max_clusters=3))
    >>> ids = torch.arange(100)
    >>> before = model(ids)
    >>> declusterize(model)
    Sequential(
      (0): Embedding(100, 4)
    )
    >>> bool((model(ids) == before).all())
    True
    """
    if isinstance(model, Shared):
        raise CelrecError(
            f"model is a {type(model).__name__} itself, which cannot be replaced in place; "
            "put it in an nn.Sequential"
        )
    # A table within another table, or within a bag, is not replaced by itself.
    parts = {
        part
        for whole in model.modules()
        if isinstance(whole, Embedding | ClusteredEmbeddingBag)
        for part in whole.modules()
        if part is not whole
    }
    for module in list(model.modules()):
        if isinstance(module, ClusteredEmbeddingBag):
            replace_module(model, module, _plain_bag(module))
        elif isinstance(module, ClusteredEmbedding | LevelledEmbedding) and module not in parts:
            replace_module(model, module, _plain(module))
    return model


def _plain(table: ClusteredEmbedding | LevelledEmbedding) -> nn.Embedding:
    plain = nn.Embedding(
        table.num_embeddings, table.embedding_dim, table.padding_idx, device="meta"
    )
    plain.weight = _spread(table)
    return plain


def _plain_bag(bags: ClusteredEmbeddingBag) -> nn.EmbeddingBag:
    table = bags.table
    plain = nn.EmbeddingBag(
        table.num_embeddings,
        table.embedding_dim,
        mode=bags.mode,
        include_last_offset=bags.include_last_offset,
        padding_idx=table.padding_idx,
        device="meta",
    )
    plain.weight = _spread(table)
    return plain


def _spread(table: ClusteredEmbedding | LevelledEmbedding) -> nn.Parameter:
    """The parameter of the table with a row for each id; the table keeps a copy of its rows."""
    first = table if isinstance(table, ClusteredEmbedding) else table.clustered_levels[0]
    parameter = first.weight
    vectors = table(torch.arange(table.num_embeddings, device=parameter.device))
    first.weight = nn.Parameter(parameter.data, requires_grad=parameter.requires_grad)
    parameter.grad = None
    parameter.data = vectors.detach().clone()
    return parameter
