# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m smdistributed.compat.horovod train.py`: runs a script, for which `horovod` is there.

It runs in this process, as the interpreter itself would run it: `sys.argv`, `sys.path[0]`,
`__main__`, exit statuses and tracebacks are those of `python train.py`. Interpreters that it starts
find the stand-in by the variable `SMDDP_HOROVOD`, which is set here.

Source: our choice; see docs/horovod.md.
"""

import builtins
import importlib.util
import io
import os
import runpy
import sys
import types
from collections.abc import Sequence
from importlib.machinery import BuiltinImporter, SourceFileLoader
from typing import NoReturn

from smdistributed.compat.horovod import finder

_PROGRAM = "python -m smdistributed.compat.horovod"
_USAGE = f"""\
usage: {_PROGRAM} script.py [arguments]
       {_PROGRAM} -m module [arguments]
       {_PROGRAM} -c command [arguments]

Runs a script that imports horovod, unchanged: where no Horovod is installed, it finds a stand-in
over smdistributed-open. The launcher says who the ranks are:

  mpirun -np 2 {_PROGRAM} train.py
  torchrun --nproc-per-node 2 -m smdistributed.compat.horovod train.py
  srun --ntasks 2 {_PROGRAM} train.py

In jobs of smddprun this is not needed: smddprun -np 2 python train.py
docs/horovod.md lists what is there.
"""
_WRONG_USAGE = 2


def main(arguments: Sequence[str]) -> None:
    """Runs what the arguments name; returns when it has ended."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE, end="", file=sys.stdout if arguments else sys.stderr)
        sys.exit(0 if arguments else _WRONG_USAGE)
    option, *rest = arguments
    if option in ("-m", "-c") and not rest:
        _refuse(f"{option} is given without a {'module' if option == '-m' else 'command'}")
    if option.startswith("-") and option not in ("-m", "-c"):
        _refuse(
            f"{option} is no option; expected a script, -m or -c. Options of the interpreter go"
            f" before: python {option} -m smdistributed.compat.horovod ..."
        )
    finder.install()
    os.environ[finder.VARIABLE] = finder.STAND_IN
    sys.excepthook = _show
    if option == "-m":
        _run_module(rest[0], rest[1:])
    elif option == "-c":
        _run_command(rest[0], rest[1:])
    else:
        _run_script(option, rest)


def _run_module(name: str, arguments: Sequence[str]) -> None:
    sys.argv = ["-m", *arguments]
    _become_main()
    _tell_of_another()
    # What the interpreter itself calls for -m.
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _run_command(command: str, arguments: Sequence[str]) -> None:
    sys.argv = ["-c", *arguments]
    _replace_first_path("")
    main_module = _become_main()
    _tell_of_another()
    exec(compile(command, "<string>", "exec", dont_inherit=True), main_module.__dict__)


def _run_script(script: str, arguments: Sequence[str]) -> None:
    sys.argv = [script, *arguments]
    path = os.path.abspath(script)
    if not os.path.exists(path):
        _refuse(f"there is no script {script} in {os.getcwd()}")
    main_module = _become_main()
    if not os.path.isfile(path) or not _is_source(path):
        # A folder or an archive with a __main__.py.
        _replace_first_path(path)
        _tell_of_another()
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        return
    _replace_first_path(os.path.dirname(os.path.realpath(path)))
    _tell_of_another()
    loader = SourceFileLoader("__main__", path)
    main_module.__dict__.update(__cached__=None, __file__=path, __loader__=loader)
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main_module.__dict__)


def _is_source(path: str) -> bool:
    with io.open_code(path) as file:
        return file.read(2) != b"PK"


def _become_main() -> types.ModuleType:
    """A fresh `__main__` in the place of this one, as pickles and spawned children look there."""
    module = types.ModuleType("__main__")
    module.__dict__.update(__annotations__={}, __builtins__=builtins, __loader__=BuiltinImporter)
    sys.modules["__main__"] = module
    return module


def _replace_first_path(folder: str) -> None:
    # `python -m` has put the working folder there, unless it was told not to put any.
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _tell_of_another() -> None:
    spec = importlib.util.find_spec("horovod")
    where = None if spec is None else spec.origin or list(spec.submodule_search_locations or ())
    if where != os.path.join(finder.STAND_IN_FOLDER, "horovod", "__init__.py"):
        print(
            f"{_PROGRAM}: the script gets the horovod at {where}, which goes before the stand-in."
            " Uninstall or move it to have the stand-in.",
            file=sys.stderr,
        )


def _show(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    """Prints a traceback as of the script alone: without the frames that have led to it."""
    own = (__file__, runpy.__file__, f"<frozen {runpy.__name__}>")
    rest = trace
    while rest is not None and rest.tb_frame.f_code.co_filename in own:
        rest = rest.tb_next
    sys.__excepthook__(kind, error.with_traceback(rest), rest)


def _refuse(text: str) -> NoReturn:
    print(f"{_PROGRAM}: {text}.\n{_USAGE}", end="", file=sys.stderr)
    sys.exit(_WRONG_USAGE)


if __name__ == "__main__":
    main(sys.argv[1:])
