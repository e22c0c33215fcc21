"""The site of the documentation: built without a warning, with every public name on a page."""

import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from celrec.runtime.extras import exported_names

pytest.importorskip("mkdocs")
LOADED = re.compile(r"<(?:script|link|img)[^>]* (?:src|href)=\"?([^\s\">]+)")
HOME = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_public_name_is_documented(site):
    content = (site / "objects.inv").read_bytes()
    inventory = zlib.decompress(content.split(b"\n", 4)[4]).decode()
    documented = {line.partition(" ")[0] for line in inventory.splitlines()}
    for stub in sorted((HOME / "src/celrec").glob("*/__init__.pyi")):
        names = {f"celrec.{stub.parent.name}.{name}" for name in exported_names(stub)}
        assert names <= documented


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.rglob("*.html"):
        for address in LOADED.findall(page.read_text()):
            assert not address.startswith(("http", "//")), (page.name, address)
