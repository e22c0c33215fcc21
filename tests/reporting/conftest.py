"""Runs of all kinds to write pages about."""

import shutil
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

import celrec
from celrec.cli.main import main
from celrec.cli.online import opened_run
from celrec.config.presets import ONLINE, PRESETS
from celrec.evaluation.prequential import Prequential
from celrec.streams.events import Events

CHOSEN = ["--model", "nmf", "--embedding", "cel", "--side", "items", "--loss", "squared-error"]
NETWORK = ["--no-features", "--loss", "cross-entropy", "--positive", "3"]
KINDS = {
    "cel": ["--fold", "1/5"],
    "users": ["--side", "users"],
    "data-driven": ["--side", "users", "--preset", "least-squares"],
    "levels": ["--levels", "2"],
    "both": ["--side", "both", "--seed", "3"],
    "mf": ["--model", "mf"],
    "auto": ["--compression", "auto"],
    "warm": ["--personalise", "80"],
    "all": ["--personalise", "all"],
    "frozen": ["--start", "ratings:3", "--frozen"],
    "one": ["--compression", "1"],
    "int8": ["--embedding", "cel-int8"],
    "soft": ["--embedding", "cel-lite", "--side", "both"],
    "hard": ["--embedding", "cel-lite", "--preset", "hard", "--model", "mf"],
    "own": ["--embedding", "cel-lite", "--model", "mf", "--personalise", "50"],
    "modulo": ["--embedding", "modulo"],
    "ae": ["--embedding", "ae"],
    "full": ["--embedding", "full"],
    "deepfm": ["--model", "deepfm", *NETWORK],
    "ranking": ["--model", "din", "--no-features", "--loss", "ranking", "--positive", "3"],
    "mmoe": ["--model", "mmoe", "--no-features", "--positive", "3"],
    "shops": ["--model", "deepfm", "--no-features", "--id-column", "shop <b>"],
}


@contextmanager
def few_steps():
    """A few steps: whether there is a page is what counts, not how good a model is."""
    with pytest.MonkeyPatch.context() as patch:
        for presets in (*PRESETS.values(), *ONLINE.values()):
            for name, how in presets.items():
                schedule = replace(how.schedule, steps=min(how.schedule.steps, 16))
                personal = replace(how.personal, steps=4)
                patch.setitem(presets, name, replace(how, schedule=schedule, personal=personal))
        yield


@pytest.fixture(scope="module", autouse=True)
def quick():
    with few_steps():
        yield


@pytest.fixture(scope="session")
def log(tmp_path_factory):
    """A file of ratings of 40 users and 50 items, in shops."""
    path = tmp_path_factory.mktemp("log") / "log.csv"
    frame = celrec.Planted(rows=3000, users=40, items=50, dim=3, item_clusters=4).interactions()
    frame = frame.to_frame()
    shops = pl.Series("shop <b>", [f"shop {item % 5}" for item in frame.get_column("item")])
    frame.with_columns(shops).write_csv(path)
    return path


@pytest.fixture(scope="session")
def runs(log, tmp_path_factory):
    """A function that gives the folder of a run of some kind, which is trained once."""
    folder = tmp_path_factory.mktemp("runs")

    def trained(kind):
        place = folder / kind
        if not place.exists():
            words = ["train", str(log), "--rank", "4", "--compression", "4", *CHOSEN, *KINDS[kind]]
            with few_steps():
                assert main([*words, "--out", str(place)]) == 0
        return place

    return trained


@pytest.fixture
def copied(runs, tmp_path):
    """A function that gives a run of some kind in a folder that may be changed."""
    return lambda kind: shutil.copytree(runs(kind), tmp_path / kind)


@pytest.fixture(scope="session")
def online(tmp_path_factory):
    """The folder of an online run without any test data."""
    folder = tmp_path_factory.mktemp("online") / "run"
    stream = celrec.Planted(1_000, 30, 20, dim=2, item_clusters=3).interactions().to_frame()
    metrics = Prequential()
    with opened_run(folder, {"compression": "4", "model": "mf"}) as run:
        metrics.add(run.learn(Events(stream, {})))
        run.checkpoint(metrics.state_dict())
    return folder


class Parsed(HTMLParser):
    """A page taken apart; complains about tags that are not closed in their order."""

    VOID = frozenset(("meta", "br", "input", "link", "img", "hr"))

    def __init__(self, words):
        super().__init__(convert_charrefs=True)
        self.tags, self.text, self.data, self._open = [], "", [], []
        self.feed(words)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "data":
            self.data.append(dict(attrs)["value"])
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] not in ("script", "style"):
            self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="session")
def parse():
    """A function that takes a page apart."""
    return lambda path: Parsed(Path(path).read_text())
