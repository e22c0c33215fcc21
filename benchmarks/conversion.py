"""Conversions on very sparse data, users and items compressed, learned online by all methods.

    python benchmarks/conversion.py rent-the-runway results.jsonl --model mf
    python benchmarks/conversion.py book-crossing results.jsonl --model deepfm
    python benchmarks/conversion.py planted results.jsonl --compression 2%

Rent-the-Runway: a rating of 10 is a conversion, the latest fifth is tested. Book-Crossing: 8 or
more, a random fifth is tested. Planted: 400,000 events of 20,000 users in 20 clusters and 5,000
items in 15, a third of which appear in the course of the stream; the logit of a conversion is the
sum of two biases (standard deviation 0.3) and the product of two vectors (0.8 in each of 8
dimensions), all of clusters; the latest fifth is tested.

Rows of 8 numbers and a scalar, a twentieth of a full table's, in batches of 256 events, in their
order in the first pass. For each method the learning rate is
chosen among five on validation data, and how many passes there are for each rate and seed; then
it is trained anew on all training data. What is told is the AUC on test pairs whose user and item
both occur in training, and on those of them of which one occurs at most five times, mean and
standard error over seeds. Every finished cell is written at once.
"""

import argparse
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from celrec import Interactions, Planted, Split, load_dataset, read
from celrec.evaluation.cell_file import CellFile
from celrec.evaluation.metrics import area_under_curve
from celrec.training.fit import fit, validate
from celrec.training.plan import Plan

_POSITIVE = {"rent-the-runway": 10.0, "book-crossing": 8.0, "planted": 1.0}
_RATES = (0.1, 0.3, 1.0, 3.0, 10.0)
_COLD = 5
_METHODS = (
    *("biases", "full", "cel-lite", "cel-lite hard", "cel-lite paper", "cel-lite personal"),
    *("modulo", "bh", "ae", "prehash4", "cce", "cafe"),
)


def make_plan(data: str, model: str, method: str, options: argparse.Namespace) -> Plan:
    name, _, preset = method.partition(" ")
    online = {"": "default", "personal": "default"}.get(preset, preset)
    return Plan(
        model=model,
        embedding="full" if name == "biases" else name,
        preset=online if name == "cel-lite" else "online",
        personalise="50" if preset == "personal" else "none",
        compression=options.compression,
        side="both",
        # One factor on either side is next to no factor, beside the biases.
        rank=1 if name == "biases" else options.rank,
        loss="cross-entropy",
        positive=_POSITIVE[data],
        features=False,
    )


def planted() -> Interactions:
    """Conversions of clusters of users and items, for vectors as much as for biases."""
    stream = Planted(
        rows=400_000, users=20_000, items=5_000, user_clusters=20, item_clusters=15, late=1 / 3
    )
    events = pl.concat(stream.chunks())
    rng = np.random.default_rng(0)
    logits = np.zeros(len(events))
    vectors = []
    for name, cluster in (("user", stream.user_cluster), ("item", stream.item_cluster)):
        mine = cluster[events[name].to_numpy()]
        count = int(cluster.max()) + 1
        logits += rng.normal(scale=0.3, size=count)[mine]
        vectors.append(rng.normal(scale=0.8, size=(count, 8))[mine])
    logits += (vectors[0] * vectors[1]).sum(1)
    converted = rng.random(len(events)) < 1 / (1 + np.exp(-logits))
    return read(events.with_columns(target=converted.astype(np.float32)))


def split_of(data: str, plan: Plan) -> Split:
    log = plan.prepared(planted() if data == "planted" else load_dataset(data))
    return Split.chronological(log) if log.timestamp is not None else Split.random(log)


def run(data: str, plan: Plan) -> dict[str, Any]:
    """Train and test."""
    split = split_of(data, plan)
    begun = time.perf_counter()
    fitted = fit(split, plan)
    seconds = time.perf_counter() - begun
    learned, test = split.train_and_valid(), split.test
    scores = fitted.model.predict(test).numpy()
    of_user, of_item = learned.user_counts[test.user], learned.item_counts[test.item]
    seen = (of_user > 0) & (of_item > 0)
    cold = seen & (np.minimum(of_user, of_item) <= _COLD)
    tables = fitted.model.whole_tables.values()
    memory = [table.memory() for table in tables]
    return {
        "seen": 100 * area_under_curve(scores[seen], test.target[seen]),
        "cold": 100 * area_under_curve(scores[cold], test.target[cold]),
        "valid": fitted.valid_loss,
        "passes": fitted.steps,
        "rows": [table.num_rows for table in tables],
        "table": sum(one.table for one in memory),
        "index": sum(one.index for one in memory),
        "training": sum(fitted.training_bytes.values()),
        "seconds": seconds,
    }


def compare(data: str, model: str, method: str, options: argparse.Namespace) -> str:
    """A line of the table."""
    results = CellFile(options.results)
    cell = {"data": data, "model": model, "method": method}
    cell |= {"rank": options.rank, "compression": options.compression}
    plan = make_plan(data, model, method, options)
    split = split_of(data, plan)
    valid = {}
    for rate in _RATES:
        trial = partial(validate, split, replace(plan, rate=rate))
        valid[rate] = results.find({**cell, "rate": rate}, lambda t=trial: {"valid": t()})["valid"]
    best = min(_RATES, key=valid.__getitem__)
    plans = [replace(plan, rate=best, seed=seed) for seed in range(options.seeds)]
    found = [
        results.find({**cell, "rate": best, "seed": plan.seed}, partial(run, data, plan))
        for plan in plans
    ]
    told = []
    for name in ("seen", "cold"):
        values = np.array([one[name] for one in found])
        error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
        told.append(f"{values.mean():.2f} ± {error:.2f}")
    last = found[-1]
    rows = " + ".join(f"{count:,}" for count in last["rows"])
    return (
        f"| {model} | {method} | {rows} | {' | '.join(told)} | {last['table']:,} "
        f"| {last['index']:,} | {last['training']:,} | {best:g} | {last['passes']} |"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=_POSITIVE)
    parser.add_argument("results", type=Path)
    parser.add_argument("--model", default="mf")
    parser.add_argument("--compression", default="5%")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default=",".join(_METHODS), help="methods, with commas between")
    given = parser.parse_args()
    print("| model | method | rows | AUC | cold | table | index | training | rate | passes |")
    print("|" + "---|" * 10)
    for name in given.only.split(","):
        print(compare(given.data, given.model, name, given), flush=True)
