"""Every example in the README is run, in order, in one folder, as a reader would."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
LOG = (
    "customer_id,sku,stars,date\n"
    "ann,lamp,5,2026-01-03\nbob,lamp,4,2026-01-03\nann,desk,2,2026-01-04\nbob,sofa,4,2026-01-05\n"
)


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), re.M | re.S)


def test_commands_print_what_the_readme_shows(tmp_path):
    (tmp_path / "log.csv").write_text(LOG)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = 0
    for block in blocks("console"):
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M):
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=tmp_path,
                env={**os.environ, "PATH": path},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            assert done.stdout == shown, command
            ran += 1
    assert ran >= 5


def test_python_examples_print_what_the_readme_shows(tmp_path, monkeypatch):
    (tmp_path / "log.csv").write_text(LOG)
    monkeypatch.chdir(tmp_path)
    text = "\n".join(blocks("python"))
    examples = doctest.DocTestParser().get_doctest(text, {}, "README", str(README), 0)
    results = doctest.DocTestRunner().run(examples)
    assert results.attempted >= 10
    assert results.failed == 0


def test_the_two_commands_exist():
    makefile = (README.parent / "Makefile").read_text()
    for target in re.findall(r"^    make (\w+)", README.read_text(), re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target
