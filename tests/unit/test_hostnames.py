"""Ranges of hosts, and the patterns of --hosts."""

from __future__ import annotations

import pytest

from orchestrator.errors import UsageError
from orchestrator.inventory import hostnames

NAMES = ("lovelace", "gpu01", "gpu02", "gpu03", "gpu10", "fe80::1%eth0")


@pytest.mark.parametrize(
    ("pattern", "picked"),
    [
        ("gpu01", ["gpu01"]),
        ("gpu02,gpu01", ["gpu01", "gpu02"]),
        ("gpu[01-03]", ["gpu01", "gpu02", "gpu03"]),
        ("gpu[01,03]", ["gpu01", "gpu03"]),
        ("gpu[01-03]!gpu02", ["gpu01", "gpu03"]),
        ("gpu[01-03],!gpu02,lovelace", ["lovelace", "gpu01", "gpu03"]),
        ("!gpu[01-03]", ["lovelace", "gpu10", "fe80::1%eth0"]),
        (" gpu01 , gpu02 ", ["gpu01", "gpu02"]),
        ("*", list(NAMES)),
        ("gpu?1", ["gpu01"]),
        ("gpu*&*1", ["gpu01"]),
        ("!gpu*,gpu10", ["lovelace", "gpu10", "fe80::1%eth0"]),
        ("fe80::1%eth0", ["fe80::1%eth0"]),
    ],
)
def test_a_pattern_picks_hosts_in_their_own_order(pattern: str, picked: list[str]) -> None:
    assert list(hostnames.pick(NAMES, pattern)) == picked


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("lovelase", ["lovelase", "lovelace"]),  # what is wrong, then what may be meant
        ("zzz", ["zzz", "lovelace, gpu01"]),
        ("gpu[01-04]", ["gpu04", "gpu10"]),
        ("!gpu04", ["gpu04", "gpu10"]),
        ("cpu*", ["cpu*", "lovelace, gpu01"]),
        ("gpu01!gpu01", ["gpu01!gpu01", "lovelace, gpu01"]),
        ("", ["--hosts ''"]),
        (",", ["--hosts ,", "lovelace, gpu01"]),
        ("gpu[01-", ["gpu[01-", "gpu[01-16]"]),
        ("gpu[01-02]*", ["gpu[01-02]*", "gpu[01-16]"]),
        ("gpu[1-99999999]", ["gpu[1-99999999]", "10,000"]),
        ("-x", ["'-x'", "254"]),
        ("@group", ["'@group'", "254"]),
    ],
)
def test_a_pattern_that_means_nothing_is_refused(pattern: str, names: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        hostnames.pick(NAMES, pattern)
    said = str(refused.value)
    places = [said.find(name) for name in names]
    assert -1 not in places and places == sorted(places), said


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu", ["gpu"]),
        ("gpu[08-11]", ["gpu08", "gpu09", "gpu10", "gpu11"]),
        ("gpu[8-11]", ["gpu8", "gpu9", "gpu10", "gpu11"]),
        ("gpu[1-9/4]", ["gpu1", "gpu5", "gpu9"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("10.0.0.[9-10]", ["10.0.0.9", "10.0.0.10"]),
        ("fe80::[1-2]%eth0", ["fe80::1%eth0", "fe80::2%eth0"]),
    ],
)
def test_a_range_becomes_its_names(text: str, names: list[str]) -> None:
    assert list(hostnames.expand(text)) == names


@pytest.mark.parametrize(
    "text", ["a:[1-2]", "[1-2]-[1-999999999]", "a[1-2", "a]1[", "a[1--2]", "a[,]", "a[1-2]\n", "@a[1-2]", "%s[1-2]"]
)
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        hostnames.expand(text)


def test_jumps_name_their_hosts_first_hop_first() -> None:
    assert hostnames.jump_hosts("ann@bastion:2222,inner,fe80::1") == ("bastion", "inner", "fe80::1")
