"""A Griffe extension: examples in docstrings are code, and not quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n\n(?!>>> )|\Z)", re.M | re.S)


class DoctestFences(griffe.Extension):
    """Puts a fence around each example of a docstring."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of any module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(
                lambda match: f"```pycon\n{match[0]}\n```", obj.docstring.value
            )
