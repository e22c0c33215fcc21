"""Optional dependencies."""

from __future__ import annotations

from importlib.util import find_spec

from celrec.errors import CelrecError


def require_extra(feature: str, extra: str, *modules: str) -> None:
    """Raise a CelrecError that names the extra to install, unless all modules are there.

    >>> require_extra("pictures", "report", "json")
    >>> require_extra("pictures", "report", "no_such_module")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    celrec.errors.CelrecError: pictures needs no_such_module, not installed here; pip install ...
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise CelrecError(
            f"{feature} needs {' and '.join(missing)}, not installed here; "
            f"pip install 'celrec[{extra}]'"
        )
