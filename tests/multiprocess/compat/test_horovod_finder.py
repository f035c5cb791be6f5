# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who finds which `horovod`: the stand-in in jobs only, and behind any other that there is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from machine_speed import scaled

from smdistributed.compat.horovod import finder
from smdistributed.launch import environment
from tests.multiprocess.compat.installed import (
    IN_A_JOB,
    STAND_IN,
    START,
    Installed,
    path_with,
    write_package,
)

SHOW = "import horovod; print(horovod.__version__, horovod.__file__)"


def test_one_spelling_of_the_variable_and_its_value() -> None:
    assert environment.with_horovod({}) == {finder.VARIABLE: finder.STAND_IN}
    assert environment.with_horovod({finder.VARIABLE: "off"}) == {finder.VARIABLE: "off"}
    assert f'os.environ.get("{finder.VARIABLE}") == "{finder.STAND_IN}" and' in START.read_text()


def test_in_a_job_the_stand_in_is_found(installed: Installed, tmp_path: Path) -> None:
    done = installed.run("-c", SHOW, folder=tmp_path, environment=IN_A_JOB)
    assert done.stdout == f"0.28.1 {STAND_IN}/__init__.py\n", done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("value", ["", "off", "1", "stand-in ", "'; import nothing #"])
def test_outside_of_jobs_nobody_finds_it(installed: Installed, tmp_path: Path, value: str) -> None:
    code = (
        "import importlib.util, sys;"
        "print(importlib.util.find_spec('horovod'), 'smdistributed' in sys.modules)"
    )
    variables = {finder.VARIABLE: value} if value else {}
    done = installed.run("-c", code, folder=tmp_path, environment=variables)
    assert (done.stdout, done.stderr) == ("None False\n", "")


@pytest.mark.parametrize("real", [False, True])
def test_the_stand_in_is_no_horovod_to_warn_of(
    installed: Installed, tmp_path: Path, real: bool
) -> None:
    """Within a job, or with the variable exported, a launcher's interpreter finds the stand-in."""
    code = (
        "import os; from smdistributed.launch.environment import horovod_warning;"
        "print(horovod_warning(os.environ))"
    )
    variables = {**IN_A_JOB, **(path_with(write_package(tmp_path / "elsewhere")) if real else {})}
    done = installed.run("-c", code, folder=tmp_path, environment=variables)
    expected = "Horovod is installed at" if real else "None"
    assert done.stdout.startswith(expected), done.stdout + done.stderr


def _wheel(installed: Installed, folder: Path) -> dict[str, str]:
    write_package(installed.packages)
    return {}


def _line(installed: Installed, folder: Path) -> dict[str, str]:
    (installed.packages / "zz_horovod.pth").write_text(f"{write_package(folder / 'source')}\n")
    return {}


def _editable(where: str, name: str) -> Callable[[Installed, Path], dict[str, str]]:
    def install(installed: Installed, folder: Path) -> dict[str, str]:
        source = write_package(folder / "source")
        (installed.packages / "editable_horovod_finder.py").write_text(
            "import sys\n"
            "from importlib.machinery import PathFinder\n"
            "class Editable:\n"
            "    @staticmethod\n"
            "    def find_spec(name, path=None, target=None):\n"
            "        if name == 'horovod':\n"
            f"            return PathFinder.find_spec(name, [{str(source)!r}])\n"
            f"sys.meta_path.{where}\n"
        )
        (installed.packages / name).write_text("import editable_horovod_finder\n")
        return {}

    return install


def _beside_the_script(installed: Installed, folder: Path) -> dict[str, str]:
    write_package(folder)
    return {}


def _on_the_path(installed: Installed, folder: Path) -> dict[str, str]:
    return path_with(write_package(folder / "elsewhere"))


REAL = {
    "wheel": _wheel,
    "editable by a line": _line,
    "editable, first, before ours": _editable("insert(0, Editable)", "a_horovod.pth"),
    "editable, last, before ours": _editable("append(Editable)", "a_horovod.pth"),
    "editable, last, behind ours": _editable("append(Editable)", "zz_horovod.pth"),
    "beside the script": _beside_the_script,
    "PYTHONPATH": _on_the_path,
}


@pytest.mark.parametrize("install", REAL.values(), ids=REAL)
def test_a_real_horovod_wins(
    installed: Installed, tmp_path: Path, install: Callable[[Installed, Path], dict[str, str]]
) -> None:
    variables = install(installed, tmp_path)
    script = tmp_path / "train.py"
    script.write_text(
        "import horovod, horovod.torch\n"
        "print(horovod.__version__)\n"
        "try:\n"
        "    import horovod.spark\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error)\n"
    )
    expected = "real\nNo module named 'horovod.spark'\n"
    done = installed.run(script, folder=tmp_path, environment={**IN_A_JOB, **variables})
    assert (done.stdout, done.stderr) == (expected, "")
    # And by the command, which says so: it was asked for the stand-in.
    command = ("-m", "smdistributed.compat.horovod", script)
    done = installed.run(*command, folder=tmp_path, environment=variables)
    assert done.stdout == expected, done.stderr
    assert "which goes before the stand-in. Uninstall or move it" in done.stderr


def test_what_else_is_asked_of_an_installation(installed: Installed, tmp_path: Path) -> None:
    code = """
import importlib.metadata, importlib.util, pkgutil, sys
from smdistributed.compat.horovod import finder
finder.install()
assert [type(each).__name__ for each in sys.meta_path].count("Finder") == 1
assert isinstance(sys.meta_path[-1], finder.Finder)
spec = importlib.util.find_spec("horovod")
assert "horovod" not in sys.modules and spec.submodule_search_locations, spec
assert importlib.util.find_spec("horovod.runner") is not None
try:
    importlib.metadata.version("horovod")
except importlib.metadata.PackageNotFoundError:
    print("no distribution")
import horovod
frameworks = {"torch", "tensorflow", "keras", "numpy"} & set(sys.modules)
assert not frameworks, frameworks
assert "runner" in [each.name for each in pkgutil.iter_modules(horovod.__path__)]
"""
    done = installed.run("-c", code, folder=tmp_path, environment=IN_A_JOB)
    assert (done.stdout, done.stderr) == ("no distribution\n", "")


@pytest.mark.parametrize("name", ["spark", "spark.torch", "ray", "mxnet", "nothing"])
def test_a_module_that_is_not_there_says_what_to_do(
    installed: Installed, tmp_path: Path, name: str
) -> None:
    done = installed.run("-c", f"import horovod.{name}", folder=tmp_path, environment=IN_A_JOB)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    missing = f"horovod.{name.partition('.')[0]}"
    assert last.startswith(f"ModuleNotFoundError: {missing} is not there: this horovod is the")
    assert "Instead: " in last


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_without_the_framework_nothing_is_half_imported(
    installed: Installed, tmp_path: Path, framework: str
) -> None:
    code = f"""
import sys
sys.modules[{framework!r}] = None  # as if it were not installed
for attempt in range(2):
    try:
        import horovod.{framework}
    except ModuleNotFoundError as error:
        print(error.name)
import horovod
assert not hasattr(horovod, {framework!r}) and "horovod.{framework}" not in sys.modules
"""
    done = installed.run("-c", code, folder=tmp_path, environment=IN_A_JOB)
    assert (done.stdout, done.stderr) == (f"{framework}\n" * 2, "")


def test_a_folder_that_only_has_the_name_is_told(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()
    done = installed.run("-c", "import horovod.torch", folder=tmp_path, environment=IN_A_JOB)
    assert done.returncode == 1
    assert f"Python has taken the folder {tmp_path / 'horovod'} for horovod" in done.stderr


def test_horovodrun_by_its_module_says_what_to_write(installed: Installed, tmp_path: Path) -> None:
    command = ("-m", "horovod.runner.launch", "-np", "2", "python", "train.py")
    done = installed.run(*command, folder=tmp_path, environment=IN_A_JOB)
    assert done.returncode == 1
    assert "smddprun -np 2 python train.py" in done.stderr


def test_without_our_package_its_line_harms_nobody(installed: Installed, tmp_path: Path) -> None:
    # Another environment's interpreter in a job: nothing of ours is there, and nothing is said.
    with installed.without_this_package():
        done = installed.run("-c", "import horovod", folder=tmp_path, environment=IN_A_JOB)
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'horovod'"


def test_the_line_costs_nothing_where_it_is_not_asked_for(tmp_path: Path) -> None:
    code = START.read_text()
    measure = (
        "import sys, timeit; code = sys.argv[1];"
        "print(min(timeit.repeat(lambda: exec(code), number=100, repeat=5)) / 100)"
    )
    done = subprocess.run(
        [sys.executable, "-c", measure, code], capture_output=True, text=True, timeout=scaled(60)
    )
    assert float(done.stdout) < scaled(100e-6), done.stdout
