"""A worker process: waits for work at its end of a connection, and is gone when the other end is."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import threading
from multiprocessing.connection import Connection

from flnl.core.payload import Params
from flnl.core.terminal import log_to_stderr
from flnl.engine.executors.serialization import Shared, decode
from flnl.engine.executors.shared_memory import Place
from flnl.engine.executors.worker_context import Workbench

CALL, WORK = b"c", b"w"
"""The first byte of a message: a call begins, or a piece of its work."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(connection: Connection, bench: Workbench, params: Params) -> None:
    """Work until the other end is closed. ``params`` lie where the parent writes those of each call.

    Signals to the whole group are for the parent, which finishes its round; a worker goes when the parent does.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=_end_with, args=(connection.fileno(),), daemon=True).start()
    while True:
        try:
            message = memoryview(connection.recv_bytes())
            if message[:1] == CALL:
                bench.begin(params, message[1:])
            else:
                connection.send_bytes(bench.work(message[1:]))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def _end_with(descriptor: int) -> None:
    """End this process when the other end is closed, whatever it is at."""
    hung_up = select.poll()
    hung_up.register(descriptor, 0)
    hung_up.poll()
    os._exit(0)


def main() -> None:
    """What a process runs that was started afresh. Its arguments: a connection."""
    log_to_stderr()
    connection = Connection(int(sys.argv[1]))
    try:
        places: tuple[Place, Place] = pickle.loads(connection.recv_bytes())
    except EOFError:
        return
    kit, received = (place.map().value() for place in places)
    recipe, images = kit
    made, inner = decode(recipe, Shared())
    serve(connection, Workbench(made.network(), inner, images), received)
