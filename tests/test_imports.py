"""Everything can be imported where modules of the system or of an extra are missing."""

import json
import subprocess
import sys

UNIX_ONLY = ("fcntl", "grp", "pwd", "resource", "termios", "uvloop")
OPTIONAL = {
    "docs": ("mkdocs", "mkdocstrings"),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "ray": ("ray",),
    "report": ("jinja2", "matplotlib"),
    "serve": ("fastapi", "httptools", "prometheus_client", "uvicorn"),
    "stream": ("confluent_kafka", "redis"),
    "tables": ("pandas", "pyarrow"),
    "torchrec": ("torchrec",),
}
BLOCK = """
import importlib, pkgutil, sys

blocked, left_out = (word.split(",") for word in sys.argv[1:3])
sys.modules |= dict.fromkeys(blocked)  # None in the place of a module: it cannot be imported
"""
IMPORT_ALL = """
import celrec

for module in pkgutil.walk_packages(celrec.__path__, "celrec."):
    name = module.name
    if name != "celrec.__main__" and not any(name.startswith(start) for start in left_out):
        importlib.import_module(name)
"""
RUN = """
import contextlib, io, json
from celrec.cli.main import main

results = []
for name, arguments in json.loads(sys.argv[3]):
    sys.modules[name] = None
    with contextlib.redirect_stderr(io.StringIO()) as complaint:
        code = main(arguments)
    del sys.modules[name]
    results.append([code, complaint.getvalue()])
print(json.dumps(results))
"""
MISSING = [
    ("reproduce", ["reproduce"], "clone the repository"),
    ("jinja2", ["report", "run"], "celrec[report]"),
    ("matplotlib", ["compare", "ml-100k", "--plot", "picture.png"], "celrec[report]"),
    ("matplotlib", ["reproduce", "figure3"], "celrec[report]"),
    ("fastapi", ["serve", "run"], "celrec[serve]"),
]


def run(program, blocked, left_out=("celrec.cel.torchrec",), *arguments):
    words = [",".join(blocked), ",".join(left_out), *arguments]
    return subprocess.run(
        [sys.executable, "-c", BLOCK + program, *words], capture_output=True, text=True, check=False
    )


def test_all_modules_are_imported_without_what_only_unix_has():
    done = run(IMPORT_ALL, UNIX_ONLY)
    assert done.returncode == 0, done.stderr


def test_all_but_the_service_is_imported_without_the_extras_and_the_repository():
    blocked = [*UNIX_ONLY, *(name for names in OPTIONAL.values() for name in names), "reproduce"]
    done = run(IMPORT_ALL, blocked, ("celrec.cel.torchrec", "celrec.service."))
    assert done.returncode == 0, done.stderr


def test_what_is_missing_is_one_line_with_the_remedy():
    commands = json.dumps([(name, arguments) for name, arguments, _ in MISSING])
    done = run(RUN, UNIX_ONLY, (), commands)
    assert done.returncode == 0, done.stderr
    for (code, complaint), (name, _, remedy) in zip(json.loads(done.stdout), MISSING, strict=True):
        assert code == 2, name
        assert complaint.startswith("celrec: ")
        assert remedy in complaint
        assert complaint.count("\n") == 1
