"""A page as the command writes it."""

from celrec.reporting.report import write_report
from celrec.serving.best_items import best_items


def written(folder, **how):
    return write_report(folder, best_items, **how)
