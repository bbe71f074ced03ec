"""Slurm's compressed lists of hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch_contract.schedulers.host_list import MOST_HOSTS, expand


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login", "login"),
        ("a,b.example.org,c_1", "a b.example.org c_1"),
        ("n[1-3]", "n1 n2 n3"),
        ("n[001-003,7],gpu-a[1-2]-x,login", "n001 n002 n003 n7 gpu-a1-x gpu-a2-x login"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[9-10]", "n9 n10"),
        ("r[1-2]n[03,5]", "r1n03 r1n5 r2n03 r2n5"),
        ("[1-2]", "1 2"),
        ("n[4]", "n4"),
    ],
)
def test_lists_as_slurm_writes_them(text: str, hosts: str) -> None:
    assert expand(text) == tuple(hosts.split())


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,", "n[", "n]", "n[]", "n[1", "n[1-", "n[1-]", "n[-1]", "n[3-1]", "n[1--2]", "n[1,,2]", "n[[1]]", "a b",
     "n[1-2]x[", "n[a-b]", "n[1-2-3]", "n[1234567890]", "n\n", "(null)", "n[\u0661]"],
)  # fmt: skip
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        expand(text)


def test_a_list_is_bounded_before_it_is_made() -> None:
    assert len(expand(f"n[1-{MOST_HOSTS}]")) == MOST_HOSTS
    for text in (f"n[0-{MOST_HOSTS}]", "n[0-999999999]", "a[0-999]b[0-999]c[0-999]", f"x,n[1-{MOST_HOSTS}]"):
        with pytest.raises(ValueError, match="more than 65536 hosts"):
            expand(text)
    with pytest.raises(ValueError, match="too long"):
        expand("n" * (1 << 20) + "n")


def compressed(hosts: list[tuple[str, str, str]]) -> str:
    """Hosts (before, digits, after) as Slurm writes them: neighbours that differ in their digits share brackets."""
    groups: list[tuple[str, str, list[str]]] = []
    for before, digits, after in hosts:
        if not groups or groups[-1][:2] != (before, after):
            groups.append((before, after, []))
        ranges = groups[-1][2]
        first, _, last = ranges[-1].partition("-") if ranges else ("", "", "")
        last = last or first
        if last and len(last) == len(digits) and int(digits) == int(last) + 1:
            ranges[-1] = f"{first}-{digits}"
        else:
            ranges.append(digits)
    return ",".join(f"{before}[{','.join(ranges)}]{after}" for before, after, ranges in groups)


names = st.from_regex(r"[a-z](-?[a-z]){0,3}", fullmatch=True)
digits = st.builds(lambda number, width: f"{number:0{width}}", st.integers(0, 1200), st.integers(1, 5))


@given(st.lists(st.tuples(names, digits, names | st.just("")), min_size=1, max_size=40))
def test_what_was_compressed_expands_to_the_same_hosts(hosts: list[tuple[str, str, str]]) -> None:
    assert expand(compressed(hosts)) == tuple("".join(host) for host in hosts)
    ordered = sorted(hosts)
    assert expand(compressed(ordered)) == tuple("".join(host) for host in ordered)


@given(st.text(alphabet="n1[]-,. 0", max_size=30) | st.text(max_size=20))
def test_any_text_is_a_list_or_is_refused(text: str) -> None:
    try:
        hosts = expand(text)
    except ValueError:
        return
    assert hosts
    assert not any(set(host) & set("[], \n") for host in hosts)
