"""`import farfield`: quick, and every public name is there when it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import farfield as ff

PACKAGES = (
    "algorithms",
    "errors",
    "federation",
    "math",
    "models",
    "protocol",
    "records",
    "report",
    "runs",
    "tasks",
    "trained",
)
SLOW = {"torch", "numpy", "scipy", "sklearn", "pandas", "pyarrow", "flwr", "ray", "pydantic", "typer", "rich"}


def fresh(code: str) -> str:
    """What code prints in an interpreter of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def promised() -> dict[str, tuple[str, str]]:
    """What the imports for type checkers say: the module and the name in it, by public name."""
    tree = ast.parse(Path(ff.__file__).read_text(encoding="utf-8"))
    block = next(n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    imports = [statement for statement in block.body if isinstance(statement, ast.ImportFrom)]
    return {alias.asname or alias.name: (str(s.module), alias.name) for s in imports for alias in s.names}


def test_importing_farfield_imports_no_slow_package() -> None:
    loaded = fresh("import sys, farfield; print(*{name.partition('.')[0] for name in sys.modules})").split()
    assert "farfield" in loaded
    assert SLOW.isdisjoint(loaded)


def test_listing_the_names_imports_no_slow_package() -> None:
    loaded = fresh("import sys, farfield; dir(farfield); print(*{name.partition('.')[0] for name in sys.modules})")
    assert SLOW.isdisjoint(loaded.split())


def test_every_public_name_is_the_object_that_type_checkers_are_told_of() -> None:
    sources = promised()
    assert sorted(sources) == sorted(ff.__all__)
    for name, (module, attribute) in sources.items():
        if name != "diagnose":  # also a package, which is called in the function's place
            assert getattr(ff, name) is getattr(import_module(module), attribute), name


@pytest.mark.slow
def test_the_package_diagnose_is_called_like_the_function_in_it() -> None:
    from tests.toy import task

    assert ff.diagnose(task(), quick=True) == import_module("farfield.diagnose.diagnosis").diagnose(task(), quick=True)


def test_the_names_are_listed_before_they_are_used() -> None:
    listed = fresh("import farfield; print(*dir(farfield))").split()
    assert {*ff.__all__, "__version__", "tasks", "algorithms"} <= set(listed)


@pytest.mark.slow
def test_a_star_import_brings_every_public_name() -> None:
    names = fresh("from farfield import *; print(*globals())").split()
    assert set(ff.__all__) <= set(names)


@pytest.mark.slow
def test_functions_keep_their_names_whatever_modules_are_imported_before_them() -> None:
    kinds = fresh(
        "import farfield.runs.bench, farfield.trained.training, farfield.trained.evaluation, farfield as ff\n"
        "print(*(f'{f.__module__}.{f.__qualname__}' for f in (ff.bench, ff.train, ff.evaluate)))"
    )
    assert kinds.split() == [
        "farfield.runs.bench.bench",
        "farfield.trained.training.train",
        "farfield.trained.evaluation.evaluate",
    ]


@pytest.mark.slow
def test_the_packages_are_reachable_in_any_order_after_importing_farfield() -> None:
    reached = fresh(
        "import sys\n"
        f"for name in {PACKAGES}:\n"
        "    for module in [m for m in sys.modules if m.partition('.')[0] == 'farfield']:\n"
        "        del sys.modules[module]\n"
        "    import farfield\n"
        "    print(getattr(farfield, name).__name__)\n"
    )
    assert reached.split() == [f"farfield.{name}" for name in PACKAGES]


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert ff.__version__ == project["version"]


def test_a_name_that_does_not_exist_is_named() -> None:
    with pytest.raises(AttributeError, match="module 'farfield' has no attribute 'bnech'"):
        ff.bnech  # noqa: B018
    with pytest.raises(ImportError, match="bnech"):
        from farfield import bnech  # noqa: F401
