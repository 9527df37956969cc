"""A node is taken out of the cluster while the cluster works."""

import json
import pathlib
import shutil
import subprocess
import tempfile

import pytest

from argosy_cluster import Cluster, argosy_binary, wait_until


@pytest.fixture
def cluster_of_two():
    home = pathlib.Path(tempfile.mkdtemp(prefix="argosy-drain-"))
    running = Cluster(home, ["--num-cpus", "1", "--node-name", "first", "--object-store-memory", "64M"])
    log = open(home / "second.log", "wb")
    second = subprocess.Popen([argosy_binary(), "start", "--address", running.address, "--block", "--num-cpus", "1", "--node-name", "second",
                               "--resources", '{"second": 1}', "--object-store-memory", "64M"],
                              env=running.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    running.second = second
    wait_until(lambda: state(running) == "ALIVE", what="the second node")
    yield running
    if second.poll() is None:
        second.terminate()
        second.wait(timeout=30)
    log.close()
    running.stop()
    shutil.rmtree(home, ignore_errors=True)


def state(cluster):
    rows = json.loads(cluster.argosy("list", "nodes", "--json", "--filter", "name=second", "--address", cluster.address).stdout)["rows"]
    return rows[0]["state"] if rows else None


def submit(cluster, name, *command):
    """A job that holds the second node."""
    result = cluster.argosy("job", "submit", "--no-wait", "--submission-id", name, "--entrypoint-resources", '{"second": 1}', "--", *command)
    assert result.returncode == 0, result.stderr


def job(cluster, name):
    return json.loads(cluster.argosy("job", "status", "--json", name).stdout)


def test_an_idle_node_leaves_at_once_and_its_daemon_ends(cluster_of_two):
    result = cluster_of_two.argosy("drain", "second", "--reason", "new disks", "--wait", "--address", cluster_of_two.address)
    assert result.returncode == 0, result.stderr
    assert "has left" in result.stdout
    lost = json.loads(cluster_of_two.argosy("get", "node", "second", "--json", "--address", cluster_of_two.address).stdout)
    assert lost["state"] == "LOST" and lost["lost_reason"] == "it was drained (new disks)"
    assert cluster_of_two.second.wait(timeout=30) == 0
    again = cluster_of_two.argosy("drain", "second", "--address", cluster_of_two.address)
    assert again.returncode == 1 and "not alive" in again.stderr


def test_what_runs_there_ends_first_and_nothing_new_comes(cluster_of_two, tmp_path):
    until = tmp_path / "until"
    submit(cluster_of_two, "holds", "sh", "-c", f"while [ ! -e {until} ]; do sleep 0.1; done")
    wait_until(lambda: job(cluster_of_two, "holds")["status"] == "RUNNING", what="the job")
    assert cluster_of_two.argosy("drain", "second", "--address", cluster_of_two.address).returncode == 0
    assert state(cluster_of_two) == "DRAINING"
    submit(cluster_of_two, "waits", "true")
    waiting = wait_until(lambda: (lambda j: j if "drain" in j["message"] else None)(job(cluster_of_two, "waits")), what="why it waits")
    assert waiting["status"] == "PENDING"
    until.touch()
    wait_until(lambda: state(cluster_of_two) == "LOST", what="the node's end")
    assert job(cluster_of_two, "holds")["status"] == "SUCCEEDED"
    assert cluster_of_two.second.wait(timeout=30) == 0


def test_a_drain_can_be_taken_back(cluster_of_two, tmp_path):
    until = tmp_path / "until"
    submit(cluster_of_two, "holds", "sh", "-c", f"while [ ! -e {until} ]; do sleep 0.1; done")
    wait_until(lambda: job(cluster_of_two, "holds")["status"] == "RUNNING", what="the job")
    assert cluster_of_two.argosy("drain", "second", "--address", cluster_of_two.address).returncode == 0
    back = cluster_of_two.argosy("drain", "second", "--undo", "--address", cluster_of_two.address)
    assert back.returncode == 0 and "works again" in back.stdout
    until.touch()
    submit(cluster_of_two, "after", "true")
    wait_until(lambda: job(cluster_of_two, "after")["status"] == "SUCCEEDED", what="the job after it")
    assert state(cluster_of_two) == "ALIVE"
    assert cluster_of_two.argosy("drain", "second", "--undo", "--address", cluster_of_two.address).returncode == 1


def test_at_the_deadline_it_leaves_whatever_runs_there(cluster_of_two):
    submit(cluster_of_two, "endless", "sleep", "1000")
    wait_until(lambda: job(cluster_of_two, "endless")["status"] == "RUNNING", what="the job")
    result = cluster_of_two.argosy("drain", "second", "--deadline", "1", "--wait", "--address", cluster_of_two.address)
    assert result.returncode == 0, result.stderr
    ended = wait_until(lambda: (lambda j: j if j["status"] == "FAILED" else None)(job(cluster_of_two, "endless")), what="the job's end")
    assert "drained" in ended["message"]
    assert cluster_of_two.second.wait(timeout=30) == 0


def test_the_heads_node_and_strangers_cannot_be_drained(cluster_of_two):
    head = cluster_of_two.argosy("drain", "first", "--address", cluster_of_two.address)
    assert head.returncode == 1 and "argosy stop" in head.stderr
    nobody = cluster_of_two.argosy("drain", "third", "--address", cluster_of_two.address)
    assert nobody.returncode == 1 and "no node has the id or name third" in nobody.stderr
