"""The example in CONTRIBUTING.md is run, as somebody who adds a model would."""

import doctest
import re
from pathlib import Path

from celrec.models.registry import MODELS
from celrec.training.presets import PRESETS

GUIDE = Path(__file__).parents[1] / "CONTRIBUTING.md"


def test_a_new_model_takes_less_than_forty_lines_and_learns(monkeypatch):
    for registry in (MODELS, PRESETS):  # so that both are put back afterwards
        monkeypatch.setitem(registry, "bilinear", None)
    [block] = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
    assert len(block.splitlines()) < 40
    examples = doctest.DocTestParser().get_doctest(block, {}, "CONTRIBUTING", str(GUIDE), 0)
    results = doctest.DocTestRunner().run(examples)
    assert results.attempted >= 10
    assert results.failed == 0
