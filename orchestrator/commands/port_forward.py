"""`port-forward`: reach a port of a host of a run, such as that of TensorBoard, from here."""

from __future__ import annotations

import secrets

from ..errors import UsageError
from ..runs import choice, forwarding
from .context import find_run_early, load_inventory_of_run, open_fleet, stderr_console
from .shell import find_host


def port_forward(run_name: str, place: str, local_port: int | None, inventory_path: str | None) -> int:
    """`place`: `PORT` of the head, or `HOST:PORT`. Returns when it is interrupted."""
    host_name, port = _parse(place)
    if host_name is not None and host_name.isdecimal():  # LOCAL:PORT, as kubectl and docker have it
        local_port, host_name = local_port or int(host_name), None
    console = stderr_console()
    inventory = load_inventory_of_run(inventory_path, None, run_name)
    with open_fleet(inventory, short_timeout=True) as fleet:
        run = find_run_early(fleet, inventory, run_name, console, choice.is_known).run
        host = find_host(run, inventory, host_name)
        with forwarding.listen(port if local_port is None else local_port) as listener:
            forwarder = forwarding.Forwarder(fleet, host, port, lambda: secrets.token_hex(16), console.warning)
            try:
                if problem := forwarder.check():
                    console.warning(f"{problem}. Connections work as soon as a program listens there")
                address = f"http://{forwarding.LOCAL}:{listener.getsockname()[1]}"
                console.note(f"{address} is port {port} of {host.name}; Ctrl-C ends the forwarding")
                forwarder.serve(listener)
            except KeyboardInterrupt:
                return 0
            finally:
                forwarder.close()


def _parse(place: str) -> tuple[str | None, int]:
    host, _, text = place.rpartition(":")
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise UsageError(f"{place}: expected PORT, HOST:PORT or LOCAL:PORT, such as gpu2:6006, with a port up to 65535")
    return host or None, int(text)
