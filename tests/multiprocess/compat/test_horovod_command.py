# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m smdistributed.compat.horovod train.py` is `python train.py`, but for `horovod`."""

from __future__ import annotations

import os
import textwrap
import zipfile
from pathlib import Path

import pytest

from tests.multiprocess.compat.installed import ROOT, STAND_IN, Installed

COMMAND = ("-m", "smdistributed.compat.horovod")

# What a script can see of how it was started.
SEEN = """\
import json, os, sys
main = sys.modules["__main__"]
told = {name: os.environ.get(name) for name in ("PYTHONPATH", "HOME")}
spec = main.__spec__ and (main.__spec__.name, main.__spec__.origin)
print(json.dumps([__name__, globals().get("__file__"), spec, main.__package__, sys.argv, sys.path,
    main.__dict__ is globals(), type(main.__loader__).__name__, __builtins__.__name__,
    sorted(globals()), told]))
"""
# A script of which each line stands for a way in which it may end.
ENDS = {
    "a status": "import sys; sys.exit(3)",
    "a text": "import sys; sys.exit('the data are missing')",
    "an error": "def train():\n    raise ValueError('wrong')\ntrain()",
    "an error after another": "try:\n    1 / 0\nexcept Exception:\n    raise ValueError('then')",
    "no Python": "import sys\nthis is no Python",
    "Ctrl-C": "import os, signal; os.kill(os.getpid(), signal.SIGINT); signal.pause()",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "at once": "import os; os._exit(5)",
    "a hook of its own": "import sys\nsys.excepthook = lambda *_: print('hook')\n1 / 0",
    "in a thread": "import threading\nthreading.Thread(target=lambda: 1 / 0).start()",
    "late": "import atexit\natexit.register(lambda: print(__name__))",
}


def write(path: Path, code: str) -> Path:
    path.write_text(textwrap.dedent(code))
    return path


@pytest.mark.parametrize("way", ["script", "link", "module", "package", "command", "folder", "zip"])
def test_a_script_sees_what_it_sees_under_python(
    installed: Installed, tmp_path: Path, way: str
) -> None:
    folder = tmp_path / "mine"
    (folder / "inner").mkdir(parents=True)
    write(folder / "train.py", SEEN)
    write(folder / "inner" / "__main__.py", SEEN)
    (folder / "inner" / "__init__.py").touch()
    (tmp_path / "link.py").symlink_to(folder / "train.py")
    with zipfile.ZipFile(tmp_path / "train.zip", "w") as archive:
        archive.writestr("__main__.py", SEEN)
    words = {
        "script": ("mine/train.py",),
        "link": ("link.py",),
        "module": ("-m", "mine.train"),
        "package": ("-m", "mine.inner"),
        "command": ("-c", SEEN),
        "folder": ("mine/inner",),
        "zip": ("train.zip",),
    }[way]
    plain = installed.run(*words, "--epochs", "1", folder=tmp_path)
    ours = installed.run(*COMMAND, *words, "--epochs", "1", folder=tmp_path)
    assert plain.returncode == 0, plain.stderr
    assert (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr)


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS)
def test_a_script_ends_as_under_python(installed: Installed, tmp_path: Path, code: str) -> None:
    script = write(tmp_path / "train.py", code)
    plain = installed.run(script, folder=tmp_path)
    ours = installed.run(*COMMAND, script, folder=tmp_path)
    assert (ours.returncode, ours.stdout, ours.stderr) == (
        plain.returncode,
        plain.stdout,
        plain.stderr,
    )
    # Else there would be nothing to compare.
    assert plain.returncode or plain.stdout or plain.stderr


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_the_script_find_it_too(
    installed: Installed, tmp_path: Path, method: str
) -> None:
    script = write(
        tmp_path / "train.py",
        f"""\
        import multiprocessing, os, subprocess, sys
        def work(number):
            import horovod
            return number, horovod.__version__, os.environ.get("PYTHONPATH")
        if __name__ == "__main__":
            with multiprocessing.get_context({method!r}).Pool(1) as pool:
                print(pool.map(work, [1]))
            subprocess.run([sys.executable, "-c", "import horovod; print(horovod.__version__)"])
        """,
    )
    done = installed.run(*COMMAND, script, folder=tmp_path)
    assert done.stdout == "[(1, '0.28.1', None)]\n0.28.1\n", done.stderr


def test_a_checkout_that_is_not_installed_will_do(installed: Installed, tmp_path: Path) -> None:
    code = "import horovod; print(horovod.__file__)"
    variables = {"PYTHONPATH": os.fspath(ROOT / "src")}
    with installed.without_this_package():
        done = installed.run(*COMMAND, "-c", code, folder=tmp_path, environment=variables)
    assert done.stdout == f"{STAND_IN}/__init__.py\n", done.stderr


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--help",), 0, "usage: python -m smdistributed.compat.horovod script.py"),
        ((), 2, "usage: python -m smdistributed.compat.horovod script.py"),
        (("-m",), 2, "-m is given without a module."),
        (("-u", "train.py"), 2, "-u is no option; expected a script, -m or -c."),
        (("train.py",), 2, "there is no script train.py in "),
    ],
)
def test_wrong_usage_says_what_is_right(
    installed: Installed, tmp_path: Path, words: tuple[str, ...], status: int, said: str
) -> None:
    done = installed.run(*COMMAND, *words, folder=tmp_path)
    assert done.returncode == status
    assert said in (done.stdout if status == 0 else done.stderr)
    assert "Traceback" not in done.stderr
