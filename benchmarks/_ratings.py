"""The ratings that benchmarks of training run on."""

from celrec import CelrecError, Interactions, Planted, load_dataset


def ratings() -> tuple[str, Interactions]:
    """MovieLens-1M, or without it planted ratings of its size."""
    try:
        return "ml-1m", load_dataset("ml-1m")
    except CelrecError:
        planted = Planted(rows=1_000_209, users=6_040, items=3_706, item_clusters=50)
        return "planted ratings of the size of ml-1m", planted.interactions()
