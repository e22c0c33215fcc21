"""All embedding methods on the first fold of MovieLens, beside the paper's numbers.

    python benchmarks/rivals.py ml-100k small.jsonl
    python benchmarks/rivals.py ml-1m large.jsonl --like small.jsonl --tune etree,bh-ids,modulo,ae

A non-negative factorisation of rank 32, items compressed to the paper's numbers of rows. For
each method the strength of its penalties is chosen among four on validation data of ml-100k,
with about 1 % of the rows, and kept for the other sizes and for ml-1m, but for methods that are
named with `--tune`: theirs is chosen on validation data of ml-1m again. How long to train is
chosen for each size on validation data of the same log. CEL has more sizes, for what others take
more bytes for. Every finished cell is written at once:
a run that was stopped goes on where it was. Prints the table of `benchmarks/README.md`.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from celrec import load_dataset
from celrec.config.plan import Plan
from celrec.evaluation.comparison import (
    CLUSTERED,
    PENALTIES,
    Comparison,
    Standing,
    clustered_instead,
)
from celrec.evaluation.comparison_plot import draw_comparison

_SIZES = {"ml-100k": ("84", "17", "8"), "ml-1m": ("200", "40", "20")}
_LARGER = {"ml-100k": (), "ml-1m": ("400", "750")}
_METHODS = (
    *("full", "cel", "cel-int8", "modulo", "ae", "hashgnn", "etree", "etree-leaves", "jnkm"),
    *("jnkm-leaves", "bh-ids", "bh", "prehash4", "prehash", "robe", "qr", "cce", "tt", "dhe"),
    *("cafe", "int8", "bh-skip"),
)
# Mean over five folds, as the paper has it: 100 %, 5 %, 1 %, 0.5 % (None: not there).
_PAPER: dict[str, dict[str, tuple[float | None, ...]]] = {
    "ml-100k": {
        "full": (0.9283, None, None, None),
        "etree": (0.9127, 0.9830, 0.9973, 0.9873),
        "jnkm": (0.8841, 1.0501, 1.0463, 1.1054),
        "modulo": (None, 1.0908, 1.1045, 1.1097),
        "bh": (None, 1.0243, 1.0695, 1.0729),
        "ae": (None, 1.0715, 1.0863, 1.0969),
        "prehash4": (None, 0.9165, 0.9602, 0.9833),
        "prehash": (None, 0.9140, 0.9533, 0.9599),
        "cel": (0.8602, 0.8689, 0.8707, 0.8906),
    },
    "ml-1m": {
        "full": (0.8357, None, None, None),
        "etree": (0.7841, 0.8399, 0.8482, 0.8614),
        "jnkm": (0.7626, 0.8903, 0.8616, 0.8498),
        "modulo": (None, 1.0227, 1.0688, 1.0732),
        "bh": (None, 0.9753, 1.0170, 1.0526),
        "ae": (None, 0.9959, 1.0343, 1.0630),
        "hashgnn": (None, 0.8491, 0.8829, 0.8882),
        "prehash4": (None, 0.8169, 0.8832, 0.8987),
        "prehash": (None, 0.7958, 0.8047, 0.8101),
        "cel": (0.7507, 0.7784, 0.7858, 0.7926),
    },
}


def run(
    data: str, path: Path, methods: list[str], like: Path | None, tuned: list[str]
) -> list[Standing]:
    log, sizes = load_dataset(data), _SIZES[data]
    chosen = {} if like is None else penalties(like)
    chosen = {method: penalty for method, penalty in chosen.items() if method not in tuned}
    how = {"folds": [(1, 5)], "name": data, "path": path}
    found = []
    for method in methods:
        middle = Plan(seed=0, penalty=chosen.get(method, 1.0))
        tried = () if method in chosen else PENALTIES
        mine = Comparison(log, middle, [method], [sizes[1]], penalties=tried, **how).run()
        penalty = mine[0].penalty or middle.penalty
        # Leaves are a full table, of which the paper has one.
        if mine[0].compression != "100%" and not method.endswith("-leaves"):
            others = replace(middle, penalty=penalty)
            more = [sizes[0], sizes[2], *(_LARGER[data] if method == "cel" else ())]
            mine += Comparison(log, others, [method], more, **how).run()
        found += [replace(one, penalty=penalty) for one in mine]
        for one in mine:
            print(f"{method:13} {one.compression:>5} {one.mean:.4f}", flush=True)
    return found


def penalties(path: Path) -> dict[str, float]:
    """What was chosen for each method in another run."""
    cells = [json.loads(line) for line in path.read_text().splitlines()]
    return {
        one["cell"]["embedding"]: one["found"]["penalty"]
        for one in cells
        if one["found"]["penalty"] is not None
    }


def paper(data: str, one: Standing) -> float | None:
    """What the paper has for a method at a size."""
    leaves = one.embedding.endswith("-leaves")
    name = one.embedding.removesuffix("-leaves").removesuffix("-ids").removesuffix("-skip")
    known = _PAPER[data].get(name)
    if known is None:
        return None
    if leaves or one.compression == "100%":
        return known[0]
    sizes = _SIZES[data]
    return known[1 + sizes.index(one.compression)] if one.compression in sizes else None


def group(one: Standing) -> str:
    """Leaves are a row for each id, whatever their tree has."""
    return "100%" if one.embedding.endswith("-leaves") else one.compression


def show(data: str, standings: list[Standing]) -> None:
    print(
        "| rows asked | method | ticks | rows | penalty | test MSE | cold | paper's | table |",
        end="",
    )
    print(" index | serving | training | CEL, as many bytes |\n|" + "---|" * 13)
    sizes = ("100%", *reversed(_LARGER[data]), *_SIZES[data])
    for size in sizes:
        mine = [one for one in standings if group(one) == size]
        best = min((one.mean for one in mine), default=0.0)
        for one in sorted(mine, key=lambda one: one.mean):
            theirs, ours = paper(data, one), clustered_instead(one, standings)
            told = "–" if theirs is None else f"{theirs:.4f}"
            missed = "" if theirs is None or one.mean <= theirs else " (not reached)"
            mean = f"**{one.mean:.4f}**" if one.mean == best else f"{one.mean:.4f}"
            mine_only = (
                "" if one.embedding in CLUSTERED else "none" if ours is None else f"{ours:.4f}"
            )
            cold = "–" if one.cold is None else f"{one.cold:.4f}"
            print(
                f"| {size} | {one.embedding} | {one.ticks} | {one.rows:,.0f} | {one.penalty} "
                f"| {mean} | {cold} | {told}{missed} | {one.table:,.0f} | {one.index:,.0f} "
                f"| {one.serving:,.0f} | {one.training:,.0f} | {mine_only} |"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=_SIZES)
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", default=",".join(_METHODS), help="methods, with commas between")
    parser.add_argument("--like", type=Path, help="results whose penalties are taken over")
    parser.add_argument("--tune", default="", help="methods whose penalties are chosen again")
    parser.add_argument("--plot", type=Path, help="a picture")
    given = parser.parse_args()
    standings = run(
        given.data, given.results, given.only.split(","), given.like, given.tune.split(",")
    )
    show(given.data, standings)
    if given.plot is not None:
        draw_comparison(standings, given.plot, f"NMF on the first fold of {given.data}")
