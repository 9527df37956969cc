"""A driver whose node daemon is killed: every call ends, in an error that says so."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

import pytest

from argosy_cluster import Cluster, argosy_binary, build_dir, wait_until


@pytest.fixture
def two_nodes():
    """The head's node with the resource "away", and the node "mine", with its daemon's node.json."""
    home = pathlib.Path(tempfile.mkdtemp(prefix="argosy-orphan-"))
    running = Cluster(home, ["--num-cpus", "2", "--resources", '{"away": 2}', "--object-store-memory", "64M"])
    with open(home / "mine.log", "wb") as log:
        mine = subprocess.Popen([argosy_binary(), "start", "--address", running.address, "--block", "--num-cpus", "2", "--node-name", "mine",
                                 "--object-store-memory", "64M"], env=running.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def daemon():
        for path in (home / "sessions").glob("session_*/node*/node.json"):
            node = json.loads(path.read_text())
            if node["name"] == "mine":
                return node
    running.mine = wait_until(daemon, what="the daemon's node.json")
    wait_until(lambda: "2 alive" in running.argosy("status", "--address", running.address).stdout, what="the second node")
    yield running
    mine.terminate()
    mine.wait(timeout=30)
    running.stop()
    shutil.rmtree(home, ignore_errors=True)


def test_every_call_of_a_driver_ends_in_a_typed_error_when_its_daemon_is_killed(two_nodes, tmp_path):
    until, killed = tmp_path / "until", tmp_path / "killed"
    driver = subprocess.Popen([str(build_dir() / "tests" / "observed"), "orphan", str(until), str(killed)], text=True,
                              env=dict(two_nodes.environment, ARGOSY_NODE_SOCKET=two_nodes.mine["socket"]),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = iter(driver.stdout.readline, "")
    assert any(line == "ready\n" for line in lines), "the driver did not come so far"
    os.kill(two_nodes.mine["pid"], signal.SIGKILL)
    killed.touch()
    said, _ = driver.communicate(timeout=60)
    error = "NodeDiedError: the node daemon of this process is gone, and what it had there: connect anew"
    for what in ("blocked Get", "Get of a task elsewhere", "a stream", "a large value", "a borrowed value", "Submit", "Put", "Spawn",
                 "Nodes", "kv", "a group"):
        assert f"{what}: {error}\n" in said, said
    assert "a small value: no error\n" in said, said
    assert said.endswith("done\n") and driver.returncode == 0, said
    until.touch()
