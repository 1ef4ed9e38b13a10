"""What is wrong with the nodes: each check on looks that are sound, doubtful, unfit, or tell nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cvs.config import AortaConfig, ClusterConfig
from cvs.launch import LaunchPlan, Site, plan_aorta
from cvs.preflight import (
    FREE_BYTES,
    Finding,
    JobLook,
    NodeLook,
    bad,
    findings_of_jobs,
    findings_of_nodes,
    nccl_interfaces,
    table,
)

MIB = 1 << 20
Words = tuple[str, str]
"""Status and text of a finding."""
GOOD: Words = ("good", "")


def plan_of(*nodes: str, local: bool = False, **keys: Any) -> LaunchPlan:
    """A plan for these nodes; further keys are the benchmark file's."""
    names = nodes or ("a", "b")
    cluster = {"username": "alice", "transport": "local" if local else "ssh"}
    addresses = {name: {"vpc_ip": f"10.0.0.{number}"} for number, name in enumerate(names, 1)}
    bench = {"aorta_path": "/srv/aorta", **({"runtime": "process"} if local else {}), **keys}
    return plan_aorta(
        ClusterConfig.model_validate({**cluster, "node_dict": addresses}),
        AortaConfig.model_validate(bench),
        Site(run_id="r1", nodes_dir="/srv/nodes", master_port=29500),
    )


def told(findings: list[Finding], check: str) -> dict[str, Words]:
    """What this check found, by node; it says one thing of each."""
    found: dict[str, Words] = {
        each.node: (each.status, each.text) for each in findings if each.check == check
    }
    assert len(found) == sum(each.check == check for each in findings)
    return found


def seen(look: NodeLook, check: str, **keys: Any) -> Words | None:
    """What this check says of a node that is alone."""
    return told(findings_of_nodes(plan_of("a", **keys), {"a": look}), check).get("a")


def test_nothing_is_said_of_nodes_that_nobody_looked_at() -> None:
    plan = plan_of("a", "b", "c")
    assert {each.node for each in findings_of_nodes(plan, {"b": NodeLook(gpus=8)})} == {"b"}
    assert {each.node for each in findings_of_jobs(plan, {"b": JobLook()})} == {"b"}


# --- disk and GPUs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("free", [FREE_BYTES, FREE_BYTES + 1, 1 << 60])
def test_room_enough(free: int) -> None:
    assert seen(NodeLook(free_bytes=free), "disk") == GOOD


@pytest.mark.parametrize(("free", "mib"), [(0, 0), (64 * MIB, 64), (FREE_BYTES - 1, 1023)])
def test_too_little_room(free: int, mib: int) -> None:
    text = f"only {mib} MiB are free at aorta_path /srv/aorta; a run needs 1024 MiB for what it leaves"
    assert seen(NodeLook(free_bytes=free), "disk") == ("bad", text)


def test_room_that_is_not_known() -> None:
    assert seen(NodeLook(), "disk") is None


UNCOUNTED = "its GPUs cannot be counted: there is no nvidia-smi that lists them"
GPUS: list[tuple[str, int | None, Words | None]] = [
    ("rocm", 8, GOOD),
    ("rocm", 7, ("bad", "7 GPUs in /dev/dri, and gpus_per_node is 8")),
    ("rocm", 0, ("bad", "0 GPUs in /dev/dri, and gpus_per_node is 8")),
    ("rocm", 9, ("warning", "9 GPUs in /dev/dri, and gpus_per_node is 8")),
    ("cuda", 8, GOOD),
    ("cuda", 7, ("bad", "7 GPUs that nvidia-smi lists, and gpus_per_node is 8")),
    ("cuda", 9, ("warning", "9 GPUs that nvidia-smi lists, and gpus_per_node is 8")),
    ("cuda", None, ("warning", UNCOUNTED)),
    ("none", 7, None),
    ("none", None, None),
]


@pytest.mark.parametrize(("accelerator", "gpus", "words"), GPUS)
def test_gpus(accelerator: str, gpus: int | None, words: Words | None) -> None:
    assert seen(NodeLook(gpus=gpus), "gpus", accelerator=accelerator) == words


# --- interfaces -------------------------------------------------------------------------------------------

THERE = ("lo", "eth0", "eth1", "ib0")
NOT_THERE = "names no interface of this node, which has lo, eth0, eth1, ib0"
LOOPBACK = "leaves only the loopback, over which no other node is reached"
INTERFACES: list[tuple[dict[str, str], Words | None]] = [
    ({}, None),
    ({"NCCL_SOCKET_IFNAME": ""}, None),
    ({"GLOO_SOCKET_IFNAME": ""}, None),
    ({"NCCL_SOCKET_IFNAME": "eth"}, GOOD),
    ({"NCCL_SOCKET_IFNAME": "=eth0"}, GOOD),
    ({"NCCL_SOCKET_IFNAME": "=eth"}, ("bad", f"NCCL_SOCKET_IFNAME==eth {NOT_THERE}")),
    ({"NCCL_SOCKET_IFNAME": "enp,eth1"}, GOOD),
    ({"NCCL_SOCKET_IFNAME": "ens"}, ("bad", f"NCCL_SOCKET_IFNAME=ens {NOT_THERE}")),
    ({"NCCL_SOCKET_IFNAME": "^lo"}, GOOD),
    ({"NCCL_SOCKET_IFNAME": "^lo,eth,ib"}, ("bad", f"NCCL_SOCKET_IFNAME=^lo,eth,ib {NOT_THERE}")),
    ({"NCCL_SOCKET_IFNAME": "^eth,ib"}, ("bad", f"NCCL_SOCKET_IFNAME=^eth,ib {LOOPBACK}")),
    ({"NCCL_SOCKET_IFNAME": "lo"}, ("bad", f"NCCL_SOCKET_IFNAME=lo {LOOPBACK}")),
    ({"NCCL_SOCKET_IFNAME": "lo,eth"}, GOOD),
    ({"GLOO_SOCKET_IFNAME": "eth0"}, GOOD),
    ({"GLOO_SOCKET_IFNAME": "eth0,ib0"}, GOOD),
    ({"GLOO_SOCKET_IFNAME": "eth"}, ("bad", f"GLOO_SOCKET_IFNAME=eth {NOT_THERE}")),
    ({"GLOO_SOCKET_IFNAME": "eth0,ib9"}, ("bad", f"GLOO_SOCKET_IFNAME=ib9 {NOT_THERE}")),
    ({"GLOO_SOCKET_IFNAME": "lo"}, ("bad", f"GLOO_SOCKET_IFNAME=lo {LOOPBACK}")),
    (
        {"NCCL_SOCKET_IFNAME": "eth", "GLOO_SOCKET_IFNAME": "ens"},
        ("bad", f"GLOO_SOCKET_IFNAME=ens {NOT_THERE}"),
    ),
]


@pytest.mark.parametrize(("variables", "words"), INTERFACES)
def test_what_the_libraries_are_told_to_use(variables: dict[str, str], words: Words | None) -> None:
    plan = plan_of("a", "b", environment=variables)
    looks = {"a": NodeLook(interfaces=THERE)}
    assert told(findings_of_nodes(plan, looks), "interfaces").get("a") == words


def test_a_node_that_does_not_tell_its_interfaces() -> None:
    assert seen(NodeLook(), "interfaces", environment={"NCCL_SOCKET_IFNAME": "eth0"}) is None


@pytest.mark.parametrize("where", [{"nodes": ("a",)}, {"nodes": ("a", "b"), "local": True}])
def test_the_loopback_does_where_all_nodes_are_one_machine(where: dict[str, Any]) -> None:
    plan = plan_of(*where.pop("nodes"), environment={"GLOO_SOCKET_IFNAME": "lo"}, **where)
    found = findings_of_nodes(plan, {"a": NodeLook(interfaces=THERE)})
    assert told(found, "interfaces") == {"a": GOOD}


def test_a_container_with_a_network_of_its_own_has_other_interfaces() -> None:
    plan = plan_of(docker={"network_mode": "bridge"}, environment={"NCCL_SOCKET_IFNAME": "=eth0"})
    node, job = NodeLook(interfaces=("lo", "ens1")), JobLook(interfaces=("lo", "eth0"))
    assert told(findings_of_nodes(plan, {"a": node}), "interfaces") == {}
    assert told(findings_of_jobs(plan, {"a": job}), "interfaces") == {"a": GOOD}


def test_a_container_with_the_nodes_network_is_asked_once() -> None:
    plan = plan_of(environment={"NCCL_SOCKET_IFNAME": "eth"})
    assert told(findings_of_jobs(plan, {"a": JobLook(interfaces=("lo",))}), "interfaces") == {}


NAMES = st.text("eb01", min_size=1, max_size=4)


def taken_one_by_one(value: str, there: list[str]) -> list[str]:
    """As NCCL reads the variable (socket.cc, utils.cc): every interface against every name of the list."""
    excludes = value[0] == "^"
    value = value[excludes:]
    whole = value[0] == "="
    value = value[whole:]
    taken = []
    for interface in there:
        is_listed = False
        for name in value.split(","):
            begins = len(interface) >= len(name) and interface[: len(name)] == name
            if name and (interface == name if whole else begins):
                is_listed = True
        if is_listed is not excludes:
            taken.append(interface)
    return taken


@given(
    sign=st.sampled_from(["", "^", "=", "^="]),
    names=st.lists(st.one_of(NAMES, st.just("")), min_size=1, max_size=4).filter(any),
    there=st.lists(NAMES, unique=True, max_size=6),
)
def test_nccls_list_is_read_as_nccl_reads_it(sign: str, names: list[str], there: list[str]) -> None:
    value = sign + ",".join(names)
    assert nccl_interfaces(value, tuple(there)) == taken_one_by_one(value, there)


@given(names=st.lists(NAMES, min_size=1, max_size=4), there=st.lists(NAMES, unique=True, max_size=6))
def test_what_is_not_taken_is_taken_by_the_opposite(names: list[str], there: list[str]) -> None:
    value = ",".join(names)
    for sign in ("", "="):
        taken = nccl_interfaces(f"{sign}{value}", tuple(there))
        others = nccl_interfaces(f"^{sign}{value}", tuple(there))
        assert sorted([*taken, *others]) == sorted(there)


# --- what must be the same everywhere ---------------------------------------------------------------------


def files_told(digests: dict[str, dict[str, str]], **revisions: str) -> dict[str, Words]:
    looks = {node: NodeLook(digests=files, revision=revisions.get(node)) for node, files in digests.items()}
    return told(findings_of_nodes(plan_of(*looks), looks), "files")


def voted(digests: str) -> dict[str, str]:
    """Nodes `n0`, `n1`, … whose one file has these digests: of which it is said that it is another."""
    found = files_told({f"n{number}": {"f": digest} for number, digest in enumerate(digests)})
    assert len(found) == len(digests)
    return {node: text for node, (status, text) in found.items() if status == "bad"}


def differs(others: str) -> str:
    return f"f below aorta_path is not what it is on {others}; make them the same"


VOTES = [
    ("A", {}),
    ("AAAA", {}),
    ("AB", {"n1": differs("n0")}),
    ("AABB", {"n2": differs("n0, n1"), "n3": differs("n0, n1")}),
    ("BAAA", {"n0": differs("n1, n2, n3")}),
    ("ABAA", {"n1": differs("n0, n2, n3")}),
    ("ABC", {"n1": differs("n0"), "n2": differs("n0")}),
    ("ABBC", {"n0": differs("n1, n2"), "n3": differs("n1, n2")}),
    ("AAAAB", {"n4": differs("n0, n1, n2 and 1 more")}),
    ("A" * 300 + "B" + "A" * 211, {"n300": differs("n0, n1, n2 and 508 more")}),
]


@pytest.mark.parametrize(("digests", "words"), VOTES, ids=[digests[:5] for digests, _ in VOTES])
def test_the_few_are_told_what_the_many_have(digests: str, words: dict[str, str]) -> None:
    assert voted(digests) == words


@given(st.text("ABC", min_size=1, max_size=9))
def test_nobody_is_blamed_who_is_with_most(digests: str) -> None:
    count = Counter(digests)
    most = next(digest for digest in digests if count[digest] == max(count.values()))
    assert set(voted(digests)) == {f"n{number}" for number, digest in enumerate(digests) if digest != most}


def test_each_file_that_differs_is_named() -> None:
    looks = {
        node: NodeLook(digests={"train.py": digest, "config.yaml": digest, "same": "1"})
        for node, digest in (("a", "1"), ("b", "2"))
    }
    found = bad(findings_of_nodes(plan_of(), looks))
    assert [str(each) for each in found] == [
        "b: train.py below aorta_path is not what it is on a; make them the same",
        "b: config.yaml below aorta_path is not what it is on a; make them the same",
    ]


def test_a_file_that_is_not_everywhere_is_compared_where_it_is() -> None:
    assert files_told({"a": {"f": "1", "g": "1"}, "b": {"g": "1"}}) == {"a": GOOD, "b": GOOD}


def test_of_nodes_without_any_file_nothing_is_said() -> None:
    assert files_told({"a": {"f": "1"}, "b": {}}) == {"a": GOOD}


COMMITS = {"a": "1111111111111111", "b": "2222222222222222", "c": "2222222222222222"}


def test_checkouts_at_several_commits() -> None:
    files = {node: {"f": "1"} for node in COMMITS}
    text = "aorta_path is at commit 111111111111, on b, c at 222222222222"
    assert files_told(files, **COMMITS) == {"a": ("bad", text), "b": GOOD, "c": GOOD}


def test_a_file_that_differs_says_more_than_the_commit() -> None:
    found = files_told({"a": {"f": "1"}, "b": {"f": "2"}, "c": {"f": "2"}}, **COMMITS)
    assert found["a"] == ("bad", differs("b, c"))


def test_what_is_no_checkout_is_not_compared_with_one() -> None:
    assert files_told({"a": {"f": "1"}, "b": {"f": "1"}}, a="1" * 40) == {"a": GOOD, "b": GOOD}


def image_told(*images: str | None) -> dict[str, Words]:
    looks = {f"n{number}": JobLook(image=image) for number, image in enumerate(images)}
    plan = plan_of(*looks, docker={"image": "example/torch:2"})
    return told(findings_of_jobs(plan, looks), "image")


def test_one_image_everywhere() -> None:
    assert image_told("sha256:1", "sha256:1") == {"n0": GOOD, "n1": GOOD}


def test_no_image_where_there_is_no_container() -> None:
    assert image_told(None, None) == {}


def test_one_name_of_two_images() -> None:
    found = image_told("sha256:0123456789abcdef", "sha256:0123456789abcdef", "sha256:fedcba9876543210")
    text = (
        "image example/torch:2 is fedcba987654 here, and 0123456789ab on n0, n1;"
        " docker.pull: always, or one digest in docker.image, makes them one"
    )
    assert found == {"n0": GOOD, "n1": GOOD, "n2": ("bad", text)}


# --- what was tried where the job will run ----------------------------------------------------------------


def tried(accelerator: str, **problems: str) -> dict[str, list[Words]]:
    look = JobLook(problems=problems)
    found: dict[str, list[Words]] = {}
    for each in findings_of_jobs(plan_of("a", accelerator=accelerator), {"a": look}):
        found.setdefault(each.check, []).append((each.status, each.text))
    return found


def test_all_that_was_tried_worked() -> None:
    assert tried("rocm") == {"devices": [GOOD], "write": [GOOD]}
    assert tried("cuda") == tried("none") == {"write": [GOOD]}


def test_devices_and_folders_that_are_closed() -> None:
    found = tried("rocm", devices="/dev/kfd cannot be opened", write="/mnt cannot be written")
    assert found == {
        "devices": [("bad", "/dev/kfd cannot be opened")],
        "write": [("bad", "/mnt cannot be written")],
    }


def test_files_that_will_belong_to_another_are_a_warning() -> None:
    assert tried("none", owner="belongs to 65534") == {"write": [GOOD, ("warning", "belongs to 65534")]}


# --- where the nodes meet ---------------------------------------------------------------------------------

HEAD = "10.0.0.1"


def meeting(
    *looks: JobLook, local: bool = False, accelerator: str = "rocm", **environment: str
) -> dict[str, Words]:
    """What is said of the rendezvous on nodes `a`, `b`, … that look so."""
    found = dict(zip("abcd", looks, strict=False))
    plan = plan_of(*found, local=local, accelerator=accelerator, environment=environment)
    return told(findings_of_jobs(plan, found), "rendezvous")


def at(*addresses: str, **keys: Any) -> JobLook:
    return JobLook(addresses=addresses, **keys)


def own(*addresses: str) -> JobLook:
    return JobLook(addresses=(HEAD,), own_addresses=addresses)


def test_one_node_meets_nobody() -> None:
    assert meeting(at("127.0.0.1")) == {}


def test_one_address_everywhere() -> None:
    assert meeting(at(HEAD), at(HEAD)) == {"a": GOOD, "b": GOOD}


def test_a_name_that_is_not_resolved() -> None:
    text = "the rendezvous address head cannot be resolved: Name or service not known"
    found = meeting(at(HEAD), JobLook(problems={"rendezvous": text}))
    assert found == {"a": GOOD, "b": ("bad", text)}


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "::1", "::1%lo"])
def test_a_node_that_takes_itself_for_the_head(address: str) -> None:
    text = (
        f"the rendezvous address {HEAD} is {address} here, this node itself;"
        " mend its /etc/hosts, or give the head's address as vpc_ip"
    )
    assert meeting(at(HEAD), at(address), at(HEAD)) == {"a": GOOD, "b": ("bad", text), "c": GOOD}


def test_the_loopback_among_other_addresses() -> None:
    assert meeting(at(HEAD), at(HEAD, "::1"))["b"][0] == "bad"


def test_the_head_may_know_itself_by_the_loopback() -> None:
    assert meeting(at("127.0.1.1"), at(HEAD), at(HEAD)) == {"a": GOOD, "b": GOOD, "c": GOOD}


@pytest.mark.parametrize("address", ["10.0.0.127", "fe80::1%lo", "128.0.0.1", "no address"])
def test_what_is_no_loopback(address: str) -> None:
    assert meeting(at(address), at(address)) == {"a": GOOD, "b": GOOD}


def test_another_address_than_on_most() -> None:
    text = f"the rendezvous address {HEAD} is 10.9.9.9 here, and {HEAD} on b, c"
    assert meeting(at("10.9.9.9"), at(HEAD), at(HEAD)) == {"a": ("bad", text), "b": GOOD, "c": GOOD}


def test_the_same_addresses_in_another_order() -> None:
    assert meeting(at(HEAD, "fd00::1"), at("fd00::1", HEAD)) == {"a": GOOD, "b": GOOD}


def test_local_nodes_meet_at_home() -> None:
    look = at("127.0.0.1", own_addresses=("127.0.0.1",))
    assert meeting(look, look, local=True, accelerator="none") == {"a": GOOD, "b": GOOD}


STAYS = (
    "its own name is {} here, which Gloo tells the other nodes; set GLOO_SOCKET_IFNAME, or mend /etc/hosts"
)


@pytest.mark.parametrize("addresses", [["127.0.1.1"], ["::1"], ["127.0.0.1", "::1"]])
def test_a_node_whose_own_name_is_the_loopback(addresses: list[str]) -> None:
    found = meeting(own(HEAD), own(*addresses), accelerator="none")
    assert found == {"a": GOOD, "b": ("warning", STAYS.format(", ".join(addresses)))}


SOUND: list[tuple[list[str], dict[str, Any]]] = [
    ([], {"accelerator": "none"}),
    (["10.0.0.2"], {"accelerator": "none"}),
    (["127.0.1.1", "10.0.0.2"], {"accelerator": "none"}),
    (["127.0.1.1"], {"accelerator": "none", "GLOO_SOCKET_IFNAME": "eth0"}),
    (["127.0.1.1"], {"accelerator": "rocm"}),
]


@pytest.mark.parametrize(("addresses", "keys"), SOUND)
def test_a_node_that_gloo_finds_or_does_not_need(addresses: list[str], keys: dict[str, Any]) -> None:
    assert meeting(own(HEAD), own(*addresses), **keys) == {"a": GOOD, "b": GOOD}


def test_what_is_bad_comes_before_a_warning() -> None:
    look = at("127.0.1.1", own_addresses=("127.0.1.1",))
    assert meeting(at(HEAD), look, accelerator="none")["b"][0] == "bad"


# --- for the user -----------------------------------------------------------------------------------------


def finding(node: str, check: str, status: Any = "good") -> Finding:
    return Finding(node=node, check=check, status=status, text="" if status == "good" else "why")


def test_the_table_has_a_row_for_each_node_and_a_column_for_each_check_that_was_made() -> None:
    findings = [
        finding("gpu01", "port"),
        finding("gpu02", "gpus", "warning"),
        finding("gpu01", "gpus"),
        finding("gpu02", "reach"),
        finding("gpu03", "reach", "bad"),
    ]
    assert table(["gpu01", "gpu02", "gpu03"], findings).splitlines() == [
        "node   reach  gpus  port",
        "gpu01  –      ok    ok",
        "gpu02  ok     warn  –",
        "gpu03  BAD    –     –",
    ]


@given(st.lists(st.sampled_from(["good", "warning", "bad"]), min_size=1, max_size=5))
def test_a_cell_shows_the_worst(statuses: list[str]) -> None:
    marks = {"good": "ok", "warning": "warn", "bad": "BAD"}
    worst = max(statuses, key=list(marks).index)
    shown = table(["a"], [finding("a", "disk", status) for status in statuses])
    assert shown == f"node  disk\na     {marks[worst]}"


def many(count: int, **unfit: str) -> list[str]:
    nodes = [f"n{number}" for number in range(count)]
    findings = [finding(node, "reach", unfit.get(node, "good")) for node in nodes]
    return table(nodes, findings).splitlines()


def test_eight_sound_nodes_have_a_row_each() -> None:
    assert len(many(8)) == len(many(10, n3="bad", n4="warning")) - 2 == 9


def test_more_sound_nodes_are_one_row() -> None:
    assert many(9) == ["node      reach", "9 others  ok"]
    assert many(512, n7="bad", n300="warning") == [
        "node        reach",
        "n7          BAD",
        "n300        warn",
        "510 others  ok",
    ]


def test_the_one_row_does_not_claim_what_was_not_looked_at() -> None:
    nodes = [f"n{number}" for number in range(10)]
    findings = [*(finding(node, "reach") for node in nodes), finding("n0", "interfaces", "bad")]
    assert table(nodes, findings).splitlines() == [
        "node      reach  interfaces",
        "n0        ok     BAD",
        "9 others  ok     –",
    ]


def test_a_table_of_nothing() -> None:
    assert table(["a"], []) == "node\na"


def test_a_finding_is_told_with_its_node() -> None:
    assert str(finding("gpu01", "disk", "bad")) == "gpu01: why"
