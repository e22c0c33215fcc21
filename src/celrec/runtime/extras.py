"""Optional dependencies, and public names that are imported on first use."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

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


def lazy_exports(
    package: str, file: str
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose names stand in its stub.

    The stub `__init__.pyi` beside `file` imports every public name, as in `from
    celrec.data.split import Split as Split`. Type checkers read the same stub. A module is
    imported when one of its names is first used, so that importing the package stays fast.

    >>> import celrec.data
    >>> "Split" in dir(celrec.data), celrec.data.Split.__module__
    (True, 'celrec.data.split')
    """
    modules = exported_names(Path(file).with_suffix(".pyi"))

    def get_attribute(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get_attribute, list_names, sorted(modules)


def exported_names(stub: Path) -> dict[str, str]:
    """The public names that a stub imports, and the modules that they come from."""
    tree = ast.parse(stub.read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module]
    return {
        alias.asname: str(node.module) for node in imports for alias in node.names if alias.asname
    }
