"""A worker process: serves a connection, and exits when the other end closes."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import threading
from multiprocessing.connection import Connection

from flnl.console.terminal import log_to_stderr
from flnl.core.payload import Params
from flnl.engine.executors.serialization import Shared, decode
from flnl.engine.executors.shared_memory import Place
from flnl.engine.executors.worker_context import WorkerContext

CALL, WORK = b"c", b"w"
"""First byte of a message: the start of a call, or a piece of its work."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(connection: Connection, context: WorkerContext, params: Params) -> None:
    """Serve until the other end closes. ``params`` are in shared memory, where the parent writes them for each call.

    The worker ignores signals: the parent handles them and finishes its round, and the worker ends with the parent.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=_end_with, args=(connection.fileno(),), daemon=True).start()
    while True:
        try:
            message = memoryview(connection.recv_bytes())
            if message[:1] == CALL:
                context.begin(params, message[1:])
            else:
                connection.send_bytes(context.work(message[1:]))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def _end_with(descriptor: int) -> None:
    """End this process as soon as the other end closes, even during work."""
    hung_up = select.poll()
    hung_up.register(descriptor, 0)
    hung_up.poll()
    os._exit(0)


def main() -> None:
    """Entry point of a spawned worker; its argument is the descriptor of its connection."""
    log_to_stderr()
    connection = Connection(int(sys.argv[1]))
    try:
        places: tuple[Place, Place] = pickle.loads(connection.recv_bytes())
    except EOFError:
        return
    kit, received = (place.map().value() for place in places)
    recipe, images = kit
    made, inner = decode(recipe, Shared())
    serve(connection, WorkerContext(made.network(), inner, images), received)
