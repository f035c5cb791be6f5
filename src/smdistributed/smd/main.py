# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The entry of `smd`: errors become one line and an exit status.

0    done; of `run` and `logs -f`: the job has ended well, or was stopped
1    the job has failed, or the endpoint of `deploy`
2    the command is wrong, or names a job that is not there
3    the job could not be started: a machine or a scheduler is not there, or a disk is full
130  Ctrl-C
141  nobody reads what is printed
"""

from __future__ import annotations

import os
import sys

from smdistributed._common.errors import SmdistributedError

__all__ = ["main"]

USAGE = 2
NOT_STARTED = 3
INTERRUPTED = 130
BROKEN_PIPE = 141


def main() -> int:
    """Runs the command line of this process. Returns: its exit status."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError as error:
        return _say(f"{error.name} is missing; pip install 'smdistributed-open[launch]'", USAGE)
    from smdistributed.launch.backends.backend import BackendError
    from smdistributed.smd import clusters, commands, running, serving  # noqa: F401 - they add their commands
    from smdistributed.smd.application import application

    try:
        status = application(prog_name="smd", standalone_mode=False)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BackendError as error:
        return _say(str(error), NOT_STARTED)
    except SmdistributedError as error:
        return _say(str(error), USAGE)
    except ValueError as error:  # of estimators: what was given cannot work
        return _say(str(error), USAGE)
    except (BrokenPipeError, SystemExit):  # of `smd ... | head`: typer turns the one into the other
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        return _say(str(error), NOT_STARTED)
    except Exception as error:
        return _of_the_command_line(error)
    return status if isinstance(status, int) else 0


def _of_the_command_line(error: Exception) -> int:
    """Of a wrong command line: typer's own text; all else is a defect, with its traceback.

    By what they have: the classes are click's in some versions of typer, and typer's in others.
    """
    if type(error).__name__ == "Abort":
        return INTERRUPTED
    show = getattr(error, "show", None)
    if show is None or not hasattr(error, "exit_code"):
        raise error
    show()
    return USAGE


def _say(text: str, status: int) -> int:
    print(f"smd: {text}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
