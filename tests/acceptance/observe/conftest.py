import pathlib
import shutil
import subprocess
import tempfile

import pytest

from argosy_cluster import Cluster, argosy_binary, build_dir, wait_until


@pytest.fixture(scope="session")
def observed():
    """A cluster of two nodes, "here" (with the head) and "there", and a program that does things to look at."""
    home = pathlib.Path(tempfile.mkdtemp(prefix="argosy-observe-"))
    running = Cluster(home, ["--num-cpus", "2", "--node-name", "here", "--object-store-memory", "128M"])
    log = open(home / "there.log", "wb")
    there = subprocess.Popen([argosy_binary(), "start", "--address", running.address, "--block", "--num-cpus", "2", "--node-name", "there",
                              "--resources", '{"away": 2}', "--object-store-memory", "128M"],
                             env=running.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    wait_until(lambda: "2 alive" in running.argosy("status", "--address", running.address).stdout, what="the second node")

    def run(*arguments, env=None, timeout=120):
        return subprocess.run([str(program()), *map(str, arguments)], env=environment(env), capture_output=True, text=True, timeout=timeout,
                              stdin=subprocess.DEVNULL)

    def start(*arguments, env=None):
        return subprocess.Popen([str(program()), *map(str, arguments)], env=environment(env), stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL)

    def environment(more):
        return {**running.environment, "ARGOSY_NODE_SOCKET": running.ready["node_socket"], **(more or {})}

    running.run, running.start, running.program = run, start, program()
    yield running
    there.terminate()
    there.wait(timeout=30)
    log.close()
    running.stop()
    shutil.rmtree(home, ignore_errors=True)


def program():
    return build_dir() / "tests" / "observed"
