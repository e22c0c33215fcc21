"""Reading a large csv with string ids: celrec.read against pandas.

Writes a csv of 10 million rows (string user and item ids, rating, timestamp),
then reads it and encodes its ids in turns, each time in a fresh process:

- celrec: `celrec.read(path)`
- pandas: `pandas.read_csv(path)` and `pandas.factorize` on both id columns

Seconds are those of the work alone, without start-up and imports. Memory is the
peak of the whole process, imports included. Run by `make bench`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

_MEASURE = """
import json, sys, time
{setup}
start = time.perf_counter()
{work}
seconds = time.perf_counter() - start
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
peak = int(status["VmHWM"].split()[0]) * 1024
print(json.dumps(dict(seconds=seconds, peak=peak, rows=rows, users=users, items=items)))
"""
_CONTENDERS = {
    "celrec": _MEASURE.format(
        # One tiny log first: loading compiled code is start-up, not work.
        setup="import celrec; celrec.read({'user': ['a'], 'item': ['b'], 'rating': [1.0]})",
        work="log = celrec.read(sys.argv[1])\n"
        "rows, users, items = len(log), log.num_users, log.num_items",
    ),
    "pandas": _MEASURE.format(
        setup="import pandas",
        work="frame = pandas.read_csv(sys.argv[1])\n"
        "user, user_ids = pandas.factorize(frame['user_id'])\n"
        "item, item_ids = pandas.factorize(frame['item_id'])\n"
        "rows, users, items = len(frame), len(user_ids), len(item_ids)",
    ),
}


def write_log(path: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    user = (rng.random(rows) ** 2 * rows / 10).astype(np.int64)
    item = (rng.random(rows) ** 3 * rows / 50).astype(np.int64)
    pl.DataFrame(
        {
            "user": user * 2_654_435_761 % 2**32,
            "item": item * 40_503,
            "rating": rng.integers(1, 6, rows),
            "timestamp": np.sort(rng.integers(1_000_000_000, 1_600_000_000, rows)),
        }
    ).select(
        pl.format("A{}", "user").alias("user_id"),
        pl.format("B{}", "item").alias("item_id"),
        "rating",
        "timestamp",
    ).write_csv(path)


def measure(code: str, path: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.csv"
        write_log(path, arguments.rows)
        print(f"{arguments.rows:,} rows, {path.stat().st_size / 1e6:,.0f} MB of csv")
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in _CONTENDERS}
        for _ in range(arguments.repeats):
            for name, code in _CONTENDERS.items():
                runs[name].append(measure(code, path))
    sizes = {(r["rows"], r["users"], r["items"]) for results in runs.values() for r in results}
    if len(sizes) != 1:
        raise SystemExit(f"the contenders disagree: {sizes}")
    seconds = {n: statistics.median(r["seconds"] for r in rs) for n, rs in runs.items()}
    peaks = {n: statistics.median(r["peak"] for r in rs) for n, rs in runs.items()}
    for name in _CONTENDERS:
        every = ", ".join(f"{r['seconds']:.2f}" for r in runs[name])
        print(f"{name:8} {seconds[name]:6.2f} s  ({every})   peak {peaks[name] / 1e6:6,.0f} MB")
    print(
        f"celrec is {seconds['pandas'] / seconds['celrec']:.2f} times as fast as pandas "
        f"at {peaks['celrec'] / peaks['pandas']:.2f} of its peak memory"
    )


if __name__ == "__main__":
    main()
