"""A driver whose node daemon is killed: every call ends, in an error that says so."""

import json
import os
import signal
import subprocess

from argosy_cluster import argosy_binary, wait_until


def test_every_call_of_a_driver_ends_in_a_typed_error_when_its_daemon_is_killed(observed, tmp_path):
    log = open(tmp_path / "mine.log", "wb")
    mine = subprocess.Popen([argosy_binary(), "start", "--address", observed.address, "--block", "--num-cpus", "2", "--node-name", "mine",
                             "--object-store-memory", "64M"], env=observed.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        def daemon():
            for path in (observed.home / "sessions").glob("session_*/node*/node.json"):
                node = json.loads(path.read_text())
                if node["name"] == "mine":
                    return node
        node = wait_until(daemon, what="the daemon's node.json")
        wait_until(lambda: "mine" in observed.argosy("status", "--address", observed.address).stdout, what="the node")
        until, killed = tmp_path / "until", tmp_path / "killed"
        driver = observed.start("orphan", until, killed, env={"ARGOSY_NODE_SOCKET": node["socket"]})
        lines = iter(driver.stdout.readline, "")
        assert any(line == "ready\n" for line in lines), "the driver did not come so far"
        os.kill(node["pid"], signal.SIGKILL)
        killed.touch()
        said, _ = driver.communicate(timeout=60)
        error = "NodeDiedError: the node daemon of this process is gone, and what it had there: connect anew"
        for what in ("blocked Get", "Get of a task elsewhere", "a stream", "a large value", "a borrowed value", "Submit", "Put", "Spawn",
                     "Nodes", "kv", "a group"):
            assert f"{what}: {error}" in said, said
        assert "a small value: no error" in said, said
        assert said.endswith("done\n") and driver.returncode == 0, said
        until.touch()
    finally:
        mine.terminate()
        mine.wait(timeout=30)
        log.close()
