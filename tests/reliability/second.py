"""A second API server over the same etcd, which is behind the first: what a client sees that comes to it from there.

It is behind for real: a relay holds back what etcd tells it, or it stands still. What is asked of it reaches etcd all
the same, so that its clients act on what was.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.cluster.proxy import Fault, Request
from tests.harness.controlplane import ControlPlane
from tests.harness.processes import Daemon
from tests.reliability.killer import AFTER, call_of
from tests.reliability.life import Life
from tests.reliability.views import View, calm

LAG_SECONDS = 0.7
OLD_SECONDS = 4.0
CHUNK = 65536
BEHIND = {
    "lagging": f"of an API server that hears all of etcd {LAG_SECONDS} s late",
    "stopped": f"of an API server that stands still for {OLD_SECONDS:.0f} s at the first write",
    "older": f"killed after its first write, it comes to an API server that for {OLD_SECONDS:.0f} s knows nothing of the stage",  # noqa: E501
}
"""Name of a view -> what it is, in words."""


class Line:
    """Connections to etcd by way of another port; answers are passed on later, or for a time not at all, in order."""

    def __init__(self, to: int) -> None:
        self._to, self._loop = to, asyncio.new_event_loop()
        self._free = asyncio.Event()
        self._free.set()
        self._lag = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self._server, self.port = server, int(server.sockets[0].getsockname()[1])

    def hold(self) -> None:
        """Nothing that etcd says comes through any more."""
        self._loop.call_soon_threadsafe(self._free.clear)

    def free(self) -> None:
        """What was held back comes, and what follows."""
        self._loop.call_soon_threadsafe(self._free.set)

    def lag(self, seconds: float) -> None:
        """All that etcd says from now on comes so much later."""
        self._lag = seconds

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._carry, "127.0.0.1", 0)

    async def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_etcd, to_etcd = await asyncio.open_connection("127.0.0.1", self._to)
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        ways = (_passed(reader, to_etcd), self._read(from_etcd, late), self._told(late, writer))
        for way in ways:
            task = self._loop.create_task(way)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _read(self, reader: asyncio.StreamReader, late: asyncio.Queue[tuple[float, bytes]]) -> None:
        while True:
            chunk = await _chunk(reader)
            await late.put((self._loop.time() + self._lag, chunk))
            if not chunk:
                return

    async def _told(self, late: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        with _ended(writer):
            while True:
                due, chunk = await late.get()
                await asyncio.sleep(due - self._loop.time())
                await self._free.wait()
                if not chunk:
                    return
                writer.write(chunk)
                await writer.drain()


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(CHUNK)
    except OSError:
        return b""


async def _passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with _ended(writer):
        while chunk := await _chunk(reader):
            writer.write(chunk)
            await writer.drain()


@contextmanager
def _ended(writer: asyncio.StreamWriter) -> Iterator[None]:
    """Close it after the block, which ends where the other side is gone."""
    try:
        yield
    except OSError:
        pass
    finally:
        writer.close()


class Second:
    """The second API server of a cluster, and what one life may see of it. End it in the thread that made it."""

    def __init__(self, cluster: ControlPlane, name: str) -> None:
        self.line = Line(cluster.etcd_port)
        self.url, self.server = _started(cluster, name, self.line)

    def close(self) -> None:
        self.server.stop(grace_seconds=0)
        self.line.close()

    @property
    def views(self) -> dict[str, tuple[str, View]]:
        """As VIEWS."""
        begins = (self._lagging, self._stopped, self._older)
        return {name: (how, begin) for (name, how), begin in zip(BEHIND.items(), begins, strict=True)}

    def calm(self, life: Life) -> None:
        """All is as it is."""
        calm(life)
        life.proxy.url = life.cluster.url
        self.line.lag(0.0)
        self.line.free()
        self.server.process.send_signal(signal.SIGCONT)

    def _lagging(self, life: Life) -> None:
        self.line.lag(LAG_SECONDS)
        self._move(life)

    def _stopped(self, life: Life) -> None:
        self._move(life)

        def stop(request: Request) -> None:
            self.server.process.send_signal(signal.SIGSTOP)
            _later(lambda: self.server.process.send_signal(signal.SIGCONT))

        life.killer.rule = _once(lambda request: call_of(request) is not None, stop)

    def _older(self, life: Life) -> None:
        self.line.hold()
        life.killer.arm((1, AFTER))

        def come(request: Request) -> None:
            life.proxy.url = self.url
            _later(self.line.free)

        life.killer.rule = _once(lambda _: life.killer.victim is not None, come)

    def _move(self, life: Life) -> None:
        """Whatever it has open ends, and what it asks next, it asks here."""
        life.proxy.url = self.url
        life.proxy.end_streams()


def _started(cluster: ControlPlane, name: str, line: Line) -> tuple[str, Daemon]:
    try:
        return cluster.second_apiserver(name, f"http://127.0.0.1:{line.port}")
    except BaseException:
        line.close()
        raise


def _later(act: Callable[[], None]) -> None:
    timer = threading.Timer(OLD_SECONDS, act)
    timer.daemon = True
    timer.start()


def _once(when: Callable[[Request], bool], act: Callable[[Request], None]) -> Callable[[Request], Fault | None]:
    """The rule of a proxy that lets all through, and acts at the first request that is so."""
    lock, done = threading.Lock(), list[Request]()

    def rule(request: Request) -> Fault | None:
        with lock:
            if not done and when(request):
                done.append(request)
                act(request)
        return None

    return rule
