"""A table or a figure of the paper."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from celrec.evaluation.cell_file import CellFile
from reproduce.report import Report

Cell: TypeAlias = Mapping[str, Any]


class Experiment(ABC):
    """Cells to find out, and what to make of them.

    Cells are told by `cells`, worked on by `run` in processes of their own, and kept in a
    file, which `report` reads.
    """

    name: str
    """What it goes by on the command line, and its file of cells."""
    title: str
    timed: bool = False
    """Whether seconds are what it is about: then nothing runs beside a cell."""
    large: bool = False
    """Whether a cell takes so much memory that none is to run beside it."""

    @abstractmethod
    def cells(self, known: CellFile, *, quick: bool) -> Sequence[Cell]:
        """All cells that can be named so far, finished ones too, in the order of the work.

        What settings to go on with may depend on what is `known`: when all of these are
        finished, it is asked again.
        """

    @abstractmethod
    def run(self, cell: Cell) -> dict[str, Any]:
        """What comes of a cell, as JSON."""

    def serves(self, cell: Cell, found: Mapping[str, Any]) -> bool:
        """Whether what another experiment found for the same cell is all that is asked for here."""
        del cell, found
        return False

    @abstractmethod
    def report(self, known: CellFile, folder: Path, *, quick: bool) -> Report:
        """What there is so far, beside the paper's numbers; figures are drawn in `folder`."""
