"""Tell the nodes of an attempt where all of them are, if their command or their launcher names them."""

from typing import Any, Dict, Optional, Tuple

from ..gang import gang_events, gang_orders
from ..gang.gang_state import State
from ..link.contacts import Contacts
from ..ranks import placeholders


class AllHosts:
    def __init__(self, spec: Dict[str, Any], contacts: Contacts) -> None:
        self._nodes = spec["nodes"]
        self._contacts = contacts
        self._are_named = placeholders.names_all_hosts(spec)
        self._once_per_host = spec["launcher"]["scope"] == "host"

    def order_of(self, state: State, number: int) -> Optional[gang_events.Order]:
        """As in gang_orders, complete."""
        order = gang_orders.order_of(state, number)
        return None if order is None else self.complete(order, state)

    def complete(self, order: gang_events.Order, state: State) -> gang_events.Order:
        """The order, with the hosts of its attempt if it is one to run. `state`: the order follows from it."""
        if not self._are_named or not isinstance(order, gang_events.Run):
            return order
        return order._replace(hosts=tuple(self._host(number, order, state) for number in state.team))

    def _host(self, number: int, order: gang_events.Run, state: State) -> Tuple[str, int]:
        """Address, and number of ranks."""
        contact = self._contacts.get(number)
        address = contact.addresses[0] if contact and contact.addresses else state.nodes[number].host
        return order.master_addr if number == state.head else address, self._ranks(number, state)

    def _ranks(self, number: int, state: State) -> int:
        if number < len(self._nodes):
            return int(self._nodes[number]["ranks"])
        return int(self._nodes[0]["ranks"]) if self._once_per_host else state.nodes[number].nproc  # it was added
