import os
import re
import subprocess
import sys

import pytest

import celrec
from celrec.cli.main import main
from celrec.data.datasets import library

# What a command does when a function that it calls is broken.
BROKEN = """
import sys
from celrec.cli.main import main
from celrec.data.datasets import library
def find_dataset(name):
    raise RuntimeError("a wheel came off")
library.find_dataset = find_dataset
sys.exit(main(sys.argv[1:]))
"""


def run(*words, **how):
    command = [sys.executable, "-m", "celrec", *words]
    how = {"capture_output": True, "text": True, "timeout": 60, "check": False, **how}
    return subprocess.run(command, **how)


def words(text):
    """`text` without the frames and line breaks of a page of help."""
    return " ".join(re.sub("[│╭╰─╮╯]", " ", text).split())


def assert_one_complaint(captured, *parts):
    assert captured.out == ""
    assert captured.err.startswith("celrec: ")
    assert captured.err.count("\n") == 1
    assert captured.err.endswith("\n")
    for part in parts:
        assert part in captured.err


@pytest.fixture
def broken(monkeypatch):
    def find_dataset(_):
        raise RuntimeError("a wheel\ncame off")

    monkeypatch.setattr(library, "find_dataset", find_dataset)


def test_the_version_is_shown(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"celrec {celrec.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["data"]])
def test_without_a_command_the_help_is_shown(capsys, arguments):
    main(arguments)
    captured = capsys.readouterr()
    assert "Usage:" in captured.out
    assert captured.err == ""


@pytest.mark.parametrize(
    ("command", "mentioned"),
    [
        ([], ["data", "--version", "--debug", "--help"]),
        (["data"], ["list", "fetch", "describe"]),
        (["data", "list"], ["--json", "CELREC_DATA"]),
        (["data", "fetch"], ["NAME", "--json", "CELREC_CACHE", "celrec data fetch ml-1m"]),
        (
            ["data", "describe"],
            [
                *("DATA", "--user-column", "--item-column", "--target-column"),
                *("--timestamp-column", "--separator", "--drop-invalid", "--json"),
                "celrec data describe log.csv",
            ],
        ),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_explains_itself(capsys, command, mentioned, option):
    assert main([*command, option]) == 0
    captured = capsys.readouterr()
    shown = words(captured.out)
    assert [word for word in mentioned if word.lower() not in shown.lower()] == []
    assert captured.err == ""


@pytest.mark.parametrize(
    ("arguments", "mentioned"),
    [
        (["--nonsense"], "--nonsense"),
        (["nonsense"], "'nonsense'"),
        (["data", "nonsense"], "'nonsense'"),
        (["data", "list", "--nonsense"], "--nonsense"),
        (["data", "fetch"], "Missing argument"),
        (["data", "describe", "a.csv", "b.csv"], "b.csv"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_a_wrong_command_line_is_one_line(capsys, arguments, mentioned):
    assert main(arguments) == 2
    assert_one_complaint(capsys.readouterr(), mentioned, "--help")


def test_an_option_without_its_value_is_one_line(capsys):
    assert main(["data", "describe", "a.csv", "--separator"]) == 2
    assert_one_complaint(capsys.readouterr(), "--separator")


@pytest.mark.usefixtures("broken")
def test_a_bug_is_one_line_without_a_traceback(capsys):
    assert main(["data", "list"]) == 1
    captured = capsys.readouterr()
    assert_one_complaint(captured, "RuntimeError: a wheel came off", "--debug")
    assert "Traceback" not in captured.err


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(
    "arguments",
    [["--debug", "data", "list"], ["data", "--debug", "list"], ["data", "list", "--debug"]],
)
def test_a_bug_is_not_hidden_from_those_who_debug(arguments):
    with pytest.raises(RuntimeError, match="came off"):
        main(arguments)


def test_a_bug_of_a_real_process_shows_its_traceback_only_when_debugging():
    command = [sys.executable, "-c", BROKEN, "data", "list"]
    plain = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert plain.returncode == 1
    assert plain.stderr.count("\n") == 1
    command.append("--debug")
    debugged = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert debugged.returncode == 1
    assert "Traceback" in debugged.stderr
    assert "in find_dataset" in debugged.stderr


def test_debugging_changes_nothing_where_all_is_well(capsys):
    assert main(["data", "list", "--json", "--debug"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("[")
    assert captured.err == ""


def test_a_mistake_stays_one_line_when_debugging(capsys):
    assert main(["--debug", "data", "describe", "nowhere.csv"]) == 2
    assert_one_complaint(capsys.readouterr(), "nowhere.csv")


def test_an_interruption_is_one_line(capsys, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(library, "find_dataset", interrupted)
    assert main(["data", "list"]) == 130
    assert_one_complaint(capsys.readouterr(), "interrupted")


def test_the_module_runs_as_the_command():
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"celrec {celrec.__version__}\n", "")


def test_mistakes_of_a_real_process_are_one_line():
    done = run("data", "describe", "nowhere.csv")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "celrec: nowhere.csv: no such file\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["data", "list"],
        ["data", "list", "--json"],
        ["data", "describe", "synthetic"],
        ["data", "describe", "synthetic", "--json"],
    ],
    ids=" ".join,
)
def test_a_reader_who_has_gone_away_is_no_error(arguments):
    # What `| head -1` does to the lines after the first, without having to be quick.
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run(*arguments, capture_output=False, stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert done.stderr == ""
    assert done.returncode == 0


def test_output_can_be_cut_by_head():
    pipe = '"$0" -m celrec data list | head -1'
    done = subprocess.run(
        ["sh", "-c", pipe, sys.executable], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("ml-100k")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_help_and_version_do_not_load_what_they_do_not_need():
    code = (
        "import sys; from celrec.cli.main import main; main(['--version']); "
        "print([m for m in ('polars', 'numba', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("celrec rec", {"recommend"}),
        ("celrec data d", {"describe"}),
        ("celrec train --comp", {"--compression"}),
        ("celrec nothing-like-it", set()),
    ],
)
def test_a_shell_can_complete_commands_and_options(typed, offered):
    asking = {
        "_CELREC_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    program = os.path.join(os.path.dirname(sys.executable), "celrec")
    done = subprocess.run(
        [program],
        env={**os.environ, **asking},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert set(done.stdout.split()) == offered
    assert (done.returncode, done.stderr) == (0, "")
