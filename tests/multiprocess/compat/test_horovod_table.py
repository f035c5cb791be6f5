# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""docs/horovod.md beside the modules: no name is missing in either, and what is refused raises."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from pathlib import Path

from launchers import clean_environment
from machine_speed import scaled
from preloaded import Preload, python

from tests.multiprocess.compat.installed import ROOT, STAND_IN
from tests.packages import require

PAGE = ROOT / "docs" / "horovod.md"
VERDICTS = {"works", "differs", "refused"}

# What is refused is called with as few arguments as it takes, as it raises whatever it is given.
LOOK = """
import importlib, inspect, json, sys
from smdistributed.compat.horovod import common
from smdistributed.dataparallel.exceptions import SMDDPUnsupported

def is_refused(thing):
    if isinstance(thing, common.Op):
        return True
    if not callable(thing) or not (thing.__doc__ or "").lstrip().startswith("Raises `SMDDPUnsupp"):
        return isinstance(thing, type) and issubclass(thing, common.ProcessSet)
    return True

def raises(thing, resolve):
    try:
        if isinstance(thing, common.Op):
            resolve(None, thing, "f")
        else:
            needed = [each for each in inspect.signature(thing).parameters.values()
                if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]
            thing(*[None for each in needed])
    except SMDDPUnsupported:
        return True
    return False

found = {}
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    resolve = common.resolve
    if ".tensorflow" in name:
        from smdistributed.compat.horovod.tensorflow.mpi_ops import reduce_op as resolve
    things = {each: getattr(module, each) for each in module.__all__}
    found[name] = {
        each: "refused" if is_refused(thing) and raises(thing, resolve) else "there"
        for each, thing in things.items()
    }
print(json.dumps(found))
"""


def table_of(module: str) -> dict[str, str]:
    """The verdict of each name in the section of a module."""
    _, _, rest = PAGE.read_text().partition(f"### `{module}`")
    assert rest, f"{PAGE} has no section of {module}"
    section = re.split(r"\n##", rest)[0]
    verdicts: dict[str, str] = {}
    for line in section.splitlines():
        match = re.match(r"\| (`.*?) \| (\w+) \| (.*?) ?\|$", line)
        if match is None:
            continue
        names, verdict, words = match.groups()
        assert verdict in VERDICTS, line
        assert verdict == "works" or words, f"nothing is said of {names}"
        for name in re.findall(r"`([^`]+)`", names):
            assert name not in verdicts, f"{name} is there twice"
            verdicts[name] = verdict
    return verdicts


def require_equal(preload: Preload, modules: dict[str, str]) -> None:
    """Compares sections of the page with modules; `modules` names the module of each section."""
    code = textwrap.dedent(LOOK)
    done = subprocess.run(
        [python(preload), "-c", code, *modules.values()],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for section, module in modules.items():
        table = table_of(section)
        assert sorted(table) == sorted(found[module]), section
        refused = {name for name, verdict in table.items() if verdict == "refused"}
        assert refused == {name for name, is_ in found[module].items() if is_ == "refused"}, section


def ours(module: str) -> str:
    return f"smdistributed.compat.{module}"


def test_torch() -> None:
    require("torch")
    sections = ("horovod.torch", "horovod.torch.elastic")
    require_equal(Preload.TORCH, {each: ours(each) for each in sections})


def test_tensorflow() -> None:
    require("tensorflow")
    sections = ("tensorflow", "tensorflow.elastic", "tensorflow.keras")
    below = ("tensorflow.keras.callbacks", "tensorflow.keras.elastic")
    names = [f"horovod.{each}" for each in (*sections, *below)]
    require_equal(Preload.KERAS_3, {each: ours(each) for each in names})


def test_every_module_of_the_stand_in_is_one_of_ours() -> None:
    for path in STAND_IN.rglob("*.py"):
        for module in re.findall(r"^from (smdistributed\.\S+) import \*", path.read_text(), re.M):
            file = Path(ROOT, "src", *module.split("."))
            assert (file / "__init__.py").is_file() or file.with_suffix(".py").is_file(), path
