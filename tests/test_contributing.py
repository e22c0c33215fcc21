"""The examples in CONTRIBUTING.md are run, as somebody who adds a method or a model would."""

import doctest
import re
from pathlib import Path

from celrec.config.presets import PRESETS
from celrec.models.registry import MODELS

GUIDE = Path(__file__).parents[1] / "CONTRIBUTING.md"


def examples(part):
    """The examples of one chapter, and how many lines they have."""
    chapter = GUIDE.read_text().partition(f"## {part}\n")[2].partition("\n## ")[0]
    [block] = re.findall(r"^```python\n(.*?)^```$", chapter, re.M | re.S)
    found = doctest.DocTestParser().get_doctest(block, {}, "CONTRIBUTING", str(GUIDE), 0)
    return found, len(block.splitlines())


def test_a_new_model_takes_less_than_forty_lines_and_learns(monkeypatch):
    for registry in (MODELS, PRESETS):  # so that both are put back afterwards
        monkeypatch.setitem(registry, "bilinear", None)
    found, lines = examples("How to add a model")
    assert lines < 40
    results = doctest.DocTestRunner().run(found)
    assert results.attempted >= 10
    assert results.failed == 0


def test_an_embedding_of_ones_own_is_checked_as_the_guide_says():
    results = doctest.DocTestRunner().run(examples("How to add an embedding method")[0])
    assert results.attempted >= 3
    assert results.failed == 0
