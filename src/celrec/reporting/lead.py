"""The run in a few sentences."""

from __future__ import annotations

from celrec.reporting.contender import BIASES, MEANS, REFERENCE, RUN
from celrec.reporting.contents import Contents
from celrec.reporting.figure_table import value_of
from celrec.reporting.written_numbers import size, times


def lead(contents: Contents) -> str:
    """What was saved, and what of a full table's gain is left; empty if nothing was compressed."""
    smaller = contents.memory.smaller
    if smaller is None or smaller.ratio < 1:
        return ""
    words = (
        f"A full table of {smaller.side} would be {times(smaller.ratio)} as large, index included: "
        f"{size(smaller.full)} instead of {size(smaller.serving)}."
    )
    return f"{words} {_kept(contents)}".rstrip()


def _kept(contents: Contents) -> str:
    """How much of what a full table gains over the plainest model the run gains too."""
    standing = contents.standing
    own, full = standing.kind(RUN), standing.kind(REFERENCE)
    plain = standing.kind(BIASES) or standing.kind(MEANS)
    if own is None or full is None or plain is None or standing.yardstick is None:
        return ""
    values = [value_of(one, standing.yardstick.metric) for one in (own, full, plain)]
    if None in values:
        return ""
    sign = -1 if standing.yardstick.metric == "mse" else 1
    mine, most, least = (sign * value for value in values if value is not None)
    if most <= least:
        return f"A full table does no better than {plain.name.lower()} here."
    if mine >= most:
        return "This run predicts better than a full table does."
    if mine <= least:
        return f"This run predicts no better than {plain.name.lower()} alone."
    share = (mine - least) / (most - least)
    return f"This run has {100 * share:.0f} % of what a full table gains over {plain.name.lower()}."
