"""A page as the command writes it."""

from celrec.inference.top_items import best_items
from celrec.reporting.report import write_report


def written(folder, **how):
    return write_report(folder, best_items, **how)
