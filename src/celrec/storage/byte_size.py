"""Numbers of bytes as people write them."""

from __future__ import annotations

import re

from celrec.errors import CelrecError

_UNITS = {"": 1, "B": 1} | {
    f"{letter}{kind}B": base**power
    for power, letter in enumerate("KMGT", 1)
    for kind, base in (("", 1000), ("I", 1024))
}


def byte_size(text: str, argument: str = "memory") -> int:
    """How many bytes a text such as 8GB, 500MB, 1.5GiB or 65536 means.

    KB, MB, GB and TB are powers of 1,000; KiB, MiB, GiB and TiB of 1,024.

    >>> byte_size("1.5GiB"), byte_size("500 mb"), byte_size("65536")
    (1610612736, 500000000, 65536)
    """
    found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([a-z]*)", text.strip(), re.IGNORECASE)
    unit = _UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None:
        raise CelrecError(
            f"{argument} must be a number of bytes such as 8GB, 500MB, 1.5GiB or 65536, "
            f"not {text!r}"
        )
    return int(float(found[1]) * unit) if "." in found[1] else int(found[1]) * unit
