"""A first look: fetch ratings, describe them, split them, and measure the plainest model.

Run by `make demo`. Takes MovieLens-100k, or synthetic ratings with planted
clusters where nothing can be fetched.
"""

import sys

from rich.console import Console

from celrec import BiasModel, Split, load_dataset
from celrec.cli.main import main as celrec
from celrec.evaluation.metrics import mean_squared_error

console = Console(highlight=False)


def run(*words: str) -> int:
    console.print(f"\n[bold cyan]$ celrec {' '.join(words)}[/]")
    return celrec(list(words))


def demo() -> int:
    name = "ml-100k"
    if run("data", "fetch", name):
        console.print("Nothing can be fetched here, so synthetic ratings must do.")
        name = "synthetic"
    run("data", "describe", name)

    split = Split.fold(load_dataset(name), 1, of=5, seed=0)
    model = BiasModel.tuned(split.train, split.valid)
    mean = mean_squared_error([model.mean] * len(split.test), split.test.target)
    error = mean_squared_error(model.predict(split.test), split.test.target)
    console.print(f"\n[bold]What the plainest models reach on {name}[/]")
    console.print(
        f"fold 1 of 5: {len(split.train):,} rows to train, {len(split.valid):,} to validate, "
        f"{len(split.test):,} to test"
    )
    console.print(f"always the mean rating {model.mean:.2f}      test MSE {mean:.4f}")
    console.print(
        f"mean + user bias + item bias   test MSE [bold]{error:.4f}[/]"
        f"   (λ = {model.strength:g}, chosen on validation data)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(demo())
