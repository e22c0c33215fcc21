"""A page that shows tables of results beside what is said of them."""

from __future__ import annotations

import re
from pathlib import Path

from celrec.errors import CelrecError
from reproduce.registry import find_experiment
from reproduce.report import Report
from reproduce.runner import Runner

_PLACE = re.compile(r"(<!-- (?P<name>\S+?)(?: (?P<number>\d+))? -->\n).*?(<!-- end -->)", re.S)


def filled(page: str, folder: str | Path) -> str:
    r"""`page` with tables of the results in a folder where it asks for them.

    It asks with `<!-- table7 -->` for the first table of that experiment, and with
    `<!-- table7 2 -->` for the second; what stands from there to `<!-- end -->` is replaced.

    >>> filled("<!-- table99 -->\n<!-- end -->", "results")
    Traceback (most recent call last):
    celrec.errors.CelrecError: no experiment is called 'table99'; ...
    """
    reports: dict[str, Report] = {}

    def table(found: re.Match[str]) -> str:
        name, number = found["name"], int(found["number"] or 1)
        if name not in reports:
            runner = Runner(folder)
            experiment = find_experiment(name)
            reports[name] = experiment.report(runner.known(experiment), runner.folder, quick=False)
        report = reports[name]
        if number > len(report.tables):
            raise CelrecError(f"{name} has {len(report.tables)} tables; there is no table {number}")
        missing = (
            f"Not finished: {report.missing:,} cells are missing.\n\n" if report.missing else ""
        )
        return f"{found[1]}{missing}{report.tables[number - 1].markdown()}\n{found[4]}"

    return _PLACE.sub(table, page)
