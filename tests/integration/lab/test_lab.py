"""The lab is what it is said to be: nodes of their own, faults that are faults, and heal undoes them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import paramiko
import pytest

from cvs.config import load_cluster
from lab import faults
from lab.__main__ import main
from lab.cluster import Lab
from lab.faults import WORK, Fault, heal
from lab.machine import LabError, run, wait_for
from lab.node import Node
from lab.root_folder import BY_PASSWORD, CVS, NO_DOCKER, User

pytestmark = pytest.mark.lab

KEEPS_OUT = [
    (faults.link_down, "No route to host"),
    (faults.blackhole, "Connection timed out"),
    (faults.hang, "timed out during banner exchange"),
    (faults.power_off, "No route to host"),
    (faults.stop_sshd, "Connection refused"),
    (faults.host_key, "Host key verification failed"),
]


def said(lab: Lab, node: Node, *words: str) -> str:
    """What a command that succeeds says over ssh."""
    done = lab.ssh(node, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def assert_sound(lab: Lab, node: Node) -> None:
    assert said(lab, node, "hostname") == node.name
    assert said(lab, node, "docker info --format '{{.Name}}'") == node.name


def start_container(lab: Lab, node: Node, image: str) -> None:
    said(lab, node, "docker run --detach --name left --stop-timeout 1", image, "sleep 600")


def sleeps(node: Node) -> bool:
    """Whether the command of the container runs."""
    return "sleep 600" in node.run("ps", "-e", "-o", "args=").stdout.splitlines()


def test_each_node_is_a_machine_of_its_own(lab: Lab) -> None:
    for node in lab.nodes:
        assert_sound(lab, node)
    first, second = (node.run("docker", "info", "--format", "{{.ID}}").stdout for node in lab.nodes[:2])
    assert first != second


def test_disks_are_the_nodes_own_and_one_folder_is_shared(lab: Lab) -> None:
    node0, node1 = lab.nodes[:2]
    said(lab, node1, f"mkdir {WORK} && touch {WORK}/here /shared/everywhere")
    assert said(lab, node1, f"ls {WORK}") == "here"
    assert lab.ssh(node0, f"ls {WORK}").returncode == 2
    assert said(lab, node0, "ls /shared") == "everywhere"


def test_a_privileged_container_has_the_devices_of_gpus(lab: Lab, tiny_image: str) -> None:
    shown = said(
        lab, lab.nodes[1], "docker run --rm --privileged --network host --ipc host --user root",
        "--device /dev/kfd --device /dev/dri --group-add video --group-add render --cap-add SYS_PTRACE",
        "--security-opt seccomp=unconfined --ulimit memlock=-1 --ulimit stack=67108864", tiny_image,
        "sh -c 'hostname; cat /dev/kfd; ls /dev/kfd /dev/dri; id -Gn'",
    )  # fmt: skip
    devices = "/dev/kfd /dev/dri: card0 card1 renderD128 renderD129"
    assert shown.split() == ["node1", *devices.split(), "root", "video", "render"]


def test_images_have_one_id_on_all_nodes(lab: Lab, tiny_image: str) -> None:
    ids = {node.run("docker", "images", "--quiet", "--no-trunc", tiny_image).stdout for node in lab.nodes}
    assert len(ids) == 1


def test_who_is_not_in_the_group_docker_is_refused_by_the_engine(lab: Lab) -> None:
    done = lab.ssh(lab.nodes[0], "docker info", user=NO_DOCKER)
    assert done.returncode == 1
    assert "permission denied" in done.stdout + done.stderr


def log_in(lab: Lab, user: User, password: str | None = None, key: Path | None = None) -> None:
    with paramiko.SSHClient() as client:
        client.load_host_keys(str(lab.known_hosts))
        client.connect(
            lab.nodes[0].address,
            username=user.name,
            password=password,
            key_filename=str(key) if key else None,
            look_for_keys=False,
            allow_agent=False,
        )


def test_logins_by_password_and_by_another_key(lab: Lab) -> None:
    log_in(lab, CVS, key=lab.key)
    log_in(lab, BY_PASSWORD, password=lab.password)
    with pytest.raises(paramiko.AuthenticationException):
        log_in(lab, CVS, password=lab.password)
    with pytest.raises(paramiko.AuthenticationException):
        log_in(lab, CVS, key=lab.other_key)


def test_a_program_of_a_node_can_be_replaced(lab: Lab) -> None:
    program = lab.nodes[1].root / "opt/node/bin/rocm-smi"
    program.write_text("#!/bin/sh\necho no GPU\n")
    program.chmod(0o755)
    assert said(lab, lab.nodes[1], "rocm-smi") == "no GPU"
    assert lab.ssh(lab.nodes[0], "rocm-smi").returncode == 127


def test_the_cluster_file_is_one_of_cvs(lab: Lab, cluster_file: Callable[..., Path]) -> None:
    cluster = load_cluster(cluster_file(2))
    assert list(cluster.node_dict) == [node.address for node in lab.nodes[:2]]
    assert cluster.head == lab.nodes[0].address
    assert cluster.username == CVS.name
    assert cluster.warnings() == []


def test_four_nodes_reach_each_other_by_name(lab4: Lab, cluster_file: Callable[..., Path]) -> None:
    assert len(load_cluster(cluster_file(4)).node_dict) == 4
    for node in lab4.nodes:
        assert_sound(lab4, node)
        for other in lab4.nodes:
            answer = node.run("bash", "-c", f"exec 3<>/dev/tcp/{other.name}/22; head -c 4 <&3").stdout
            assert answer == "SSH-"


@pytest.mark.full
def test_up_changes_nothing_on_a_sound_node_and_mends_another(lab: Lab) -> None:
    node0, node1 = lab.nodes[:2]
    before, dead = node0.pid(), node1.pid()
    assert dead is not None
    os.kill(dead, signal.SIGKILL)
    lab.up(2)
    assert node0.pid() == before
    assert_sound(lab, node1)


@pytest.mark.full
@pytest.mark.parametrize(("fault", "words"), KEEPS_OUT)
def test_a_fault_keeps_clients_out_until_it_is_healed(lab: Lab, fault: Fault, words: str) -> None:
    node0, node1 = lab.nodes[:2]
    fault(node1)
    done = lab.ssh(node1, "hostname")
    assert done.returncode == 255
    assert words in done.stderr
    assert_sound(lab, node0)
    heal(node1)
    assert_sound(lab, node1)


@pytest.mark.full
@pytest.mark.parametrize(("fault", "goes_on"), [(faults.stop_dockerd, False), (faults.kill_dockerd, True)])
def test_an_engine_that_is_gone(lab: Lab, tiny_image: str, fault: Fault, goes_on: bool) -> None:
    node = lab.nodes[1]
    start_container(lab, node, tiny_image)
    assert sleeps(node)
    fault(node)
    assert "Cannot connect to the Docker daemon" in lab.ssh(node, "docker ps").stderr
    assert sleeps(node) == goes_on
    heal(node)
    assert said(lab, node, "docker ps --all --format '{{.Names}} {{.State}}'") == "left exited"
    said(lab, node, "docker rm left")


@pytest.mark.full
def test_sessions_are_dropped_and_new_ones_work(lab: Lab) -> None:
    node = lab.nodes[1]
    words = ["ssh", "-F", str(lab.ssh_config), node.name, "echo in; cat"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as session:
        assert session.stdout is not None
        assert session.stdout.readline() == "in\n"
        faults.drop_sessions(node)
        assert session.wait(10) == 255
    assert_sound(lab, node)


@pytest.mark.full
def test_some_packets_are_lost(lab: Lab) -> None:
    node = lab.nodes[1]
    faults.loss(node, percent=30)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        for _ in range(300):
            datagrams.sendto(b"", (node.address, 9))
    rule = _rules(node).splitlines()[2]
    assert 50 < int(rule.split()[0]) < 130, rule
    heal(node)
    assert "DROP" not in _rules(node)


def _rules(node: Node) -> str:
    return run("ip", "netns", "exec", node.cable.namespace, "iptables", "-nvxL", "INPUT").stdout


@pytest.mark.full
def test_a_slow_cable(lab: Lab) -> None:
    node = lab.nodes[1]
    faults.slow(node, rate="8mbit")
    start = time.monotonic()
    assert len(said(lab, node, "head -c 1000000 /dev/zero")) == 1_000_000
    assert time.monotonic() - start > 0.9
    heal(node)
    assert "tbf" not in node.run("tc", "qdisc").stdout


@pytest.mark.full
def test_a_delay_is_had_or_refused_with_the_reason(lab: Lab) -> None:
    node = lab.nodes[1]
    try:
        faults.slow(node, delay="200ms")
    except LabError as error:
        assert "sch_netem" in str(error)  # noqa: PT017
    else:
        start = time.monotonic()
        assert_sound(lab, node)
        assert time.monotonic() - start > 0.8


@pytest.mark.full
def test_a_disk_that_is_full(lab: Lab) -> None:
    node = lab.nodes[1]
    faults.small_disk(node, fill=True)
    done = lab.ssh(node, f"echo text > {WORK}/file")
    assert "No space left on device" in done.stderr
    heal(node)
    assert said(lab, node, f"echo text > {WORK}/file; ls {WORK}") == "file"


@pytest.mark.full
def test_the_command_breaks_heals_and_tells(
    lab: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CVS_LAB", str(lab.folder))
    assert main("fault loss node1 --percent 100".split()) == 0
    assert lab.ssh(lab.nodes[1], "true").returncode == 255
    assert main(["status"]) == 0
    assert f"node1  {lab.nodes[1].address}  sshd on  dockerd on  faulty\n" in capsys.readouterr().out
    assert main("cluster --nodes 1".split()) == 0
    assert json.loads(capsys.readouterr().out) == lab.cluster(1)
    assert main(["heal"]) == 0
    assert_sound(lab, lab.nodes[1])
    assert main("fault hang node77".split()) == 1
    assert capsys.readouterr().err.startswith("lab: no node node77; there are: node0, node1")


def test_what_is_left_is_named_and_cleared(lab: Lab, tiny_image: str) -> None:
    node0, node1 = lab.nodes[:2]
    assert lab.leftovers() == []
    start_container(lab, node1, tiny_image)
    said(lab, node1, "docker exec --detach left sleep 601")
    said(lab, node0, "nohup sleep 602 >/dev/null 2>&1 & touch /tmp/forgotten")
    wait_for("end of the session", lambda: len(lab.leftovers()) < 7, 10)
    left = "\n".join(lab.leftovers())
    assert "node1: container left (running, execs: 1)" in left
    assert "root sleep 601" in left
    assert "cvs sleep 602" in left
    assert "node0: file /tmp/forgotten" in left
    lab.clear()
    assert lab.leftovers() == []


TRAIN = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
os.write(1, f"{os.uname().nodename} {dist.get_rank()} {total.item():.0f}\\n".encode())
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.full
def test_torchrun_across_two_nodes(lab: Lab, torch_image: str) -> None:
    (lab.shared / "train.py").write_text(TRAIN)
    head = lab.nodes[0].address
    sessions = [
        subprocess.Popen(
            [
                *("ssh", "-F", str(lab.ssh_config), node.name, "docker run --rm --network host --ipc host"),
                *("-v /shared:/shared -e GLOO_SOCKET_IFNAME=eth0 -e OMP_NUM_THREADS=1", torch_image),
                f"torchrun --nnodes=2 --nproc_per_node=2 --node_rank={rank} --master_addr={head}",
                "--master_port=29500 /shared/train.py",
            ],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank, node in enumerate(lab.nodes[:2])
    ]  # fmt: skip
    outputs = [session.communicate(timeout=120)[0] for session in sessions]
    assert [session.returncode for session in sessions] == [0, 0], outputs
    said_by_ranks = {line for output in outputs for line in output.splitlines() if line.startswith("node")}
    assert said_by_ranks == {"node0 0 10", "node0 1 10", "node1 2 10", "node1 3 10"}
