"""Copy a container image from one host to another. The bytes go between them, not through the controller.

One host offers the image: it listens until its session ends. The other connects, loads what comes, and proves it.
"""

import contextlib
import glob
import hashlib
import os
import select
import socket
import subprocess
import tempfile
import threading
import time
from typing import Any, Callable, Dict, Iterator, Optional, Set

from ..host import engines, network
from ..host.run_command import output_of
from ..link.link import Link, LinkClosed
from ..resume.channel import Channel, connect
from ..resume.channel import Refused as RefusedByPeer
from . import container_probe
from .wire import Refused

PIECE = 512 * 1024  # bytes that travel at once
ALIVE_EVERY = 10  # s between two signs of life of an engine that prints nothing
TELL_EVERY = 1.0  # s between two reports of how much has arrived
ASK_WINDOW = 20.0  # s for an engine to answer

ABANDONED = 600.0  # s without a byte after which a part is of a copy that has ended; a live one gives up after 60

_parts: Set[str] = set()  # files that are being written
Emit = Callable[[Dict[str, Any], bytes], None]


def find(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """`arguments`: container, as for `probe`. `size`: bytes, None if it is unknown."""
    with tempfile.TemporaryDirectory() as folder:
        found = container_probe.look(arguments["container"], os.path.join(folder, "question.json"))
    answer = {name: found[name] for name in ("engine", "image", "code")}
    answer["why"] = found["error"]
    return dict(answer, size=_size(found["engine"], arguments["container"]["image"]) if found["image"] else None)


def _size(engine: str, image: str) -> Optional[int]:
    if image[0] == "/":
        return os.stat(image).st_size
    if not engines.ENGINES[engine].records:
        return None
    text = output_of(engines.size_argv(engine, image), ASK_WINDOW).strip()
    return int(text) if text.isdecimal() else None


def offer(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """`arguments`: engine image key node ports cluster_address."""
    engine, image = arguments["engine"], arguments["image"]
    if os.path.isdir(image):
        raise Refused("unknown", "%s is a folder; make a .sif file of it, which can be copied" % image)
    if image[0] != "/" and not engines.ENGINES[engine].records:
        raise Refused("unknown", "%s is a container of %s; set the path of its .sqsh file" % (image, engine))
    given = arguments["cluster_address"]
    addresses = [given] if given else network.candidates()
    try:
        listeners = network.listen_on(addresses, network.random_ports(*arguments["ports"]))
    except OSError as error:
        raise Refused("port-in-use", "no free port in %d-%d" % tuple(arguments["ports"])) from error
    for listener in listeners:
        listener.setblocking(True)
        threading.Thread(target=_accept, args=(listener, arguments), daemon=True).start()
    names = [listener.getsockname() for listener in listeners]
    return {"addresses": [name[0] for name in names], "port": names[0][1]}


def _accept(listener: socket.socket, arguments: Dict[str, Any]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # this program ends
        threading.Thread(target=_send, args=(connection, arguments), daemon=True).start()


def _send(connection: socket.socket, arguments: Dict[str, Any]) -> None:
    try:
        channel = Channel(Link(connection, bytes.fromhex(arguments["key"]), arguments["node"]))
    except LinkClosed:
        connection.close()
        return  # a stranger
    digest, sent = hashlib.sha256(), 0
    try:
        try:
            for piece in _pieces(arguments["engine"], arguments["image"]):
                if not piece:
                    channel.send(alive=True)
                    continue
                channel.send_piece(sent, piece)
                digest.update(piece)
                sent += len(piece)
        except (OSError, Refused) as error:
            channel.send(error=str(error))
            return
        channel.send(sha256=digest.hexdigest())
        channel.receive()  # the other side closes the connection when it has everything
    except LinkClosed:
        pass
    finally:
        channel.close()


def _pieces(engine: str, image: str) -> Iterator[bytes]:
    """The file, or the archive that the engine makes of the image; b"" while it makes a large layer ready."""
    if image[0] == "/":
        with open(image, "rb") as file:
            yield from iter(lambda: file.read(PIECE), b"")
        return
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen([engine, "save", image], stdout=subprocess.PIPE, stderr=errors) as process:
            assert process.stdout is not None
            try:
                ready, data = select.poll(), b"-"
                ready.register(process.stdout, select.POLLIN)
                while data:
                    if not ready.poll(1000 * ALIVE_EVERY):
                        yield b""
                        continue
                    data = os.read(process.stdout.fileno(), PIECE)
                    if data:
                        yield data
            finally:
                process.stdout.close()  # a reader that gives up ends the engine
        if process.returncode:
            raise Refused("unknown", "%s save: %s" % (engine, _last_line(errors, process.returncode)))


def take(arguments: Dict[str, Any], emit: Emit) -> Dict[str, Any]:
    """`arguments`: engine image size addresses port key node source. Tells how much has arrived every second."""
    engine, image = arguments["engine"], arguments["image"]
    _check_space(engine, image, arguments["size"])
    began = time.monotonic()
    try:
        key, addresses = bytes.fromhex(arguments["key"]), arguments["addresses"]
        channel = connect(addresses, arguments["port"], key, arguments["node"], arguments["source"])
        try:
            arriving = _Arriving(channel)
            with _telling(arriving, emit):
                (_store_file if image[0] == "/" else _load)(engine, image, arriving)
        finally:
            channel.close()
    except (LinkClosed, RefusedByPeer) as error:
        raise Refused("unknown", "the image did not arrive: %s" % error) from error
    return {"bytes": arriving.count, "seconds": time.monotonic() - began, "sha256": arriving.digest.hexdigest()}


class _Arriving:
    """What the other host sends."""

    def __init__(self, channel: Channel) -> None:
        self.count = 0
        self.digest = hashlib.sha256()
        self._channel = channel

    def pieces(self) -> Iterator[bytes]:
        """Until the end, if their digest is that of the other host. Raises LinkClosed or RefusedByPeer."""
        while True:
            message = self._channel.receive()
            if isinstance(message, dict):
                if "alive" in message:
                    continue
                break
            offset, data = message
            if offset != self.count:
                raise LinkClosed("a piece is missing")
            self.digest.update(data)
            self.count += len(data)
            yield data
        if "error" in message:
            raise RefusedByPeer(str(message["error"]))
        if message.get("sha256") != self.digest.hexdigest():
            raise LinkClosed("its SHA-256 is not that on the other host")


@contextlib.contextmanager
def _telling(arriving: _Arriving, emit: Emit) -> Iterator[None]:
    """Tell how much has arrived every second, also while the engine unpacks it."""
    done = threading.Event()

    def tell() -> None:
        while not done.wait(TELL_EVERY):
            emit({"received": arriving.count}, b"")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def _store_file(engine: str, image: str, arriving: _Arriving) -> None:
    folder, name = os.path.split(image)
    part = os.path.join(folder, ".%s.%s" % (name, os.urandom(4).hex()))
    try:
        os.makedirs(folder, exist_ok=True)
        _parts.add(part)
        with open(part, "xb") as file:
            _remove_abandoned(folder, name, os.fstat(file.fileno()).st_mtime)
            for data in arriving.pieces():
                file.write(data)
        os.replace(part, image)
    except OSError as error:
        raise Refused("unknown", "cannot write %s: %s" % (image, error.strerror)) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)
        _parts.discard(part)


def _remove_abandoned(folder: str, name: str, now: float) -> None:
    """Remove parts of copies that were killed. `now`: by the clock of the file system."""
    for path in glob.glob(os.path.join(glob.escape(folder), ".%s.%s" % (glob.escape(name), 8 * "[0-9a-f]"))):
        with contextlib.suppress(OSError):
            if now - os.stat(path).st_mtime > ABANDONED:
                os.unlink(path)


def give_up() -> None:
    """Remove what has arrived: the session ends, and its threads with it."""
    for part in list(_parts):
        with contextlib.suppress(OSError):
            os.unlink(part)


def _load(engine: str, image: str, arriving: _Arriving) -> None:
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([engine, "load"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors)
        assert process.stdin is not None
        try:
            pieces = arriving.pieces()
            with contextlib.suppress(BrokenPipeError):  # its exit status tells why
                for data in pieces:
                    process.stdin.write(data)
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            if process.poll() is None or not process.returncode:
                for _ in pieces:  # an engine that has all layers need not read them, but the digest is of all bytes
                    pass
        except BaseException:
            process.kill()  # before it loads a part
            process.wait()
            raise
        if process.wait():
            raise Refused("unknown", "%s load: %s" % (engine, _last_line(errors, process.returncode)))
    if not output_of(engines.image_argv(engine, image), ASK_WINDOW).split():
        raise Refused("container-image-missing", "%s has loaded the image, but not as %s" % (engine, image))


def _check_space(engine: str, image: str, size: Optional[int]) -> None:
    """Refuse an image that the disk has no room for."""
    place = os.path.dirname(image) if image[0] == "/" else output_of(engines.store_argv(engine), ASK_WINDOW)
    place = place.strip()
    while place and not os.path.isdir(place):
        place = os.path.dirname(place) if place != "/" else ""
    if not place or size is None:
        return
    filesystem = os.statvfs(place)
    free = filesystem.f_bavail * filesystem.f_frsize
    if free < size:
        raise Refused(
            "disk-full",
            "the image has %d MiB, but %s only %d MiB left; free some space" % (size >> 20, place, free >> 20),
        )


def _last_line(errors: Any, status: int) -> str:
    errors.seek(0)
    lines = errors.read().decode("utf-8", "backslashreplace").strip().splitlines()
    return str(lines[-1]) if lines else "exit status %d" % status
