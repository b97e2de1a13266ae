"""The outermost frame of every command: errors in one line, and exit codes that scripts can rely on.

0: done. 1: the command failed. 2: the command or the configuration is wrong. 130 and 143: stopped by Ctrl-C and
SIGTERM.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from flnl.config.explain import explain
from flnl.config.pinning import pin
from flnl.console import surroundings
from flnl.console.credentials import put_aside
from flnl.console.terminal import log_to_stderr, print_line, silence
from flnl.core.errors import Interrupted, UserError, in_one_line, one_line
from flnl.run.overrides import check_arguments

TRACEBACKS = "HYDRA_FULL_ERROR"


def guarded(entry: Callable[[], object], *, name: str = "the run", overrides: bool = True) -> None:
    """Run ``entry`` and exit with the right code; tracebacks are shown only with ``HYDRA_FULL_ERROR=1``.

    Credentials are removed from ``sys.argv`` first, so that nothing else sees them.

    Args:
        entry: the command.
        name: what an unexpected error says has failed, as in "flnl compare".
        overrides: whether the command's arguments are overrides of the configuration, which are then checked.
    """
    surroundings.complete()
    if "reproducible=true" in sys.argv:  # also for the processes of a sweep
        with suppress(UserError):  # of the run, when it begins
            pin()
    sys.argv[1:] = put_aside(sys.argv[1:])
    log_to_stderr()
    _demand_folder()
    tracebacks = os.environ.get(TRACEBACKS, "0") not in ("", "0")
    os.environ[TRACEBACKS] = "1"  # makes Hydra raise its errors, which are shown in one line below
    try:
        if overrides:
            check_arguments(sys.argv[1:])
        entry()
    except Interrupted as stopped:
        sys.exit(stopped.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        silence(sys.stdout)
    except (UserError, HydraException, OmegaConfBaseException) as error:
        if tracebacks:
            raise
        print_line(f"error: {one_line(explain(error, sys.argv[1:]))}", to=sys.stderr)
        sys.exit(2)
    except Exception as error:
        if tracebacks:
            raise
        _demand_folder()
        if not overrides and (argument := _path_at_fault(error, sys.argv[1:])) is not None:
            reason = error.strerror if isinstance(error, OSError) else error
            print_line(f"error: {one_line(f'{argument}: {reason}')}", to=sys.stderr)
            sys.exit(2)
        where = (getattr(error, "__notes__", None) or [f"{TRACEBACKS}=1 shows where"])[-1]
        print_line(f"error: {name} failed: {one_line(in_one_line(error))}; {one_line(where)}", to=sys.stderr)
        sys.exit(1)


def entry(name: str, run: Callable[[Sequence[str]], int | None]) -> Callable[[], None]:
    """The ``main`` of the command ``name``: guarded, it exits with the code that ``run`` of its arguments returns."""

    def command() -> None:
        if (code := run(sys.argv[1:])) is not None:
            sys.exit(code)

    return lambda: guarded(command, name=f"flnl {name}", overrides=False)


def _demand_folder() -> None:
    """End the command if its working folder has been deleted, to which all that it names is relative."""
    try:
        Path.cwd()
    except FileNotFoundError:
        print_line("error: the working folder no longer exists: go to one that does, as by cd", to=sys.stderr)
        sys.exit(2)


def _path_at_fault(error: Exception, arguments: Sequence[str]) -> str | None:
    """The argument whose path the system has refused, if that is the cause of ``error``."""
    if isinstance(error, ValueError) and "null byte" in str(error):
        return next((argument for argument in arguments if "\0" in argument), None)
    if isinstance(error, RuntimeError) and "home directory" in str(error):  # of ~name, where nobody has the name
        return next((argument for argument in arguments if argument.startswith("~") or "=~" in argument), None)
    if not isinstance(error, OSError) or error.errno not in REFUSED or error.filename is None:
        return None
    path, here = str(Path(error.filename).absolute()), f"{Path.cwd()}/"
    typed = [(argument, str(Path(argument.partition("=")[2] or argument).absolute())) for argument in arguments]
    for argument, value in typed:
        above = value.startswith(f"{path}/") and not here.startswith(f"{path}/")  # each argument is below what is above
        if above or f"{path}/".startswith(f"{value}/"):
            return argument
    return None


REFUSED = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL, errno.ENXIO, errno.ENODEV),
)
"""Error numbers that mean a wrong path, which the user can correct; a full disk is not among them."""
