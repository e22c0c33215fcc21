"""Every example in README and documents is run, in order, in a folder, as a reader would."""

import doctest
import io
import re
import shlex
import subprocess
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from celrec.cli.main import main

HOME = Path(__file__).parents[1]
README = HOME / "README.md"
DOCUMENTS = [README, *sorted((HOME / "docs").glob("*.md"))]
LOG = (
    "customer_id,sku,stars,date\n"
    "ann,lamp,5,2026-01-03\nbob,lamp,4,2026-01-03\nann,desk,2,2026-01-04\nbob,sofa,4,2026-01-05\n"
)


EVENTS = "user,item,rating\nann,lamp,5\nbob,lamp,none\n"


def blocks(document, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(), re.M | re.S)


def having(language):
    some = [document for document in DOCUMENTS if blocks(document, language)]
    return pytest.mark.parametrize("document", some, ids=lambda one: str(one.relative_to(HOME)))


def run(command, folder):
    """Exit code and output of a shell's command.

    `celrec` runs in this process, as a new one takes seconds to start; its output goes to the
    rest of the command, such as a pipe.
    """
    code, output = 0, io.StringIO()
    if celrec := re.match(r"celrec ([^|>]*)", command):
        with chdir(folder), redirect_stdout(output), redirect_stderr(output):
            code = main(shlex.split(celrec[1]))
        command = f"cat {command[celrec.end() :]}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        input=output.getvalue(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return code or done.returncode, done.stdout


@having("console")
def test_commands_print_what_is_shown(document, tmp_path):
    (tmp_path / "log.csv").write_text(LOG)
    (tmp_path / "events.csv").write_text(EVENTS)
    ran = 0
    for block in blocks(document, "console"):
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M):
            code, output = run(command, tmp_path)
            if "..." in shown:  # what differs from run to run, as in doctests
                checker, flags = doctest.OutputChecker(), doctest.ELLIPSIS
                flags |= doctest.NORMALIZE_WHITESPACE
                assert code == 0, output
                assert checker.check_output(shown, output, flags), output
            else:
                assert output == shown, command
            ran += 1
    assert ran == sum(block.count("$ ") for block in blocks(document, "console"))


@having("python")
def test_python_examples_print_what_is_shown(document, tmp_path, monkeypatch):
    (tmp_path / "log.csv").write_text(LOG)
    monkeypatch.chdir(tmp_path)
    text = "\n".join(blocks(document, "python"))
    examples = doctest.DocTestParser().get_doctest(text, {}, document.name, str(document), 0)
    results = doctest.DocTestRunner().run(examples)
    assert results.attempted >= 3
    assert results.failed == 0


def test_the_two_commands_exist():
    makefile = (README.parent / "Makefile").read_text()
    for target in re.findall(r"^    make (\w+)", README.read_text(), re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: str(one.relative_to(HOME)))
def test_links_and_pictures_lead_somewhere(document):
    words = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", words):
        if not link.startswith("https://"):
            assert (document.parent / link).exists(), link
