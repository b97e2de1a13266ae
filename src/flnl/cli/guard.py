"""The outermost frame of every command: errors in one line, and exit codes that scripts can rely on.

0 done, 1 the run failed, 2 the command or configuration is wrong, 130 and 143 stopped by Ctrl-C and SIGTERM.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence

from hydra.errors import (
    HydraException,
)
from omegaconf.errors import OmegaConfBaseException

from flnl.cli.explain import explain
from flnl.cli.overrides import check_words
from flnl.core.credentials import put_aside
from flnl.core.errors import Interrupted, UserError, in_one_line, one_line
from flnl.core.terminal import log_to_stderr, print_line

TRACEBACKS = "HYDRA_FULL_ERROR"


def guarded(entry: Callable[[], object], *, overrides: bool = True) -> None:
    """Run ``entry`` and leave the process with the right exit code; tracebacks only where ``HYDRA_FULL_ERROR=1``.

    The command's words are checked as ``overrides`` of the configuration, unless they are none. Credentials in them are
    put aside: nothing that reads ``sys.argv`` sees them.
    """
    sys.argv[1:] = put_aside(sys.argv[1:])
    log_to_stderr()
    wanted = os.environ.get(TRACEBACKS, "0") not in ("", "0")
    os.environ[TRACEBACKS] = "1"  # so that Hydra hands its errors over, to be said in one line here
    try:
        if overrides:
            check_words(sys.argv[1:])
        entry()
    except Interrupted as stopped:
        sys.exit(stopped.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (UserError, HydraException, OmegaConfBaseException) as error:
        if wanted:
            raise
        print_line(f"error: {one_line(explain(error, sys.argv[1:]))}", to=sys.stderr)
        sys.exit(2)
    except Exception as error:
        if wanted:
            raise
        if not overrides and (word := _path_at_fault(error, sys.argv[1:])) is not None:
            reason = error.strerror if isinstance(error, OSError) else error
            print_line(f"error: {one_line(f'{word}: {reason}')}", to=sys.stderr)
            sys.exit(2)
        print_line(f"error: the run failed: {one_line(in_one_line(error))}; {TRACEBACKS}=1 shows where", to=sys.stderr)
        sys.exit(1)


def _path_at_fault(error: Exception, words: Sequence[str]) -> str | None:
    """The word of the command whose path the system refuses, where that is what went wrong."""
    if isinstance(error, ValueError) and "null byte" in str(error):
        return next((word for word in words if "\0" in word), None)
    if not isinstance(error, OSError) or error.errno not in REFUSED or error.filename is None:
        return None
    path = os.fspath(error.filename)
    typed = [(word, word.partition("=")[2] or word) for word in words]
    near = (word for word, value in typed if f"{path}/".startswith(f"{value}/") or value.startswith(f"{path}/"))
    return next(near, None)


REFUSED = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL, errno.ENXIO, errno.ENODEV),
)
"""What a system says of a path that a person has to mend; a full disk is none of it."""
