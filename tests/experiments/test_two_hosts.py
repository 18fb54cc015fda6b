"""Two hosts equal one process, also after one of them disappeared: two network namespaces of this machine.

The namespaces are joined by a pair of virtual interfaces with addresses of their own; torchrun runs in each,
as on two machines.
"""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PORT = "29511"
ADDRESSES = ("10.213.77.1", "10.213.77.2")
INTERFACE = "agcn"
CASES = {
    "features and ridge": {"method": "streaming_ridge", "freeze_backbone": True},
    "agcn": {"method": "agcn", "mem_size": 7},
}
INTERRUPTED = {"agcn": CASES["agcn"]}
START_SECONDS, LOST_SECONDS = 300, 30  # to import torch on a busy machine; to notice a lost host

pytestmark = pytest.mark.slow


def load(name):
    specification = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def hosts():
    """Names of two namespaces that reach each other, and nothing else."""
    names = [f"agcn-{uuid.uuid4().hex[:8]}" for _ in ADDRESSES]
    made = []
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
        first, second = names
        pair = ("link", "add", INTERFACE, "netns", first, "type", "veth", "peer", "name", INTERFACE)
        ip(*pair, "netns", second)
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/30", "dev", INTERFACE)
            ip("-n", name, "link", "set", INTERFACE, "up")
            ip("-n", name, "link", "set", "lo", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        for name in made:
            ip("netns", "delete", name)
        pytest.skip(f"network namespaces cannot be made here: {getattr(error, 'stderr', None) or error}")
    yield names
    for name in names:
        ip("netns", "delete", name)


def start(hosts, out, which, *, resume=False):
    """Torchrun on both hosts, each in a process group of its own."""
    processes = []
    for number, host in enumerate(hosts):
        command = ["ip", "netns", "exec", host, sys.executable, "-m", "torch.distributed.run"]
        command += ["--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "1"]
        command += ["--master-addr", ADDRESSES[0], "--master-port", PORT, __file__]
        command += [str(out), which, *(["resume"] if resume else [])]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = str(HERE.parents[1])
        output = open(out.with_name(f"{out.name}-{which}-{number}.txt"), "a")  # noqa: SIM115
        processes.append(
            subprocess.Popen(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        )
    return processes


def kill(host, process):
    """Kill all processes of a host at once."""
    names = subprocess.run(["ip", "netns", "pids", host], check=True, capture_output=True, text=True)
    for pid in names.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    process.wait()


def kill_all(hosts, processes):
    for host, process in zip(hosts, processes, strict=True):
        kill(host, process)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """Folder of the runs in one process."""
    out = tmp_path_factory.mktemp("one")
    load("distributed_runs").main(out, CASES)
    return out


def test_two_hosts_equal_one_process(hosts, one, tmp_path):
    processes = start(hosts, tmp_path / "two", "all")
    try:
        codes = [process.wait(START_SECONDS) for process in processes]
    finally:
        kill_all(hosts, processes)
    assert codes == [0, 0], "\n".join(file.read_text() for file in tmp_path.glob("*.txt"))
    for name in CASES:
        load("test_distributed").check_equal(one / name, tmp_path / "two" / name, "")


@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_host_ends_the_other_within_seconds_and_resume_continues(hosts, one, tmp_path, lost):
    out = tmp_path / "two"
    processes = start(hosts, out, "interrupted")
    try:
        deadline = time.monotonic() + START_SECONDS
        while not list(out.glob("agcn/out/*/state*")):
            assert time.monotonic() < deadline
            assert processes[0].poll() is None
            time.sleep(0.05)
        kill(hosts[lost], processes[lost])
        assert processes[1 - lost].wait(LOST_SECONDS) != 0
    finally:
        kill_all(hosts, processes)
    assert not list(out.glob("agcn/trace-*"))
    processes = start(hosts, out, "interrupted", resume=True)
    try:
        assert [process.wait(START_SECONDS) for process in processes] == [0, 0]
    finally:
        kill_all(hosts, processes)
    load("test_distributed").check_equal(one / "agcn", out / "agcn", "")


if __name__ == "__main__":
    chosen = CASES if sys.argv[2] == "all" else INTERRUPTED
    load("distributed_runs").main(Path(sys.argv[1]), chosen, resume="resume" in sys.argv)
