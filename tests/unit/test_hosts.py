"""Names of hosts, written short: what they unfold to, and what is no such name."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cvs.errors import ConfigError
from cvs.hosts import folded, hosts_in, hosts_in_lines

UNFOLDED = [
    ("a", "a"),
    ("a[1-3]", "a1 a2 a3"),
    ("a[01-03]", "a01 a02 a03"),
    ("a[008-011]", "a008 a009 a010 a011"),
    ("a[8-11]", "a8 a9 a10 a11"),
    ("a[0-2]", "a0 a1 a2"),
    ("a[00-02]", "a00 a01 a02"),
    ("a[098-101]", "a098 a099 a100 a101"),
    ("a[5-5]", "a5"),
    ("a[7]", "a7"),
    ("a[07]", "a07"),
    ("a[1,3]", "a1 a3"),
    ("a[1, 3]", "a1 a3"),
    ("a[3,1]", "a3 a1"),
    ("a[1,3,5-7,010-011]", "a1 a3 a5 a6 a7 a010 a011"),
    ("a[1-2]-ib", "a1-ib a2-ib"),
    ("a[1-2].cluster.example", "a1.cluster.example a2.cluster.example"),
    ("[1-2]a", "1a 2a"),
    ("r[1-2]n[1,3]", "r1n1 r1n3 r2n1 r2n3"),
    ("r[1-2]n[01-02]-ib", "r1n01-ib r1n02-ib r2n01-ib r2n02-ib"),
    ("r[1-2][3-4]", "r13 r14 r23 r24"),
    ("r[1]n[2]p[3-4]", "r1n2p3 r1n2p4"),
    ("10.0.0.5-7", "10.0.0.5 10.0.0.6 10.0.0.7"),
    ("10.0.0.9-11", "10.0.0.9 10.0.0.10 10.0.0.11"),
    ("10.0.0.5-10.0.0.7", "10.0.0.5 10.0.0.6 10.0.0.7"),
    ("10.0.0.5-5", "10.0.0.5"),
    ("10.0.0.254-255", "10.0.0.254 10.0.0.255"),
    ("10.0.[0-1].5", "10.0.0.5 10.0.1.5"),
    ("10.0.0.[5,7]", "10.0.0.5 10.0.0.7"),
    ("10.0.0.5", "10.0.0.5"),
    ("fd00::5", "fd00::5"),
    ("node-5-9", "node-5-9"),
    ("a,b", "a b"),
    ("a b\tc\nd", "a b c d"),
    ("b, a ,c", "b a c"),
    ("a,,b,", "a b"),
    ("a[1-2],10.0.0.5-6,login", "a1 a2 10.0.0.5 10.0.0.6 login"),
    ("", ""),
    (" , ", ""),
]


@pytest.mark.parametrize(("text", "hosts"), UNFOLDED, ids=[text for text, _ in UNFOLDED])
def test_a_list_unfolds_in_its_order(text: str, hosts: str) -> None:
    assert hosts_in(text) == hosts.split()


LINES = [
    ("a\nb\n", "a b"),
    ("a[1-2]\r\nb\r\n", "a1 a2 b"),
    ("# the first rack\na  # its head\n\n   \nb, c d\n", "a b c d"),
    ("a#[1-2]\n", "a"),
    ("#a\n", ""),
    ("a[1,3]\n10.0.0.5-6", "a1 a3 10.0.0.5 10.0.0.6"),
]


@pytest.mark.parametrize(("text", "hosts"), LINES, ids=[repr(text) for text, _ in LINES])
def test_a_file_holds_some_in_each_line(text: str, hosts: str) -> None:
    assert hosts_in_lines(text) == hosts.split()


REFUSED = [
    ("a[3-1]", "a[3-1]: the range ends (1) before it begins (3)"),
    ("10.0.0.9-5", "10.0.0.9-5: the range ends (5) before it begins (9)"),
    ("a[x-y]", "a[x-y]: [x-y] is no range such as [01-16] or [1,3,5-7]"),
    ("a[]", "a[]: [] is no range"),
    ("a[1-]", "a[1-]: [1-] is no range"),
    ("a[-3]", "a[-3]: [-3] is no range"),
    ("a[1-2-3]", "a[1-2-3]: [1-2-3] is no range"),
    ("a[1,]", "a[1,]: [1,] is no range"),
    ("a[1;2]", "a[1;2]: [1;2] is no range"),
    ("b a[1", "a[1: a bracket without its partner"),
    ("a1]", "a1]: a bracket without its partner"),
    ("a[1]]", "a bracket without its partner"),
    ("a]b[1]", "a bracket without its partner"),
    ("a[[1]]", "a bracket without its partner"),
    ("a[1-100001]", "a[1-100001]: names more than 100000 hosts"),
    ("a[1-60000],b[1-60000]", "names more than 100000 hosts"),
    ("10.0.0.250-260", "260"),
    ("10.0.0.5-10.0.1.9", "10.0.0.5-10.0.1.9"),
]


@pytest.mark.parametrize(("text", "words"), REFUSED, ids=[text for text, _ in REFUSED])
def test_what_is_no_range_is_refused_by_its_own_words(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hosts_in(text)
    [line] = caught.value.problems
    assert words in line


@pytest.mark.parametrize("text", ["a,b,a", "a[1-3],a2", "a[1,1]", "10.0.0.5-7,10.0.0.6", "a[1-2]1 a11 a2"])
def test_a_host_stands_there_once(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^\S+: is named twice$"):
        hosts_in(text)


def test_every_host_that_is_named_twice_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        hosts_in("b,a,c,a,b")
    assert caught.value.problems == ("a: is named twice", "b: is named twice")


def test_1_and_01_are_two_hosts() -> None:
    assert hosts_in("a1 a01") == ["a1", "a01"]


def test_as_many_as_are_allowed() -> None:
    assert len(hosts_in("a[1-100000]")) == 100_000


def test_a_product_of_ranges_is_refused_before_it_is_unfolded() -> None:
    """Ten thousand million names fit into no memory; here into 300 MB."""
    script = (
        "import resource; from cvs.errors import ConfigError; from cvs.hosts import hosts_in\n"
        "resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))\n"
        "try: hosts_in('a[1-99999][1-99999]')\n"
        "except ConfigError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "a[1-99999][1-99999]: names more than 100000 hosts\n", done.stderr[-300:]


@given(st.integers(0, 5000), st.integers(0, 50), st.integers(1, 6))
def test_a_range_with_leading_zeros_keeps_its_width(first: int, more: int, width: int) -> None:
    begin, end = f"{first:0{width}}", str(first + more)
    hosts = hosts_in(f"n[{begin}-{end}]x")
    assert [int(host[1:-1]) for host in hosts] == list(range(first, first + more + 1))
    assert hosts[0] == f"n{begin}x"
    if begin.startswith("0") and len(end) <= width:
        assert {len(host) for host in hosts} == {width + 2}


# --- written short ----------------------------------------------------------------------------------------

FOLDED = [
    ("", ""),
    ("a", "a"),
    ("a1", "a1"),
    ("a1 a2 a3", "a[1-3]"),
    ("a3 a2 a1", "a[3,2,1]"),
    ("a1 a3 a4 a5 a7", "a[1,3-5,7]"),
    ("node-0 node-1", "node-[0-1]"),
    ("a8 a9 a10", "a[8-10]"),
    ("a08 a09 a10", "a[08-10]"),
    ("a099 a100 a101", "a[099-101]"),
    ("a9 a010", "a[9,010]"),
    ("a0 a00 a1 a01", "a[0,00,1,01]"),
    ("a1-ib a2-ib", "a[1-2]-ib"),
    ("a1 b2", "a1,b2"),
    ("a1 b a2", "a1,b,a2"),
    ("a1 a2 b1 b2", "a[1-2],b[1-2]"),
    ("r1n1 r1n2 r2n1 r2n2", "r1n[1-2],r2n[1-2]"),
    ("r1n1 r2n1 r2n2", "r[1-2]n1,r2n2"),
    ("10.0.0.9 10.0.0.10 10.0.1.9", "10.0.0.[9-10],10.0.1.9"),
    ("fd00::8 fd00::9 fd00::a", "fd00::[8-9],fd00::a"),
    ("1 2", "[1-2]"),
]


@pytest.mark.parametrize(("hosts", "text"), FOLDED, ids=[text for _, text in FOLDED])
def test_hosts_written_short(hosts: str, text: str) -> None:
    assert folded(hosts.split()) == text
    assert hosts_in(text) == hosts.split()


NAMES = st.from_regex(r"[a-c]?[0-3]{0,3}[-.n]?(?:0?[0-9]|1[0-2])(?:-ib)?", fullmatch=True)
ADDRESSES = st.ip_addresses().map(str) | st.integers(0, 300).map(
    lambda number: f"10.0.{number // 256}.{number % 256}"
)


@given(st.lists(NAMES | ADDRESSES, unique=True))
def test_they_unfold_to_the_same_in_the_same_order(hosts: list[str]) -> None:
    assert hosts_in(folded(hosts)) == hosts


@given(st.integers(0, 2000), st.integers(2, 300), st.integers(1, 5))
def test_hosts_that_are_numbered_through_are_one_range(first: int, count: int, width: int) -> None:
    text = folded([f"n{number:0{width}}x" for number in range(first, first + count)])
    assert text == f"n[{first:0{width}}-{first + count - 1:0{width}}]x"
