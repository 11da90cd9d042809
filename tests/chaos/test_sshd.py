"""sshd is killed, with all its sessions, and comes back: the run knows nothing of it, and its watcher is back too."""

from __future__ import annotations

from lab.lab import Lab

from .trial import GLOO, chance, trial


def test_a_killed_sshd_harms_no_run_and_its_watcher_misses_no_line(lab3: Lab) -> None:
    dice = chance()
    with trial(lab3, lab3.inventory(), GLOO, "150", "0.05") as run:
        for _ in range(3):
            run.wait_for_moment("random", 1, dice)
            for host in lab3.hosts:
                host.sshd_stop()
                host.sshd_kill_sessions()
            run.pass_time(dice.uniform(0, 3))
            for host in lab3.hosts:
                host.sshd_start()
        run.assert_ended(0, "succeeded", within=120)
    for rank in range(3):
        steps = [line.split()[-3] for line in run.output.splitlines() if f"rank {rank} step " in line]
        assert steps == [str(number) for number in range(150)]
