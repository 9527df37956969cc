"""A cluster of unequal nodes for training runs, and the runs on it."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import select
import subprocess
import time

import pytest

from argosy_cluster import Cluster, argosy_binary, clean_environment


@dataclasses.dataclass
class Run:
    """What a run of `argosy finetune` said and left."""
    returncode: int
    stdout: str
    stderr: str
    metrics: list
    output_dir: pathlib.Path

    @property
    def losses(self):
        return [row["loss"] for row in self.metrics if "loss" in row]

    @property
    def grad_norms(self):
        return [row["grad_norm"] for row in self.metrics if "grad_norm" in row]

    @property
    def learning_rates(self):
        return [row["lr"] for row in self.metrics if "lr" in row]

    @property
    def checkpoint(self):
        return pathlib.Path(re.search(r"^checkpoint: (.+)$", self.stdout, re.M)[1])

    def rank_nodes(self):
        """The name of each rank's node."""
        return [name for _, name in sorted((int(r), n) for r, n in re.findall(r"^rank (\d+): +node (\S+) ", self.stdout, re.M))]


class RunningRun(subprocess.Popen):
    """A run whose output is read while it goes on."""

    def read_until(self, text: str, seconds=60):
        """Until `text` has come since the last call; what has come since then is `said`."""
        self.said = b""
        deadline = time.monotonic() + seconds
        while text.encode() not in self.said:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.stdout], [], [], left)[0], f"{text!r} did not come in {seconds} s: {self.said.decode()}"
            piece = os.read(self.stdout.fileno(), 65536)
            assert piece, f"the run ended before {text!r}: {self.said.decode()}\n{self.stderr.read().decode()}"
            self.said += piece

    def communicate(self, timeout=60):
        out, error = super().communicate(timeout=timeout)
        return (self.said + out).decode(), error.decode()

    def __exit__(self, *exception):
        self.kill()
        return super().__exit__(*exception)


def with_own_folder(folder: pathlib.Path):
    """What a node is started through to have a file system of its own at `folder`; skips the test where this user may not mount one."""
    prefix = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$1" && shift && exec "$@"', "sh", str(folder)]
    if subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        pytest.skip("this user cannot mount a file system for one node alone")
    return prefix


class TrainingCluster(Cluster):
    def __init__(self, home: pathlib.Path):
        self.nodes = []
        super().__init__(home, ["--node-name", "head", "--num-cpus", "1", "--num-gpus", "0", "--object-store-memory", "100000000"])

    def add_node(self, name: str, *arguments):
        self.nodes.append(self._start_node(name, *arguments))

    @contextlib.contextmanager
    def node(self, name: str, *arguments, prefix=()):
        """A node for a while, its daemon started through the command `prefix`."""
        node = self._start_node(name, *arguments, prefix=prefix)
        try:
            yield node[0]
        finally:
            self._end_nodes([node])

    def _start_node(self, name: str, *arguments, prefix=()):
        """A node daemon on this host that lives as long as this process holds its pipe."""
        ready_read, ready_write = os.pipe()
        eof_read, alive = os.pipe()
        with open(self.home / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                [*prefix, argosy_binary(), "start", "--address", self.address, "--node-name", name, "--num-cpus", "1", "--object-store-memory",
                 "100000000", "--ready-fd", str(ready_write), "--until-eof-fd", str(eof_read), *arguments],
                pass_fds=(ready_write, eof_read), env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True)
        os.close(ready_write)
        os.close(eof_read)
        try:
            ready = json.loads(self._read_line(ready_read, seconds=60))
            assert "error" not in ready, ready
        except BaseException:
            self._end_nodes([(process, alive)])
            raise
        finally:
            os.close(ready_read)
        return process, alive

    @staticmethod
    def _end_nodes(nodes):
        for _, alive in nodes:
            os.close(alive)
        for process, _ in nodes:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def stop(self):
        nodes, self.nodes = self.nodes, []
        self._end_nodes(nodes)
        super().stop()

    def drive(self, *arguments, timeout=300, **options):
        """A verb of `argosy` as a driver on the head's node."""
        return self.argosy(*arguments, timeout=timeout, env={"ARGOSY_NODE_SOCKET": self.ready["node_socket"]}, **options)

    def start_finetune(self, folder: pathlib.Path, *arguments, ranks=1) -> RunningRun:
        command = [argosy_binary(), "finetune", "--output-dir", folder / "out", "--num-devices", ranks, "--threads", 1, *arguments]
        return RunningRun(list(map(str, command)), env=dict(self.environment, ARGOSY_NODE_SOCKET=self.ready["node_socket"]),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def finetune(self, folder: pathlib.Path, *arguments, ranks=1, check=True, timeout=300) -> Run:
        """`argosy finetune` into folder/out, with one compute thread a rank."""
        metrics_path = folder / "metrics.jsonl"
        result = self.drive("finetune", "--output-dir", folder / "out", "--num-devices", ranks, "--threads", 1, "--metrics-path", metrics_path,
                            *arguments, timeout=timeout)
        assert not check or result.returncode == 0, f"exit {result.returncode}\n{result.stdout[-6000:]}\n{result.stderr[-4000:]}"
        metrics = [json.loads(line) for line in open(metrics_path)] if metrics_path.exists() else []
        return Run(result.returncode, result.stdout, result.stderr, metrics, folder / "out")


def verb(*arguments, timeout=120):
    """A verb that needs no cluster."""
    environment = clean_environment()
    result = subprocess.run([argosy_binary(), *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=timeout,
                            stdin=subprocess.DEVNULL)
    assert result.returncode == 0, f"argosy {' '.join(map(str, arguments))}: exit {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result
