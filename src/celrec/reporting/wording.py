"""Text of a report: numbers, and descriptions of a run and its plan."""

from __future__ import annotations

import json
import math

from markupsafe import Markup

from celrec.config.options import SIDES
from celrec.config.plan import FULL_START, LITE, WARM_START, Plan
from celrec.embeddings.registry import find_method
from celrec.runs.run_folder import Run

_UNITS = ("B", "kB", "MB", "GB", "TB")


def whole(number: float) -> str:
    """An integer with separators.

    >>> whole(1682)
    '1,682'
    """
    return f"{number:,.0f}"


def figure(number: float | None, digits: int = 4) -> str:
    """A number with up to `digits` decimals, fewer for large numbers; a dash for None.

    >>> figure(0.83914), figure(12345.678), figure(None)
    ('0.8391', '12,346', '–')
    """
    if number is None or not math.isfinite(number):
        return "–"
    before = len(str(int(abs(number))))
    return f"{number:,.{max(digits + 1 - before, 0)}f}"


def size(count: float) -> str:
    """Bytes in the largest unit with a number of at least 1.

    >>> size(312), size(430592), size(12_000_000)
    ('312 B', '431 kB', '12.0 MB')
    """
    power = 0
    while power + 1 < len(_UNITS) and count >= 999.5:
        count, power = count / 1000, power + 1
    digits = 0 if not power or count >= 99.95 else 1
    return f"{count:,.{digits}f} {_UNITS[power]}"


def times(ratio: float) -> str:
    """A ratio.

    >>> times(48.31), times(1.52), times(1234.5)
    ('48×', '1.5×', '1,234×')
    """
    return f"{ratio:,.{0 if ratio >= 9.95 else 1}f}×"


def change(value: float, base: float) -> str:
    """The relative change from `base` in per cent, with its sign.

    >>> change(0.84, 0.80), change(0.79, 0.80)
    ('+5.0 %', '−1.2 %')
    """
    per_cent = 100 * (value / base - 1)
    shown = f"{abs(per_cent):.1f} %"
    if float(shown[:-2]) == 0:
        return "±0.0 %"
    return f"{'−' if per_cent < 0 else '+'}{shown}"


def page_json(value: object) -> Markup:
    r"""JSON that is safe inside of an HTML page.

    >>> print(page_json({"</script>": "&"}))
    {"\u003c/script\u003e":"\u0026"}
    """
    words = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        words = words.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(words)  # noqa: S704  (no character is left that could end it)


_MODELS = {
    "nmf": "non-negative matrix factorisation",
    "mf": "matrix factorisation with biases",
    "neumf": "NeuMF, factors beside a network",
    "widedeep": "Wide & Deep, a linear part beside a network",
    "deepfm": "DeepFM, a factorisation machine beside a network",
    "mmoe": "MMoE, experts for rating and conversion",
    "din": "DIN, which looks back at what a user did",
    "dien": "DIEN, which follows how a user’s interests change",
}
_LOSSES = {
    "squared-error": "squared error",
    "cross-entropy": "cross-entropy of targets 0 and 1",
    "ranking": "ranking, interactions above other items",
}
_METHODS = {"cel": "CEL", "cel-int8": "CEL in eight bits", "cel-lite": "CEL-Lite", "full": "Full"}


def method_name(plan: Plan) -> str:
    """The name of the embedding method.

    >>> method_name(Plan()), method_name(Plan(embedding="robe"))
    ('CEL', 'robe')
    """
    return _METHODS.get(plan.embedding, plan.embedding)


def compressed_sides(run: Run) -> list[str]:
    """The tables that the plan compresses."""
    if not find_method(run.plan.embedding).compressed:
        return []
    sides = zip(("users", "items"), SIDES[run.plan.side], strict=True)
    return [*(side for side, shared in sides if shared), *run.columns]


def headline(run: Run) -> str:
    """The run in one line."""
    sides = compressed_sides(run)
    if not sides:
        return f"{method_name(run.plan)}: a row for each id"
    tables = run.model.whole_tables
    parts = [
        f"{whole(len(run.tables[side]))} {side} on {whole(tables[side].num_rows)} rows"
        for side in sides
    ]
    return f"{method_name(run.plan)}: {', '.join(parts)}{_levels(run.plan)}"


def _levels(plan: Plan) -> str:
    return f" in {plan.levels} levels" if plan.levels > 1 else ""


def plan_words(run: Run) -> list[tuple[str, str]]:
    """Terms and their descriptions."""
    plan, source, result = run.plan, run.source, run.result
    summary = find_method(plan.embedding).summary
    if summary.startswith("the same"):  # as the previous method in the registry
        summary = summary.replace("the same", find_method("cel").summary, 1)
    words = [
        ("Data", _data(run)),
        ("Test part", _test_part(run)),
        ("Model", f"{_MODELS.get(plan.model, plan.model)}, rows of {whole(plan.dim)} numbers"),
        ("Embedding", f"{method_name(plan)}: {summary}"),
        ("Compressed", _compression(run)),
        ("Loss", _loss(plan)),
        ("Preset", _preset(plan)),
        ("Rows of their own", _personal(plan)),
        ("First clusters", _start(plan)),
        ("Length of training", _length(run)),
        ("Why so many clusters", result.get("growth") or ""),
        ("Seed", str(source.get("seed", plan.seed))),
    ]
    return [(term, words) for term, words in words if words]


def _data(run: Run) -> str:
    requested = run.source.get("asked", {})
    name = run.source.get("data") or requested.get("source")
    ids = f"{whole(len(run.users))} users and {whole(len(run.items))} items"
    for column, table in run.columns.items():
        ids += f", {whole(len(table))} of {column}"
    events = f"{whole(int(run.items.get_column('interactions').sum()))} interactions learned"
    return f"{name}: {ids}, {events}" if name else f"{ids}, {events}"


def _test_part(run: Run) -> str:
    if "fold" not in run.source:
        return ""
    fold = run.source["fold"]
    if fold is None:
        return "a fifth of the interactions, at random"
    return "the latest fifth" if fold == "time" else f"fold {fold.replace('/', ' of ')}"


def _compression(run: Run) -> str:
    sides = compressed_sides(run)
    if not sides:
        return "nothing"
    share = run.plan.compression.strip()
    size = "as many clusters as validation data call for" if share == "auto" else share
    size = size.replace("%", " % of the ids") if size.endswith("%") else size
    size = f"{size} rows" if size.isdecimal() else size
    each = " each" if len(sides) > 1 and size.endswith("rows") else ""
    return f"{' and '.join(sides)}: {size}{each}{_levels(run.plan)}"


def _loss(plan: Plan) -> str:
    if plan.conversions:
        return f"squared error, and cross-entropy of targets from {plan.positive:g} on"
    words = _LOSSES.get(plan.loss, plan.loss)
    if plan.positive is not None:
        words += f"; targets from {plan.positive:g} on are conversions"
    if plan.negatives:
        words += f"; {plan.negatives} drawn items beside each interaction count as 0"
    return words


def _preset(plan: Plan) -> str:
    words = plan.preset
    if plan.penalty != 1:
        words += f", penalties × {plan.penalty:g}"
    if plan.rate != 1:
        words += f", learning rates × {plan.rate:g}"
    if plan.network and not plan.features:
        words += ", ids only"
    return words


def _personal(plan: Plan) -> str:
    limit = plan.personal_limit
    if not (plan.clustered or plan.embedding == LITE):
        return ""
    if limit is None:
        return "nobody"
    return "everybody" if limit == 0 else f"ids with more than {whole(limit)} interactions"


def _start(plan: Plan) -> str:
    if not plan.clustered:
        return ""
    chosen = plan.start or ("one" if plan.full_fit is None else FULL_START)
    start = {
        "one": "one for all",
        FULL_START: "from a fit with a row for each id",
        WARM_START: "from a fit with rows for the warmest ids",
    }.get(chosen, chosen)
    return f"{start}, kept to the end" if plan.frozen else start


def _length(run: Run) -> str:
    if "events" in run.result:
        rejected = run.result.get("rejected", 0)
        more = f", {whole(rejected)} could not be used" if rejected else ""
        return f"{whole(run.result['events'])} events, each learned once{more}"
    if "steps" not in run.result:
        return ""
    return f"{whole(run.result['steps'])} steps, chosen on validation data"
