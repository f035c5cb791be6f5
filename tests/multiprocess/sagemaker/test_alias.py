# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The package of aliases (launch specification, section 1): with and without an SDK beside it.

Installed by pip into environments of their own, in both orders. The SDK is a stand-in, a wheel of
its name: what counts is who finds whom, and that no file is lost.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from machine_speed import scaled

import smdistributed
from tests.packages import require
from tests.unit.sagemaker.test_names import TABLE

require("setuptools")

ROOT = Path(__file__).parents[3]
PACKAGE = "smdistributed-open-sagemaker-alias"
SDK = {
    "sagemaker/__init__.py": "__version__ = '2.0.real'\n",
    "sagemaker/pytorch/__init__.py": "class PyTorch:\n    real = True\n",
}


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )


def pip(*arguments: str | Path, cwd: Path) -> None:
    done = run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr


def wheel_of(folder: Path, name: str, files: dict[str, str]) -> Path:
    """Made by hand, as a wheel is only an archive with a list."""
    info = f"{name}-2.0.dist-info"
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record += f"{path},sha256={digest.decode()},{len(text.encode())}\n"
    content[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    wheel = folder / f"{name}-2.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return wheel


class Environment:
    """A virtual environment that has smdistributed, by a path, and what is installed into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        done = run(sys.executable, "-m", "venv", "--without-pip", path, cwd=path.parent)
        assert done.returncode == 0, done.stderr
        self.python = path / "bin" / "python"
        (self.packages,) = path.glob("lib/python*/site-packages")
        source = Path(smdistributed.__file__).parents[1]
        (self.packages / "smdistributed.pth").write_text(f"{source}\n")

    def install(self, wheel: Path) -> None:
        pip("--python", self.python, "install", "--no-deps", "--no-index", wheel, cwd=self.path)

    def uninstall(self, name: str) -> None:
        pip("--python", self.python, "uninstall", "--yes", name, cwd=self.path)

    def says(self, code: str) -> subprocess.CompletedProcess[str]:
        return run(self.python, "-W", "always", "-c", code, cwd=self.path)

    def files(self) -> set[str]:
        return {
            str(path.relative_to(self.packages))
            for path in self.packages.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of the alias, built by its own pyproject.toml, and of the SDK's stand-in."""
    folder = tmp_path_factory.mktemp("wheels")
    shutil.copytree(ROOT / "packages" / "sagemaker-alias", folder / "source")
    arguments = ("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder)
    pip("wheel", *arguments, folder / "source", cwd=folder)
    (alias,) = folder.glob("smdistributed_open_sagemaker_alias-*.whl")
    return alias, wheel_of(folder, "sagemaker", SDK)


def require_alias(environment: Environment) -> None:
    code = f"""
import importlib, pickle, sys
import sagemaker
import smdistributed.sagemaker
assert sagemaker is smdistributed.sagemaker
for path, names in {TABLE!r}.items():
    alias, ours = importlib.import_module(path), importlib.import_module("smdistributed." + path)
    assert alias is ours, path
    assert ours.__spec__.name == ours.__name__ == "smdistributed." + path, ours.__spec__
    for name in names.split():
        getattr(alias, name)
from sagemaker.pytorch.estimator import PyTorch
from sagemaker import Session, TrainingInput, get_execution_role
import sagemaker.inputs as inputs
assert inputs.TrainingInput is TrainingInput is smdistributed.sagemaker.TrainingInput
assert sagemaker.tensorflow.TensorFlow
assert type(pickle.loads(pickle.dumps(inputs.ShuffleConfig(1)))) is inputs.ShuffleConfig
copies = [name for name in sys.modules if name.startswith("sagemaker") and
    sys.modules[name].__name__ != "smdistributed." + name]
assert not copies, copies
import smdistributed_sagemaker_alias  # on already
try:
    import sagemaker.processing
except ModuleNotFoundError as error:
    assert error.name == "sagemaker.processing", error.name
    print(error)
"""
    done = environment.says(code)
    assert done.returncode == 0, done.stderr
    assert "sagemaker.processing is not there: sagemaker is the alias" in done.stdout
    assert "Warning" not in done.stderr


def require_sdk(environment: Environment, *, warns: bool) -> None:
    done = environment.says(
        "import sagemaker, sagemaker.pytorch; from sagemaker.pytorch import PyTorch;"
        "assert sagemaker.__version__ == '2.0.real' and PyTorch.real; print('the SDK')"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the SDK\n"
    said = f"`sagemaker` is installed at {environment.packages}/sagemaker/__init__.py, beside"
    assert (said in done.stderr) == warns
    assert ("the installed one wins" in done.stderr) == warns
    if warns:
        done = environment.says("import smdistributed_sagemaker_alias")
        assert done.returncode == 1
        assert f"ImportError: {said}" in done.stderr


def test_the_alias_comes_first(wheels: tuple[Path, Path], tmp_path: Path) -> None:
    alias, sdk = wheels
    environment = Environment(tmp_path / "env")
    environment.install(alias)
    before = environment.files()
    require_alias(environment)
    environment.install(sdk)
    require_sdk(environment, warns=True)
    assert environment.files() >= before, "no file is replaced or lost"
    environment.uninstall("sagemaker")
    assert environment.files() == before
    require_alias(environment)


def test_the_sdk_comes_first(wheels: tuple[Path, Path], tmp_path: Path) -> None:
    alias, sdk = wheels
    environment = Environment(tmp_path / "env")
    environment.install(sdk)
    before = environment.files()
    require_sdk(environment, warns=False)
    environment.install(alias)
    require_sdk(environment, warns=True)
    environment.uninstall(PACKAGE)
    assert environment.files() == before
    require_sdk(environment, warns=False)


def test_folders_of_the_name(wheels: tuple[Path, Path], tmp_path: Path) -> None:
    environment = Environment(tmp_path / "env")
    environment.install(wheels[0])
    # An example's folder, in the working directory: no SDK.
    (environment.path / "sagemaker").mkdir()
    require_alias(environment)
    # The SDK's line 3.x: parts of a package without a file of its own, from several distributions.
    (environment.packages / "sagemaker" / "core").mkdir(parents=True)
    (environment.packages / "sagemaker_core-3.0.dist-info").mkdir()
    done = environment.says("import sagemaker; print(list(sagemaker.__path__))")
    assert str(environment.packages / "sagemaker") in done.stdout
    assert "the installed one wins" in done.stderr


def test_a_folder_of_pythonpath_reads_no_pth(wheels: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    arguments = ("--no-deps", "--no-index", "--target", folder)
    pip("install", *arguments, wheels[0], cwd=tmp_path)
    environment = Environment(tmp_path / "env")
    begin = f"import sys; sys.path.insert(0, {str(folder)!r});"
    done = environment.says(f"{begin} import sagemaker")
    assert "No module named 'sagemaker'" in done.stderr
    done = environment.says(
        f"{begin} import smdistributed_sagemaker_alias; from sagemaker.pytorch import PyTorch;"
        "print(PyTorch.__module__)"
    )
    assert done.stdout == "smdistributed.sagemaker.pytorch.estimator\n", done.stderr


def test_without_the_library_it_says_what_to_install(
    wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    environment = Environment(tmp_path / "env")
    environment.install(wheels[0])
    (environment.packages / "smdistributed.pth").unlink()
    done = environment.says("import sagemaker")
    assert "ModuleNotFoundError: sagemaker is an alias of smdistributed.sagemaker" in done.stderr
    assert "pip install smdistributed-open" in done.stderr
