"""Where a cluster listens and how it says so: IPv6, another address to listen on, a range of ports."""

import json
import pathlib
import shutil
import subprocess
import tempfile

import pytest

from argosy_cluster import Cluster, argosy_binary, build_dir


@pytest.fixture
def start():
    """Starts a cluster with those flags; it ends with the test."""
    made = []

    def run(*flags):
        home = pathlib.Path(tempfile.mkdtemp(prefix="argosy-addresses-"))
        made.append((Cluster(home, ["--num-cpus", "1", "--object-store-memory", "64M", *flags]), home))
        return made[-1][0]

    yield run
    for cluster, home in made:
        cluster.stop()
        shutil.rmtree(home, ignore_errors=True)


def trace(cluster):
    """A program with tasks."""
    environment = dict(cluster.environment, ARGOSY_ADDRESS=cluster.address)
    return subprocess.run([str(build_dir() / "tests" / "observed"), "trace"], env=environment, capture_output=True, text=True, timeout=120)


def has_ipv6():
    try:
        return "00000000000000000000000000000001" in pathlib.Path("/proc/net/if_inet6").read_text()
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6")
def test_a_cluster_on_ipv6(start):
    cluster = start("--node-ip", "::1", "--dashboard-host", "::1")
    assert cluster.address.startswith("[::1]:") and cluster.dashboard.startswith("http://[::1]:")
    result = trace(cluster)
    assert result.returncode == 0 and "trace 00-" in result.stdout, result.stderr
    node = json.loads(cluster.argosy("list", "nodes", "--detail", "--json", "--address", cluster.address).stdout)["rows"][0]
    assert node["ip"] == "::1" and node["wire_address"].startswith("[::1]:") and node["agent_address"].startswith("[::1]:")
    job = cluster.argosy("job", "submit", "--", "echo", "hello")
    assert job.returncode == 0 and "hello" in job.stdout, job.stderr


def test_it_listens_on_another_address_than_it_is_reached_at_and_workers_keep_to_their_ports(start, tmp_path):
    cluster = start("--node-ip", "127.0.0.1", "--bind-ip", "0.0.0.0", "--worker-ports", "28100-28140")
    assert cluster.address.startswith("127.0.0.1:")
    until = tmp_path / "until"
    environment = dict(cluster.environment, ARGOSY_ADDRESS=cluster.address)
    program = subprocess.Popen([str(build_dir() / "tests" / "observed"), "hold", str(until)], env=environment, stdout=subprocess.PIPE, text=True)
    for line in program.stdout:
        if line == "ready\n":
            break
    rows = json.loads(cluster.argosy("list", "workers", "--detail", "--json", "--address", cluster.address).stdout)["rows"]
    assert {row["type"] for row in rows} >= {"DRIVER", "ACTOR"}
    for row in rows:
        host, port = row["address"].rsplit(":", 1)
        assert host == "127.0.0.1" and 28100 <= int(port) <= 28140, row
    until.touch()
    program.communicate(timeout=60)
    assert program.returncode == 0


def test_wrong_addresses_are_refused_by_name():
    def refused(*flags):
        result = subprocess.run([argosy_binary(), "start", "--head", *flags], capture_output=True, text=True, timeout=60)
        assert result.returncode == 2
        return result.stderr

    assert "--worker-ports 9-1" in refused("--worker-ports", "9-1") and "MIN-MAX" in refused("--worker-ports", "9-")
    assert "--worker-ports 1-70000" in refused("--worker-ports", "1-70000")
    assert "--bind-ip" in refused("--node-ip", "0.0.0.0")
