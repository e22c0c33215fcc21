"""Table 4: conversions at the scale of the paper's business, on a stream that stands in for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from celrec.config.plan import Plan
from celrec.evaluation.cell_file import CellFile
from reproduce.conversion_stream import ConversionStream
from reproduce.conversions import RATES
from reproduce.experiment import Cell, Experiment
from reproduce.learn_stream import BATCH, COLD, learn_stream
from reproduce.report import Report, ResultTable

_EVENTS = 2 * 10**8
_USERS, _ITEMS = 13_700_000, 60_000_000  # of whom about 13 and 40 million appear
_CLUSTERS = 10_000
TUNED_AT = 0.01
"""How large, beside the paper's business, the stream is that learning rates are chosen on."""
_SEED, _TUNING_SEED = 0, 1
_SIZES = ("table", "index", "training", "beside", "peak")


@dataclass(frozen=True, slots=True)
class _Line:
    """A method with so many rows a side: a line of the table."""

    method: str
    rows: int | None = None
    """None: a row for each id, or those of the preset."""
    paper: float | None = None

    def told(self) -> list[str]:
        if self.rows is None:
            return [self.method, "all" if self.method == "full" else "preset"]
        return [self.method, "1m" if self.rows == 10**6 else f"{self.rows // 1000}k"]

    def cell(self, rate: float, scale: float, seed: int) -> dict[str, Any]:
        rows = None if self.rows is None else max(round(scale * self.rows), 1)
        return {"method": self.method, "rows": rows, "rate": rate, "scale": scale, "seed": seed}


_FULL = _Line("full", paper=87.09)
_CEL = (
    _Line("cel-lite hard", 10**5, 87.78),
    _Line("cel-lite hard", 10**4, 87.70),
    _Line("cel-lite"),
)
_LINES = (
    _FULL,
    _Line("modulo", 10**6, 86.80),
    _Line("modulo", 10**5, 86.55),
    _Line("modulo", 10**4, 86.46),
    *_CEL,
)
_Found: TypeAlias = Mapping[_Line, dict[str, Any] | None]
_NOTES = (
    "The paper's data are private. This is a synthetic stream of 200 million events at the scale "
    "of its business: 13.7 million users and 60 million items are planted, of whom about 13 and "
    "40 million appear. So it shows what the methods take at that scale, and how they compare "
    "where conversions are a matter of such clusters; it can neither confirm nor refute what the "
    "paper found on its data, and its numbers are not to be compared with those here.",
    "What is planted: the logit of a conversion is b_u + b_i + v_uᵀv_i, with 4 dimensions, of "
    "10,000 clusters of users and as many of items, all with standard deviation 1; each id differs "
    "from its cluster by half of that. Popularity falls with rank^−0.6 for users and rank^−0.8 "
    "for items, and half of both appear in the course of the stream. That there are clusters at "
    "all favours methods that look for them; that they are as many as the rows of the smallest "
    "tables, and that ids differ within them, does not. Whoever knew all that is planted would "
    "come to an AUC of about 90; there are few events for each id, and no features.",
    f"One pass in the order of time, {BATCH:,} events at a time, each predicted before it is "
    "learned; rows of 8 numbers and a bias. AUC is that of the last tenth, 10,000 events at a "
    f"time. Cold are events whose user or item had at most {COLD} events before.",
    "Bytes are those of rows, of what leads from an id to its row, of both while training, and of "
    "what training holds beside them: sums of squares, latest events, counts. What is kept for "
    "each id has room for up to an eighth more of them than have come. The peak is the resident "
    "memory of the whole process, with libraries (0.4 GB) and what makes the stream (17 bytes for "
    "each id that is planted). Events a second are those of processor time on one thread, without "
    "what makes the stream.",
    "`cel-lite hard`: every id in one cluster, as the paper has it, judged by its latest 20 "
    "events. `cel-lite` (the default): every id a mixture of 32 rows, with a byte for each, so "
    "that rows are few but bytes are about as many as in a full table.",
)


class Table4(Experiment):
    """AUC of conversions in a stream, each predicted before it is learned.

    Learning rates are chosen on another stream, a hundredth as large, with tables a hundredth as
    large, by the same measure.
    """

    name = "table4"
    title = "Table 4: a stand-in for One-day Sales, planted conversions of 13m users and 40m items"
    large = True

    def __init__(self, scale: float = 1.0) -> None:
        """How large the stream and the tables are, beside the paper's business."""
        self._scale = scale

    def cells(self, known: CellFile, *, quick: bool) -> Sequence[Cell]:
        """Rates come first, for all methods."""
        if quick:
            return [line.cell(1.0, TUNED_AT, _SEED) for line in _LINES]
        chosen = {line: self.rate(line, known) for line in _LINES}
        return [line.cell(rate, TUNED_AT, _TUNING_SEED) for line in _LINES for rate in RATES] + [
            line.cell(rate, self._scale, _SEED) for line, rate in chosen.items() if rate is not None
        ]

    def run(self, cell: Cell) -> dict[str, Any]:
        """See `Experiment`."""
        embedding, _, preset = str(cell["method"]).partition(" ")
        lite = embedding == "cel-lite"
        few = 32 if lite else 1  # ids at the beginning, where no rows are asked for
        plan = Plan(
            model="mf",
            embedding=embedding,
            preset=(preset or "default") if lite else "online",
            compression=str(cell["rows"] or few),
            side="both",
            rank=8,
            loss="cross-entropy",
            features=False,
            rate=cell["rate"],
            seed=cell["seed"],
        )
        return learn_stream(make_stream(cell["scale"], cell["seed"]), plan)

    def rate(self, line: _Line, known: CellFile) -> float | None:
        """The one with the highest AUC on the smaller stream, None if not all are known."""
        found = [known.get(line.cell(rate, TUNED_AT, _TUNING_SEED)) for rate in RATES]
        areas = {
            rate: one.get("auc") or 0.0
            for rate, one in zip(RATES, found, strict=True)
            if one is not None
        }
        return max(areas, key=lambda rate: areas[rate]) if len(areas) == len(RATES) else None

    def report(self, known: CellFile, folder: Path, *, quick: bool) -> Report:
        """AUC, memory and speed, and how rates were chosen."""
        del folder
        found = {line: self._found(line, known, quick=quick) for line in _LINES}
        tables = [_table(found)]
        if not quick:
            tables.append(self._choices(known))
        notes = [*_NOTES, *_verdicts(found)]
        if quick:
            notes.append("Quick: a hundredth of the scale, and no learning rate chosen.")
        missing = sum(cell not in known for cell in self.cells(known, quick=quick))
        return Report(self.title, tables, notes=notes, missing=missing)

    def _found(self, line: _Line, known: CellFile, *, quick: bool) -> dict[str, Any] | None:
        """What came of a line, with its rate."""
        rate = 1.0 if quick else self.rate(line, known)
        if rate is None:
            return None
        one = known.get(line.cell(rate, TUNED_AT if quick else self._scale, _SEED))
        return None if one is None else {**one, "rate": rate}

    def _choices(self, known: CellFile) -> ResultTable:
        rows = []
        for line in _LINES:
            best, told = self.rate(line, known), []
            for rate in RATES:
                one = known.get(line.cell(rate, TUNED_AT, _TUNING_SEED))
                told.append(f"**{_area(one)}**" if rate == best else _area(one))
            rows.append([*line.told(), *told])
        return ResultTable(
            ("", "rows", *(f"{rate:g}" for rate in RATES)),
            rows,
            "AUC in per cent by learning rate, in times the usual one, on another stream a "
            "hundredth as large:",
        )


def make_stream(scale: float, seed: int) -> ConversionStream:
    """So many times as large as the paper's business, the density being the same."""
    clusters = max(round(scale * _CLUSTERS), 2)
    return ConversionStream(
        events=round(scale * _EVENTS),
        users=round(scale * _USERS),
        items=round(scale * _ITEMS),
        user_clusters=clusters,
        item_clusters=clusters,
        late=0.5,
        biases=1.0,
        vectors=1.0,
        dim=4,
        own=0.5,
        user_skew=0.6,
        item_skew=0.8,
        seed=seed,
    )


def _table(found: _Found) -> ResultTable:
    sizes = [f"{name} MB" for name in _SIZES]
    headers = ("", "rows a side", "rows", "AUC", "against full", "cold", *sizes, "events/s", "rate")
    rows = [_row(line, one, found[_FULL]) for line, one in found.items()]
    caption = "AUC in per cent over the last tenth of the stream [the paper's, on data of its own]:"
    return ResultTable(headers, rows, caption)


def _row(line: _Line, one: dict[str, Any] | None, full: dict[str, Any] | None) -> list[str]:
    theirs = "" if line.paper is None else f" [{line.paper:.2f}]"
    if one is None or one.get("auc") is None:
        return [*line.told(), "–", _area(one) + theirs, *["–"] * (4 + len(_SIZES))]
    gain = None if line == _FULL else _gain(one, full)
    return [
        *line.told(),
        " + ".join(f"{count:,}" for count in one["rows"]),
        _area(one) + theirs,
        "" if gain is None else f"{gain:+.2f}",
        _area(one, "auc_cold"),
        *("–" if one[name] is None else f"{one[name] / 10**6:,.1f}" for name in _SIZES),
        f"{one['events'] / one['seconds']:,.0f}",
        f"{one['rate']:g}",
    ]


def _area(one: dict[str, Any] | None, name: str = "auc") -> str:
    if one is None:
        return "–"
    return "diverged" if one.get(name) is None else f"{one[name]:.2f}"


def _gain(one: dict[str, Any] | None, full: dict[str, Any] | None) -> float | None:
    """By how many points it is better than a full table, where both are known."""
    if one is None or full is None or one.get("auc") is None or full.get("auc") is None:
        return None
    return float(one["auc"] - full["auc"])


def _verdicts(found: _Found) -> list[str]:
    """Whether clusters are better than a full table."""
    told = []
    for line in _CEL:
        one, gain = found[line], _gain(found[line], found[_FULL])
        if one is not None and gain is not None:
            fewer = sum(one["ids"]) / sum(one["rows"])
            verb = "beats" if gain > 0 else "does not beat"
            told.append(
                f"{line.told()[0]} {line.told()[1]} {verb} the full table: {gain:+.2f} points with "
                f"{fewer:,.0f} times fewer rows"
            )
    here = "; ".join(told)
    return [f"The paper has +0.61 points with 2,650 times fewer rows. Here {here}."] if told else []


EXPERIMENTS = {"table4": Table4()}
