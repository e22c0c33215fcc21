"""Test errors over the five folds of MovieLens, for `benchmarks/README.md`.

    python benchmarks/accuracy.py results.jsonl

Every finished fold is written at once, and what the file holds is not trained
again: a run that was stopped goes on where it was.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import polars as pl

_FOLDS = 5
# The ratios of the paper are of 1,682 and 3,952 movies.
_ROWS = {"ml-100k": (84, 17, 8), "ml-1m": (200, 40, 20)}
_PERSONAL_FROM = {"ml-100k": 17, "ml-1m": 80}


def cells() -> list[list[str]]:
    every = []
    for data, sizes in _ROWS.items():
        for model in ("nmf", "mf"):
            base = [data, "--model", model]
            every.append([*base, "--embedding", "full"])
            every.append(
                [*base, "--compression", str(_PERSONAL_FROM[data]), "--personalise", "all"]
            )
            for rows in sizes:
                every.append([*base, "--compression", str(rows)])
                every.append([*base, "--compression", str(rows), "--embedding", "modulo"])
    return every


def run(path: Path, only: str) -> None:
    done = path.read_text().splitlines() if path.exists() else []
    known = {json.loads(line)["cell"] for line in done}
    for fold in range(1, _FOLDS + 1):
        for words in cells():
            cell = " ".join([*words, "--fold", f"{fold}/{_FOLDS}"])
            if cell in known or only not in cell:
                continue
            command = [sys.executable, "-m", "celrec", "train", *cell.split(), "--json"]
            told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            with path.open("a") as file:
                file.write(
                    json.dumps({"cell": cell, "setting": " ".join(words), **json.loads(told)})
                )
                file.write("\n")
            print(cell, f"{json.loads(told)['test']['mse']:.4f}", flush=True)


def summarise(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    flat = [
        {
            "setting": row["setting"],
            "mse": row["test"]["mse"],
            "cold": row["test"]["mse_cold"],
            "rows": float(row["clusters"]),
            "bytes": float(row["bytes"]["table"] + row["bytes"]["index"]),
            "seconds": row["seconds"],
        }
        for row in rows
    ]
    table = (
        pl.DataFrame(flat)
        .group_by("setting", maintain_order=True)
        .agg(
            folds=pl.len(),
            mse=pl.col("mse").mean(),
            error=pl.col("mse").std() / pl.len().sqrt(),
            cold=pl.col("cold").mean(),
            rows=pl.col("rows").mean(),
            bytes=pl.col("bytes").mean(),
            seconds=pl.col("seconds").median(),
        )
    )
    for row in table.iter_rows(named=True):
        spread = float("nan") if row["error"] is None else row["error"]
        print(
            f"{row['setting']:55} {row['folds']} folds  {row['mse']:.4f} ± {spread:.4f}  "
            f"cold {row['cold']:.4f}  {row['rows']:7.1f} rows  {row['bytes']:11,.0f} bytes  "
            f"{row['seconds']:6.1f} s"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", default="", help="cells whose words contain this")
    given = parser.parse_args()
    run(given.results, given.only)
    summarise(given.results)
