"""The public names of the packages: their stubs, and how fast they are imported."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

import celrec
from celrec.runtime.extras import exported_names

HOME = Path(celrec.__file__).parent
STUBS = sorted(HOME.rglob("__init__.pyi"))
PACKAGES = [".".join(("celrec", *stub.parent.relative_to(HOME).parts)) for stub in STUBS]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_of_a_stub_is_what_its_module_has(name):
    package = importlib.import_module(name)
    names = exported_names(Path(package.__file__).with_suffix(".pyi"))
    assert sorted(names) == package.__all__
    for public, module in names.items():
        assert getattr(package, public) is getattr(importlib.import_module(module), public)


@pytest.mark.parametrize("name", PACKAGES[1:])
def test_a_package_exports_what_is_its_own_and_no_name_of_a_module(name):
    package = importlib.import_module(name)
    modules = {path.stem for path in Path(package.__file__).parent.iterdir()}
    assert not modules & set(package.__all__)
    names = exported_names(Path(package.__file__).with_suffix(".pyi"))
    assert all(module.startswith(f"{name}.") for module in names.values())


def test_public_names_are_listed_and_others_are_attribute_errors():
    assert {"Recommender", "__version__", "fit"} <= set(dir(celrec))
    with pytest.raises(AttributeError, match="module 'celrec' has no attribute 'nothing'"):
        _ = celrec.nothing


def test_importing_the_package_imports_none_of_the_libraries():
    program = (
        "import sys, celrec\n"
        "print(*sorted(sys.modules.keys() & {'numba', 'numpy', 'polars', 'torch', 'typer'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_method_has_a_docstring_of_its_own_or_of_the_method_that_it_overrides(name):
    package = importlib.import_module(name)
    classes = {one for one in map(package.__getattr__, package.__all__) if inspect.isclass(one)}
    missing = [
        f"{one.__name__}.{attribute}"
        for one in classes
        for attribute, value in vars(one).items()
        if not attribute.startswith("_")
        and isinstance(value, FunctionType | property | classmethod | staticmethod)
        and not inspect.getdoc(getattr(one, attribute))
    ]
    assert not missing
