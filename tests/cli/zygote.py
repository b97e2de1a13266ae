"""A process that has imported everything and forks a run on request, so that a start takes no seconds.

Requests and answers are lines of JSON. What is forked has its own folder, output and signals: a process as any other.
"""

import json
import os
import signal
import sys
import traceback
from typing import Any, NoReturn


def serve() -> None:
    """Answer requests until the input ends: ``start`` gives a process id, ``poll`` its exit code or null."""
    for line in sys.stdin:
        request = json.loads(line)
        answer = start(request) if request["do"] == "start" else poll(request["pid"])
        print(json.dumps(answer), flush=True)


def start(request: dict[str, Any]) -> int:
    """Fork a run."""
    pid = os.fork()
    if pid == 0:
        become(request)
    return pid


def become(request: dict[str, Any]) -> NoReturn:
    """The forked side."""
    code = 70
    try:
        os.setsid()
        for number, name in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
            os.dup2(os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.chdir(request["cwd"])
        os.environ.update(request["env"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.argv = ["flnl", *request["words"]]
        code = outcome()
    except KeyboardInterrupt:  # before the entry point was reached
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def outcome() -> int:
    """The exit code that ``main`` ends with."""
    from flnl.commands.run import main

    try:
        main()
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    return 0


def poll(pid: int) -> int | None:
    """The exit code of a process, as a shell gives it; None while it runs."""
    found, status = os.waitpid(pid, os.WNOHANG)
    if not found:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    import sklearn.mixture  # noqa: F401 (for the runs)

    import flnl.commands.run
    import flnl.run.session  # noqa: F401

    print(json.dumps("ready"), flush=True)
    serve()
