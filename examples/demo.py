"""A first look: ratings, the plainest model, and three embeddings of items side by side.

Run by `make demo`. Takes MovieLens-100k, or synthetic ratings with planted
clusters where nothing can be fetched.
"""

import sys
import time
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from celrec import BiasModel, Split, load_dataset
from celrec.cli.main import main as celrec
from celrec.config.plan import Plan
from celrec.data.datasets.library import cache_folder
from celrec.evaluation.metrics import Accuracy
from celrec.inference.top_items import best_items
from celrec.offline.fitting import fit
from celrec.recommender.model import Model
from celrec.reporting.contents import Reference
from celrec.reporting.evaluator import Evaluator, RunData
from celrec.runs.run_folder import load_run, save_run, trained_run

console = Console(highlight=False)


def run(*words: str) -> int:
    console.print(f"\n[bold cyan]$ celrec {' '.join(words)}[/]")
    return celrec(list(words))


def demo(folder: Path) -> int:
    name = "ml-100k"
    if run("data", "fetch", name):
        console.print("Nothing can be fetched here, so synthetic ratings must do.")
        name = "synthetic"
    run("data", "describe", name)

    split = Split.fold(load_dataset(name), 1, of=5, seed=0)
    learned = split.train_and_valid()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in ("items", "rows", "bytes", "index", "test MSE", "cold", "warm", "s"):
        table.add_column(header, justify="left" if header == "items" else "right")

    biases = BiasModel.fit(learned, BiasModel.tuned(split.train, split.valid).strength)
    errors = Accuracy.of(biases.predict(split.test), split.test, learned.item_counts)
    size = 4 * split.train.num_items
    table.add_row("biases", "-", f"{size:,}", "0", *_shown(errors), "")
    plans = {
        "full": Plan("full", model="mf"),
        "hashing": Plan("modulo", "5%", model="mf"),
        "CEL": Plan("cel", "5%", model="mf"),
        "CEL, two levels": Plan("cel", "5%", model="mf", levels=2),
    }
    models: dict[str, Model] = {}
    for label, plan in plans.items():
        start = time.perf_counter()
        fitted = fit(split, plan)
        seconds = time.perf_counter() - start
        models[label] = fitted.model
        errors = Accuracy.of(fitted.model.predict(split.test), split.test, learned.item_counts)
        memory = fitted.model.tables["items"].memory()  # without biases, which all of them have
        row = (f"{fitted.model.items.num_rows:,}", f"{memory.table:,}", f"{memory.index:,}")
        table.add_row(label, *row, *_shown(errors), f"{seconds:.1f}")
    console.print(f"\n[bold]Matrix factorisation with biases on fold 1 of 5 of {name}[/]")
    console.print(
        "Items with biases alone, a row each, and 5 % of the rows, shared at random or by CEL: one "
        "row for an item, or the sum of two. The number of steps is chosen on validation data for "
        "each. Bytes are those of the rows; all have biases besides. How much of a full table's "
        "gain over biases is left at a fifteenth of its bytes?"
    )
    console.print(table)
    result = {"test": asdict(errors)}
    source = {"data": name, "fold": "1/5", "seed": 0}
    save_run(
        folder, trained_run(learned, fitted.model, plan, fitted.validation_records, source, result)
    )
    console.print("[bold]Which items CEL put together[/]")
    run("clusters", str(folder), "--members", "3")
    data = RunData.of(load_run(folder))  # the full table is there, and need not be trained again
    Reference(folder, data).keep(models["full"], Evaluator(plan, data), best_items)
    console.print("[bold]All of it on one page, to be opened in a browser[/]")
    return run("report", str(folder))


def _shown(errors: Accuracy) -> list[str]:
    every = (errors.mse, errors.mse_cold, errors.mse_warm)
    return ["-" if error is None else f"{error:.4f}" for error in every]


if __name__ == "__main__":
    place = cache_folder() / "demo"
    place.parent.mkdir(parents=True, exist_ok=True)
    sys.exit(demo(place))
