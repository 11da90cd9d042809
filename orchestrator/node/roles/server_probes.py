"""Whether the SSH server of a silent node answers: then its host is up, though its recorder does not answer.

That changes nothing for the run: ranks run only as long as their node hears the head. It tells a user what to look at.
"""

import errno
import select
import socket
from typing import Dict

from ..link.contacts import Contacts

MOST = 16  # connections at a time


class ServerProbes:
    def __init__(self, contacts: Contacts) -> None:
        self._contacts = contacts
        self._dialled: Dict[int, socket.socket] = {}

    def begin(self, node: int) -> None:
        """Dial the SSH server of a node, if it is known. Never blocks."""
        self.end(node)
        contact = self._contacts.get(node)
        if contact is None or contact.sshd is None or len(self._dialled) >= MOST:
            return
        address, port = contact.sshd
        probe = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        probe.setblocking(False)
        try:
            in_progress = probe.connect_ex((address, port)) in (0, errno.EINPROGRESS)
        except OSError:  # it is no address
            in_progress = False
        if in_progress:
            self._dialled[node] = probe
        else:
            probe.close()

    def link_port(self, node: int) -> str:
        """The port at which its recorder should answer."""
        contact = self._contacts.get(node)
        return "port %s" % contact.port if contact is not None and contact.port else "the ports of the run"

    def end(self, node: int) -> bool:
        """Whether it has accepted the connection since `begin`."""
        probe = self._dialled.pop(node, None)
        if probe is None:
            return False
        with probe:
            poll = select.poll()
            poll.register(probe, select.POLLOUT)
            return bool(poll.poll(0)) and probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
