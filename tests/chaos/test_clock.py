"""The clock of one host is an hour off, either way: nothing about a run depends on it.

A lab cannot shift a host's clock (a time namespace shifts only the monotonic ones), so all that runs there, our program
included, gets a library in front of libc that does.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from lab.host import Host
from lab.lab import Lab

from .trial import FOR_EVER, GLOO, chance, kill, trial, worker

SKEW = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *at) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, at);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) at->tv_sec += (HOURS) * 3600;
    return result;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""
TELLING = GLOO.replace('"begun"', '"begun", "at", int(time.time())')


def skewed_python(host: Host, hours: int) -> str:
    """The path on the host of a Python whose clock is so many hours ahead."""
    if not shutil.which("gcc"):
        pytest.skip("no gcc on this machine, to build what shifts a clock")
    source, library, program = host.home / "skew.c", host.home / "skew.so", host.home / "python"
    source.write_text(SKEW)
    subprocess.run(["gcc", "-shared", "-fPIC", f"-DHOURS={hours}", "-o", library, source, "-ldl"], check=True)
    program.write_text(f'#!/bin/sh\nLD_PRELOAD=/home/ann/skew.so exec {host.python} "$@"\n')
    for path in (library, program):
        path.chmod(0o755)
    return "/home/ann/python"


def inventory(lab: Lab, skewed: int, hours: int) -> Path:
    hosts = [{"name": host.name, "address": host.address} for host in lab.hosts]
    hosts[skewed]["python"] = skewed_python(lab.hosts[skewed], hours)
    return lab.inventory(hosts=hosts)


@pytest.mark.parametrize("hours", [1, -1])
@pytest.mark.parametrize("skewed", [0, 1], ids=["head", "other"])
def test_a_host_whose_clock_is_an_hour_off_takes_part(lab2: Lab, skewed: int, hours: int) -> None:
    with trial(lab2, inventory(lab2, skewed, hours), TELLING, "40", "0.05") as run:
        run.assert_ended(0, "succeeded", within=120)
    told = re.search(rf"rank {skewed} begun at (\d+)", run.output)
    assert told and abs(int(told[1]) - time.time() - hours * 3600) < 600, "the clock was not off"


@pytest.mark.parametrize("hours", [1, -1])
def test_a_failure_on_a_host_whose_clock_is_off_is_still_the_first(lab2: Lab, hours: int) -> None:
    dice = chance(hours)
    with trial(lab2, inventory(lab2, 1, hours), TELLING, FOR_EVER, "0.05") as run:
        run.wait_for_moment("random", 1, dice)
        kill(lab2.hosts[1], worker(lab2.hosts[1], run.run_id))
        run.assert_ended(1, "failed", "node-1: rank 1")
