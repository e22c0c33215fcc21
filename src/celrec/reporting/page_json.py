"""JSON inside of a page."""

from __future__ import annotations

import json

from markupsafe import Markup


def page_json(value: object) -> Markup:
    r"""JSON that can stand inside of an HTML page, whatever words are in it.

    >>> print(page_json({"</script>": "&"}))
    {"\u003c/script\u003e":"\u0026"}
    """
    words = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        words = words.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(words)  # noqa: S704  (no sign is left that could end it)
