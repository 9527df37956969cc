"""kill -9 of the head while a driver, an actor and a placement group are in use, and a new head on the session folder."""

import json
import os
import pathlib
import re
import signal
import subprocess

from argosy_cluster import argosy_binary, build_dir, clean_environment, wait_until


class Cluster:
    """Of daemons that go on by themselves: one that waits for its daemons stops all when one has ended."""

    def __init__(self, home, *start_arguments):
        self.environment = clean_environment(HOME=home, ARGOSY_SESSIONS_DIR=home / "sessions")
        said = subprocess.run([argosy_binary(), "start", "--head", "--port", "0", "--dashboard-port", "0", *start_arguments], env=self.environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=60).stdout
        self.address = re.search(r"head started: pid \d+, (\S+)", said)[1]
        self.session_dir = next((home / "sessions").glob("session_*"))

    def argosy(self, *arguments):
        return subprocess.run([argosy_binary(), *map(str, arguments)], env=self.environment, capture_output=True, text=True, timeout=120,
                              stdin=subprocess.DEVNULL)


def command_of(pid):
    return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]


def head_of(cluster):
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = command_of(entry.name)
        except OSError:
            continue
        if words[1:2] == ["head"] and str(cluster.session_dir) in words:
            return int(entry.name), words
    raise AssertionError("no head runs on this session")


def again(words, cluster):
    """The command of a head, without what belongs to the process that was, and with the port that it had got."""
    kept, skip = [], False
    for word in words[1:]:
        if skip or word in ("--ready-fd", "--token-fd", "--until-eof-fd"):
            skip = not skip
            continue
        kept.append(word)
    kept[kept.index("--port") + 1] = cluster.address.rsplit(":", 1)[1]
    return [argosy_binary(), *kept]


def rows(cluster, kind):
    result = cluster.argosy("list", kind, "--json", "--detail", "--address", cluster.address)
    return json.loads(result.stdout)["rows"] if result.returncode == 0 else []


def test_a_group_its_actor_and_the_driver_outlive_the_head(tmp_path):
    cluster = Cluster(tmp_path, "--num-cpus", "2", "--object-store-memory", "64M")
    head = None
    try:
        until = tmp_path / "until"
        program = subprocess.Popen([str(build_dir() / "tests" / "observed"), "group", str(until)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   text=True, env=dict(cluster.environment, ARGOSY_ADDRESS=cluster.address))
        assert program.stdout.readline() == "ready\n"
        before = rows(cluster, "actors")[0]
        pid, words = head_of(cluster)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: cluster.argosy("list", "nodes", "--address", cluster.address).returncode != 0, what="the end of the head")
        assert program.poll() is None

        with open(tmp_path / "head.log", "wb") as log:
            head = subprocess.Popen(again(words, cluster), env=cluster.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        group = wait_until(lambda: [row for row in rows(cluster, "placement-groups") if row["state"] == "CREATED"], what="the group")[0]
        assert group["name"] == "kept"
        actor = rows(cluster, "actors")[0]
        assert before["state"] == "ALIVE" and actor == before   # the same incarnation in the same worker
        until.touch()
        said, _ = program.communicate(timeout=60)
        assert program.returncode == 0 and "done\n" in said and "still 2\n" in said, said
        wait_until(lambda: rows(cluster, "placement-groups") == [], what="the end of the group")
    finally:
        if head is not None:
            head.terminate()
            head.wait(timeout=30)
        cluster.argosy("stop")
