"""What a lookup costs with each embedding method, and how many bytes the table takes.

    python benchmarks/embeddings.py [--ids 1000000] [--only cel,qr]

Forward and backward of batches of ids, most of them few popular ones, for tables of 1 % of the
rows, 64 dimensions. Lookups in a second are told beside those of nn.Embedding with a row for each
of as many ids and a dense gradient; the two are measured in turns, and medians are compared.
What the optimiser does is left out, as is `adapt`, which is for now and then. Bytes are those of
tables, without gradients and the optimiser's state; `training` is what a method holds while it
is trained, or to be prepared if that is more.

Where a method's work or memory grows with ids × rows it is measured for fewer ids, against
nn.Embedding for as few, and marked. TorchRec's EmbeddingBagCollection is measured where TorchRec
can be imported: `make hosts`, then .venv-hosts/bin/python. Nothing else may run beside it.
"""

import argparse
import gc
from collections.abc import Callable
from itertools import cycle
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from _timing import seconds_each
from torch import Tensor, nn

from celrec import Interactions
from celrec.data.id_map import IdMap
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import Embedding
from celrec.embeddings.hash_code import HashCodeEmbedding, HashGnn, hash_codes
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.personal import BiasedEmbedding
from celrec.embeddings.prehash_history import HistoryPreHashEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.embeddings.registry import METHODS, Request
from celrec.runtime.threads import flushed_denormals

IDS, DIM, SHARE, BATCH = 1_000_000, 64, 0.01, 65_536
REPEATS, BATCHES = 9, 5
USERS, ROWS_PER_ID = 1_000, 2  # of the log that tells which ids are warm
FEW = 100_000
"""Ids, at most, for those whose weights or activations are as many as ids, or lookups, × rows."""
FOR_FEW = {
    "prehash": "has a weight for each id and row",
    "prehash-history": "weighs all rows at each lookup",
}


class Scale(NamedTuple):
    """What all that is compared has in common."""

    request: Request
    batches: list[Tensor]
    slope: Tensor
    """The gradient at the vectors."""


def clustered(request: Request, dim: int = DIM) -> ClusteredEmbedding:
    table = ClusteredEmbedding(request.ids, dim, max_clusters=request.rows)
    table.start_from(torch.arange(request.ids) % request.rows)
    return table


def mixed(request: Request) -> MixedEmbedding:
    """Half of the rows for the warmest ids."""
    private = request.rows // 2
    warm = torch.zeros(request.ids, dtype=torch.bool)
    warm[request.warmest[:private]] = True
    return MixedEmbedding.personalise(
        clustered(request._replace(rows=request.rows - private)), warm
    )


def hash_gnn(request: Request) -> HashCodeEmbedding:
    """With the codes of a network that is hardly trained: lookups are the same."""
    table = HashCodeEmbedding(request.ids, DIM, rows=request.rows)
    bits, table.preparation_bytes = hash_codes(
        request.log, request.side, request.rows, request.seed, HashGnn(steps=1)
    )
    table.set_codes(bits, request.counts)
    return table


def prehash_history(request: Request) -> HistoryPreHashEmbedding:
    """With mixtures of 4 rows and histories that are full."""
    table = HistoryPreHashEmbedding(request.ids, DIM, rows=request.rows, k=4)
    ids = torch.arange(request.ids).repeat_interleave(table.length)
    table.remember(ids, torch.randint(USERS, ids.shape))
    table.bind(request.warmest)
    return table


MAKERS: dict[str, Callable[[Request], Embedding]] = {
    **{name: method.make for name, method in METHODS.items()},
    "cel": clustered,
    "cel-int8": lambda request: QuantisedEmbedding(clustered(request)),
    "hashgnn": hash_gnn,
    "mixed": mixed,
    "biased": lambda request: BiasedEmbedding(clustered(request, DIM - 1)),
    "prehash-history": prehash_history,
}


def zipf(rng: np.random.Generator, ids: int, size: int) -> np.ndarray:
    """Ids of popularity ∝ 1 / rank, where ranks say nothing about ids."""
    rank = np.exp(rng.random(size) * np.log(ids + 1)).astype(np.int64) - 1
    order = np.random.default_rng(0).permutation(ids)
    return order[rank.clip(0, ids - 1)]


def scale_of(ids: int, batch: int) -> Scale:
    rng = np.random.default_rng(1)
    size = ROWS_PER_ID * ids
    log = Interactions(
        user=rng.integers(USERS, size=size, dtype=np.int32),
        item=zipf(rng, ids, size).astype(np.int32),
        target=rng.integers(1, 6, size=size).astype(np.float32),
        timestamp=None,
        user_ids=IdMap(pl.Series(np.arange(USERS))),
        item_ids=IdMap(pl.Series(np.arange(ids))),
    )
    request = Request(log, "items", ids, DIM, max(1, round(SHARE * ids)), 0)
    batches = [torch.from_numpy(zipf(rng, ids, batch)) for _ in range(BATCHES)]
    return Scale(request, batches, torch.randn(batch, DIM))


def step_of(table: nn.Module, scale: Scale) -> Callable[[], None]:
    turns = cycle(scale.batches)

    def step() -> None:
        table(next(turns)).backward(scale.slope)
        table.zero_grad()

    return step


def show(name: str, scale: Scale, seconds: float, plain: float, sizes: list[int]) -> None:
    """A line of the table; `plain` are the seconds of nn.Embedding."""
    columns = [f"{name:<24}", f"{scale.request.ids:>9,}", f"{scale.request.rows:>9,}"]
    columns += [f"{len(scale.slope) / seconds / 1e6:>8.2f}", f"{plain / seconds:>7.2f}"]
    columns += [f"{size / 1e6:>11.3f}" for size in sizes]
    print(*columns, flush=True)


def torchrec_collection(ids: int) -> nn.Module | None:
    """An EmbeddingBagCollection with a row for each id, if TorchRec is there."""
    try:
        from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    except ImportError as error:
        print(f"TorchRec is left out: {error}; `make hosts` sets up a place that has it")
        return None

    class Collection(nn.Module):
        """Ids to vectors, bags of one."""

        def __init__(self) -> None:
            super().__init__()
            config = EmbeddingBagConfig(
                name="item", feature_names=["item"], embedding_dim=DIM, num_embeddings=ids
            )
            self.bags = EmbeddingBagCollection(tables=[config])

        def forward(self, numbers: Tensor) -> Tensor:
            ones = torch.ones_like(numbers)
            bags = KeyedJaggedTensor.from_lengths_sync(["item"], numbers, ones)
            found: Tensor = self.bags(bags).values()
            return found

    return Collection()


def compare(
    scale: Scale, names: list[str], repeats: int, rival: nn.Module | None = None, mark: str = ""
) -> None:
    """A line for nn.Embedding, for what TorchRec has if it is there, and for each method."""
    ids = scale.request.ids
    plain = nn.Embedding(ids, DIM)
    full, ours = plain.weight.nbytes, step_of(plain, scale)
    theirs = [] if rival is None else [step_of(rival, scale)]
    seconds = seconds_each([ours, *theirs], repeats)
    whole = scale._replace(request=scale.request._replace(rows=ids))
    for name, mine in zip(("nn.Embedding", "EmbeddingBagCollection"), seconds, strict=False):
        show(name + mark, whole, mine, seconds[0], [full, 0, full, full])
    for name in names:
        table = MAKERS[name](scale.request).train()
        slow, mine = seconds_each([ours, step_of(table, scale)], repeats)
        serving = table.memory()
        training = max(table.memory(training=True).total, table.preparation_bytes)
        sizes = [serving.table, serving.index, training, serving.total]
        show(name + mark, scale, mine, slow, sizes)
        del table  # before the next one is made
        gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ids", type=int, default=IDS)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--only", help="names with commas between them; all, if it is left out")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(MAKERS)
    if unknown := [name for name in names if name not in MAKERS]:
        parser.error(f"--only: {unknown[0]!r} is not one of {', '.join(MAKERS)}")
    torch.manual_seed(0)
    everyone = scale_of(given.ids, given.batch)
    rival = torchrec_collection(given.ids)
    print(
        f"{SHARE:.0%} of the rows, {DIM} dimensions, batches of {given.batch:,} lookups, forward "
        f"and backward, {torch.get_num_threads()} threads"
    )
    print(
        f"{'':<24} {'ids':>9} {'rows':>9} {'10⁶/s':>8} {'ratio':>7} {'table MB':>11} "
        f"{'index MB':>11} {'training MB':>11} {'serving MB':>11}"
    )
    all_at_once = [name for name in names if given.ids <= FEW or name not in FOR_FEW]
    compare(everyone, all_at_once, given.repeats, rival)
    if few := [name for name in names if name not in all_at_once]:
        compare(scale_of(FEW, given.batch), few, given.repeats, mark="*")
        for name in few:
            print(f"* for {FEW:,} ids: {name} {FOR_FEW[name]}")


if __name__ == "__main__":
    with flushed_denormals():
        main()
