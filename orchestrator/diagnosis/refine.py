"""Rewrite the suspects by what several lines show together, as one error has several causes. Pure.

The rules run in the order of RULES. Each sees the suspects that the rules before it left, so the order matters;
tests/unit/test_rules.py shows for which neighbours.
"""

from __future__ import annotations

from collections.abc import Callable

from .rules import (
    connections,
    devices,
    endings,
    hidden_modules,
    lost_hosts,
    missing_files,
    own_calls,
    run_record,
    shell_commands,
    unreadable_files,
)
from .scene import Scene
from .suspects import Suspects

Rule = Callable[[Suspects, Scene], Suspects]

RULES: tuple[Rule, ...] = (
    # by the output
    hidden_modules.find_hidden_module,
    endings.discount_overcome_trouble,
    own_calls.find_unset_variable,
    own_calls.find_own_port,
    own_calls.find_missing_command,
    own_calls.explain_required_local_rank,
    hidden_modules.explain_import,
    unreadable_files.find_unreadable_file,
    devices.check_device_ordinals,
    devices.explain_missing_nccl,
    devices.check_gpu_memory,
    connections.check_loopback,
    connections.check_unserved,
    connections.check_timeouts,
    endings.add_rank_to_memory_kills,
    endings.find_crash_place,
    endings.find_lone_sigterm,
    endings.drop_cancelled_steps,
    missing_files.find_missing_folder,
    missing_files.check_written_files,
    endings.check_teardown,
    connections.find_silent_host,
    connections.find_missed_rendezvous,
    connections.find_absent_peer,
    endings.drop_stuck_watchdog,
    shell_commands.explain_cd,
    shell_commands.explain_unset_variable,
    devices.check_allocation_size,
    # by what the hosts of the run know
    run_record.drop_own_signals,
    run_record.add_sent_signal,
    run_record.add_killed_launcher,
    run_record.add_full_disk,
    endings.find_refusal,
    run_record.add_stop,
    run_record.check_cgroup_kills,
    run_record.find_early_finisher,
    lost_hosts.add_lost_host,
    run_record.drop_after_stacks,
    run_record.add_hang_causes,
    shell_commands.explain_missing_script,
    shell_commands.find_failed_command,
    shell_commands.explain_missing_program,
    unreadable_files.explain_read_only,
    missing_files.check_sent_code,
)


def refine(suspects: Suspects, scene: Scene, rules: tuple[Rule, ...] = RULES) -> Suspects:
    for rule in rules:
        suspects = rule(suspects, scene)
    return suspects
