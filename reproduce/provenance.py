"""What a result was made with."""

from __future__ import annotations

import platform
import shutil
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("celrec", "torch", "numpy", "numba", "polars")


@cache
def provenance() -> dict[str, str | None]:
    """Versions, and the commit of the source if it is a checkout's; changed: with a `+`.

    >>> sorted(provenance())
    ['celrec', 'commit', 'numba', 'numpy', 'polars', 'python', 'torch']
    """
    versions = {name: version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), **versions, "commit": _commit()}


def _commit() -> str | None:
    git = shutil.which("git")
    home = Path(__file__).resolve().parent
    if git is None:
        return None

    def tell(*arguments: str) -> str | None:
        done = subprocess.run(  # noqa: S603
            [git, "-C", str(home), *arguments], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else None

    # Another's repository may have the package in an environment somewhere inside.
    if tell("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    commit = tell("rev-parse", "--short=12", "HEAD")
    return f"{commit}+" if commit and tell("status", "--porcelain", str(home.parent)) else commit
