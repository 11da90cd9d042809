"""Choose environment variables for the ranks from the facts of all hosts, and say why. Pure.

A value of the user wins. Each host chooses its interface (node/ranks/launch.py). The controller chooses the address of
the head (runs/rendezvous.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..answers.facts import Facts
from .network import active_rdma, has_ipv6

FAST = 100_000  # Mbit/s: above this, one thread and one socket of NCCL do not fill the link


@dataclass(frozen=True)
class AutoEnv:
    variable: str
    value: str
    why: str


def choose(facts: Mapping[str, Facts]) -> tuple[AutoEnv, ...]:
    """The variables to set, the same on all hosts."""
    if len(facts) < 2:
        return ()
    variables = []
    if len({has_ipv6(fact) for fact in facts.values()}) > 1:
        variables.append(AutoEnv("NCCL_SOCKET_FAMILY", "AF_INET", "not all hosts have IPv6"))
    with_gpus = all(fact.gpus for fact in facts.values())
    rdma = [bool(active_rdma(fact)) for fact in facts.values()]
    if any(rdma) and not all(rdma):
        variables.append(AutoEnv("NCCL_IB_DISABLE", "1", "not all hosts have active RDMA ports"))
    if with_gpus and not all(rdma) and all(_fastest(fact) >= FAST for fact in facts.values()):
        # recommended by NCCL's documentation for 100 Gbit/s networks without RDMA
        variables.append(AutoEnv("NCCL_SOCKET_NTHREADS", "4", "100 Gbit/s without RDMA"))
        variables.append(AutoEnv("NCCL_NSOCKS_PERTHREAD", "4", "100 Gbit/s without RDMA"))
    return tuple(variables)


def _fastest(fact: Facts) -> int:
    return max((interface.speed for interface in fact.interfaces if interface.up and not interface.bridge), default=-1)
