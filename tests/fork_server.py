"""Engines for the tests, forked from a process that has imported theirs: that takes five seconds.

``fork_server.py serve SOCKET OPTIONS`` loads an engine as a worker with these options does, and has
a fork of itself be the worker of each client. It plays nothing itself, so that a fork begins as a
worker begins. It lives as long as somebody holds it: keeps a connection on which `HOLD` was sent
and sent back. ``fork_server.py join SOCKET OPTIONS`` is a client: started in place of a worker, it
gives the fork its own stdin, stdout and stderr, and both live as long as the other.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

READY = b"ready\n"
HOLD, FORK = b"h", b"f"


# The client


def join(path: str, options: str) -> int:
    """Stand for a worker until it ends; its exit code, negative if a signal ended it."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        socket.send_fds(server, [FORK], [0, 1, 2])
        server.sendall(options.encode() + b"\n")
        # They are the worker's from here on: whoever reads them sees them close when it ends.
        for stream in range(3):
            os.close(stream)
        with server.makefile() as lines:
            return int(lines.readline())


# The server


def load(options: str) -> None:
    """Load the engine, so that a fork that loads it again has only to look at its own options.

    What goes wrong here goes wrong in each fork again, which tells its client.
    """
    from unittest.mock import patch

    import msgspec

    from kvproof.fuzz.drivers import worker
    from kvproof.fuzz.drivers.wire import Options

    install = worker.shims.install
    done = {}

    def install_once(**asked: object) -> object:
        if not done:
            done.update(notes=install(**asked), asked=asked)  # type: ignore[arg-type]
        assert asked == done["asked"], "these shims are not those of the process to be forked"
        return done["notes"]

    worker.shims.install = install_once  # type: ignore[assignment]
    with suppress(Exception), patch.object(worker, "watch"):  # each fork watches its own launches
        worker.load(msgspec.json.decode(options, type=Options))


def work(streams: list[int], options: str) -> None:
    """Be a worker with these as stdin, stdout and stderr; does not return."""
    import traceback

    from kvproof.fuzz.drivers import worker

    code = 1
    try:
        for target, given in enumerate(streams):
            os.dup2(given, target)
            os.close(given)
        worker.main([options])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


class Server:
    """Forks workers, kills those whose client is gone, and tells the others how theirs ended."""

    def __init__(self, path: str) -> None:
        self._ready = selectors.DefaultSelector()
        self._clients: dict[int, socket.socket] = {}
        self._holders: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._watch(self._listener, self._accept)

    def run(self) -> None:
        """Until nobody holds it any more and the last worker has ended."""
        begun = False
        while not begun or self._holders or self._clients:
            for key, _ in self._ready.select():
                key.data()
            begun = begun or bool(self._holders)

    def _watch(self, what: int | socket.socket, then: Callable[[], None]) -> None:
        self._ready.register(what, selectors.EVENT_READ, then)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        asked, streams, _, _ = socket.recv_fds(client, 1, 3)
        if asked == HOLD:
            self._holders.add(client)
            self._watch(client, lambda: self._let_go(client))
            client.sendall(HOLD)
        elif asked == FORK:
            with client.makefile() as lines:
                self._fork(client, streams, lines.readline())
        else:  # it was killed
            client.close()

    def _let_go(self, holder: socket.socket) -> None:
        self._ready.unregister(holder)
        self._holders.remove(holder)
        holder.close()

    def _fork(self, client: socket.socket, streams: list[int], options: str) -> None:
        pid = os.fork()
        if not pid:
            os.setpgid(0, 0)
            work(streams, options)
        with suppress(OSError):  # whichever of the two comes first
            os.setpgid(pid, pid)
        for stream in streams:
            os.close(stream)
        self._clients[pid] = client
        ended = os.pidfd_open(pid)
        self._watch(ended, lambda: self._end(pid, ended))
        self._watch(client, lambda: self._kill(pid))

    def _kill(self, pid: int) -> None:
        if pid in self._clients:  # else it has just ended
            self._ready.unregister(self._clients[pid])
            os.killpg(pid, signal.SIGKILL)

    def _end(self, pid: int, ended: int) -> None:
        _, status = os.waitpid(pid, 0)
        self._ready.unregister(ended)
        os.close(ended)
        client = self._clients.pop(pid)
        with suppress(KeyError):  # unless it is gone, and was not watched any more
            self._ready.unregister(client)
        with suppress(OSError):
            client.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
        client.close()


def serve(path: str, options: str) -> None:
    """Load, and be a server."""
    load(options)
    gc.collect()
    gc.freeze()  # what is shared with the forks is not touched
    server = Server(path)
    os.write(1, READY)
    server.run()


if __name__ == "__main__":
    task, *given = sys.argv[1:]
    if task == "serve":
        serve(*given)
    else:
        code = join(*given)
        if code < 0:
            os.kill(os.getpid(), -code)
        os._exit(code)
