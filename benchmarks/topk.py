"""The 10 best of a million items: by their clusters or levels, and by brute force over them.

    python benchmarks/topk.py            # with FAISS too, where `pip install faiss-cpu` was done

Two models, 1,000,000 items, 10,000 users, one thread:

- clusters: a non-negative factorisation with 64 dimensions, items in 10,000 clusters (1 %) of
  uneven sizes
- levels: a factorisation with biases and 32 dimensions, the vector of an item is a sum of three
  rows, one of 256 in each of three levels; the rows of a level are shorter by a sixth than those of
  the level before, as residuals are

The alternatives have a row for each item, with the vector that it has in the model (and its bias):
so all have to find the same scores.

- `TopK`, without and with 100 items for each user that were seen and are left out
- torch: blocks of users times blocks of the table, `topk` of each block, merged
- FAISS: an exact flat index (IndexFlatIP)

Times are those of the processor, in turns of 1,000 users each, so that what else the machine does
falls on all alike; ratios are medians over the turns.
"""

import importlib.util
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from celrec.data.seen_items import SeenItems
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.embeddings.personal import BiasedEmbedding
from celrec.inference.top_k import TopK
from celrec.offline.factorisation_solver import initialise_factors
from celrec.recommender.model import Model

ITEMS, CLUSTERS, USERS, DIM, K = 1_000_000, 10_000, 10_000, 64, 10
LEVELS, LEVEL_ROWS, LEVEL_DIM = 3, 256, 32
_TURN = 1_000
_BLOCK = 256, 16_384  # users and items at once, the fastest of those tried for torch
Search = Callable[[NDArray[np.int64]], NDArray[np.float32]]


def make_model(rng: np.random.Generator) -> Model:
    share = rng.pareto(1.5, CLUSTERS) + 0.1
    labels = rng.choice(CLUSTERS, ITEMS, p=share / share.sum())
    labels[:CLUSTERS] = np.arange(CLUSTERS)
    items = ClusteredEmbedding(ITEMS, DIM, max_clusters=CLUSTERS)
    items.start_from(torch.from_numpy(labels))
    model = Model(FullEmbedding(USERS, DIM), items)
    initialise_factors(model, torch.Generator().manual_seed(0))
    # As means over members they would be nearly alike.
    items.weight.data.normal_(generator=torch.Generator().manual_seed(1)).abs_()
    return model


def with_torch(users: torch.Tensor, table: torch.Tensor) -> Search:
    def search(numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        found = []
        for some in users[torch.from_numpy(numbers)].split(_BLOCK[0]):
            best = torch.empty(len(some), 0)
            for block in table.split(_BLOCK[1]):
                scores = (some @ block.T).topk(K).values  # the places are found with them
                best = torch.cat([best, scores], 1).topk(K).values
            found.append(best)
        return torch.cat(found).numpy()

    return search


def with_faiss(users: torch.Tensor, table: torch.Tensor) -> Search | None:
    if importlib.util.find_spec("faiss") is None:
        print("FAISS is not installed (pip install faiss-cpu), so it is left out")
        return None
    import faiss

    faiss.omp_set_num_threads(1)
    # From so many users on it multiplies matrices: eight times as fast here as what it does else.
    faiss.cvar.distance_compute_blas_threshold = 20
    index = faiss.IndexFlatIP(table.shape[1])
    index.add(table.numpy())
    return lambda numbers: index.search(users.numpy()[numbers], K)[0]


def make_levels(rng: np.random.Generator) -> Model:
    items = LevelledEmbedding(ITEMS, LEVEL_DIM, max_clusters=LEVEL_ROWS, levels=LEVELS)
    generator = torch.Generator().manual_seed(0)
    for number, level in enumerate(items.clustered_levels):
        labels = rng.integers(LEVEL_ROWS, size=ITEMS)
        labels[:LEVEL_ROWS] = np.arange(LEVEL_ROWS)
        level.start_from(torch.from_numpy(labels))
        # Each level leaves 2^(−2·8/32) of the variance of a normal distribution.
        level.weight.data.normal_(generator=generator).mul_(2 ** (-number * 8 / LEVEL_DIM))
    model = Model(BiasedEmbedding(FullEmbedding(USERS, LEVEL_DIM)), BiasedEmbedding(items))
    model.users.rows.weight.data.normal_(generator=generator)
    # The deviation of biases is half that of what the rows explain.
    spread = sum(level.weight.data.var() for level in items.clustered_levels) * LEVEL_DIM
    model.items.bias.data.normal_(generator=generator).mul_(spread**0.5 / 2)
    return model


def main() -> None:
    torch.set_num_threads(1)
    compare("clusters", make_model)
    compare("levels", make_levels)


@torch.no_grad()
def compare(kind: str, make: Callable[[np.random.Generator], Model]) -> None:
    rng = np.random.default_rng(0)
    model = make(rng)
    popularity = rng.integers(0, 1_000, ITEMS)
    seen = SeenItems()
    seen.add(np.repeat(np.arange(USERS), 100), rng.integers(0, ITEMS, 100 * USERS))
    TopK(model, popularity)  # compiles what is not compiled yet
    begun = time.process_time()
    top = TopK(model, popularity)
    made = time.process_time() - begun
    # With biases in a table of their own, the slope of an item's bias is 1, for all users.
    constant, users = model.model.line(model.users(torch.arange(USERS)))
    users, offset = users.contiguous(), constant[:, None].numpy()
    table = model.items(torch.arange(ITEMS))
    searches: dict[str, Search | None] = {
        kind: lambda numbers: top.recommend(numbers, K).scores,
        f"{kind}, seen items left out": lambda numbers: top.recommend(numbers, K, seen=seen).scores,
        "torch": with_torch(users, table),
        "FAISS": with_faiss(users, table),
    }
    ways = {name: search for name, search in searches.items() if search is not None}
    for search in ways.values():
        search(np.arange(8))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for start in range(0, USERS, _TURN):
        numbers = np.arange(start, start + _TURN)
        found = {}
        for name, search in ways.items():
            begun = time.process_time()
            found[name] = search(numbers)
            seconds[name].append(time.process_time() - begun)
        for name in found.keys() & {"torch", "FAISS"}:
            expected = found[name] + offset[numbers]
            np.testing.assert_allclose(expected, found[kind], rtol=1e-4, atol=1e-4)
    print(f"| | seconds for {USERS:,} users | {kind} are so many times as fast |\n|---|---|---|")
    for name, taken in seconds.items():
        pairs = zip(taken, seconds[kind], strict=True)
        ratio = statistics.median(one / other for one, other in pairs)
        print(f"| {name} | {sum(taken):.2f} | {ratio:.1f} |")
    one = [time_of(lambda user=user: top.recommend([user], K)) for user in range(200)]
    print(f"made ready in {made:.2f} s; one user takes {1e3 * statistics.median(one):.2f} ms\n")


def time_of(call: Callable[[], object]) -> float:
    begun = time.process_time()
    call()
    return time.process_time() - begun


if __name__ == "__main__":
    main()
