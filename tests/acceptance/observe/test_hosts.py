"""Three hosts with a network between them: each has its own interfaces, sockets, host name and /tmp folder (Linux namespaces)."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

from argosy_cluster import Cluster, argosy_binary, build_dir, clean_environment, wait_until

PROGRAM = build_dir() / "tests" / "observed"


def run(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=30, check=True)


def why_no_hosts():
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    missing = [tool for tool in ("ip", "unshare", "nsenter") if not shutil.which(tool)]
    if missing:
        return f"there is no {', '.join(missing)}"
    for words in (["unshare", "--mount", "--net", "--uts", "true"],
                  ["unshare", "--net", "ip", "link", "add", "bridge0", "type", "bridge"],
                  ["unshare", "--net", "ip", "link", "add", "veth0", "type", "veth", "peer", "name", "veth1"]):
        try:
            run(*words)
        except subprocess.CalledProcessError as error:
            return f"{' '.join(words)}: {error.stderr.strip()}"
    return None


REASON = why_no_hosts()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"no hosts of namespaces: {REASON}")


class Host:
    """A process that holds the namespaces; others are started in them."""

    def __init__(self, name, folder):
        self.name, self.folder = name, folder
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "--net", "--uts", "sh", "-c",
             'mount --make-rprivate / && mount -t tmpfs tmpfs "$1" && mkdir "$1/home" && echo "$2" > /proc/sys/kernel/hostname && '
             "ip link set lo up && echo ready && exec sleep infinity", "sh", str(folder), name],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        line = self.holder.stdout.readline()
        assert line == "ready\n", line + self.holder.stdout.read()
        self.environment = clean_environment(HOME=folder / "home", ARGOSY_SESSIONS_DIR=folder / "sessions", ARGOSY_AUTH_TOKEN="0123456789abcdef" * 4)
        self.started = []

    def enter(self, *words):
        return ["nsenter", "--target", str(self.holder.pid), "--mount", "--net", "--uts", *map(str, words)]

    def start(self, *words):
        """A daemon, which ends with the pipe that this process holds; what it said when it was ready."""
        ready_read, ready_write = os.pipe()
        eof_read, alive = os.pipe()
        log = tempfile.TemporaryFile()
        process = subprocess.Popen(self.enter(argosy_binary(), "start", *words, "--node-name", self.name, "--object-store-memory", "64M",
                                              "--ready-fd", ready_write, "--until-eof-fd", eof_read),
                                   pass_fds=(ready_write, eof_read), env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        os.close(ready_write)
        os.close(eof_read)
        self.started.append((process, alive))
        try:
            return json.loads(Cluster._read_line(ready_read, seconds=60))
        except (EOFError, TimeoutError):
            log.seek(0)
            raise AssertionError(f"host {self.name}: {log.read().decode(errors='replace')[-4000:]}") from None
        finally:
            os.close(ready_read)

    def run(self, *words, **more):
        return subprocess.run(self.enter(*words), env=dict(self.environment, **more), capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)

    def end(self):
        for process, alive in self.started:
            os.close(alive)
        for process, alive in self.started:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()


class Network:
    """Hosts a, b, c on one bridge, at 10.99.0.1 to .3 and fd99::1 to ::3. The bridge is in a namespace too: this host's own is left alone."""

    def __init__(self, names=("a", "b", "c")):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ah"))
        self.switch = Host("switch", self.folder)
        self.hosts = {}
        self.ip("link", "add", "bridge0", "type", "bridge")
        self.ip("link", "set", "bridge0", "up")
        for number, name in enumerate(names, 1):
            host = self.hosts[name] = Host(name, self.folder)
            self.ip("link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", host.holder.pid)
            self.ip("link", "set", f"to-{name}", "master", "bridge0", "up")
            run(*host.enter("ip", "address", "add", f"10.99.0.{number}/24", "dev", "eth0"))
            run(*host.enter("ip", "address", "add", f"fd99::{number}/64", "dev", "eth0", "nodad"))
            run(*host.enter("ip", "link", "set", "eth0", "up"))

    def ip(self, *words):
        run(*self.switch.enter("ip", *words))

    def set_link(self, name, state):
        self.ip("link", "set", f"to-{name}", state)

    def __getitem__(self, name):
        return self.hosts[name]

    def end(self):
        for host in [*self.hosts.values(), self.switch]:
            host.end()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def network():
    made = Network()
    yield made
    made.end()


def nodes(host, address):
    result = host.run(argosy_binary(), "list", "nodes", "--detail", "--json", "--address", address)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["rows"]


def test_a_cluster_of_three_hosts_survives_a_cut_link(network, tmp_path):
    address = network["a"].start("--head", "--port", "0", "--dashboard-port", "0", "--node-ip", "10.99.0.1", "--num-cpus", "1")["address"]
    assert address.startswith("10.99.0.1:")
    # It says another address than the one by which it reaches the head, and listens on all.
    run(*network["b"].enter("ip", "address", "add", "10.99.0.102/24", "dev", "eth0"))
    network["b"].start("--address", address, "--num-cpus", "2", "--resources", '{"roam": 1}', "--node-ip", "10.99.0.102", "--bind-ip", "0.0.0.0")
    network["c"].start("--address", address, "--num-cpus", "2", "--resources", '{"roam": 1}')
    rows = {row["name"]: row for row in nodes(network["a"], address)}
    assert rows["b"]["wire_address"].startswith("10.99.0.102:") and rows["c"]["wire_address"].startswith("10.99.0.3:"), rows
    assert [rows[name]["hostname"] for name in "abc"] == ["a", "b", "c"]

    cut = tmp_path / "cut"
    driver = subprocess.Popen(network["a"].enter(PROGRAM, "hosts", cut), env=dict(network["a"].environment, ARGOSY_ADDRESS=address),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = ""
    for line in iter(driver.stdout.readline, ""):
        said += line
        if line.startswith("actor on "):
            break
    assert "node a at 10.99.0.1\n" in said and "node b at 10.99.0.102\n" in said and "node c at 10.99.0.3\n" in said, said
    assert "task on b\ntask on c\n" in said, said
    home = said.split("actor on ")[1].strip()
    other = {"b": "c", "c": "b"}[home]
    assert f"{other} has 5000000 bytes\nthe driver has 5000000 bytes\n" in said, said
    network.set_link(home, "down")
    cut.touch()
    rest, _ = driver.communicate(timeout=150)
    assert driver.returncode == 0, said + rest
    assert f"actor again on {other}\n" in rest and "made again: 6000000 bytes\ndone\n" in rest, rest
    lost = [row for row in nodes(network["a"], address) if row["name"] == home]
    assert [row["state"] for row in lost] == ["LOST"], lost

    # The cut host learns that it was declared dead, ends what runs there and joins under a new id.
    network.set_link(home, "up")
    def rejoined():
        found = [row for row in nodes(network["a"], address) if row["name"] == home and row["state"] == "ALIVE"]
        return found and found[0]["node_id"] != lost[0]["node_id"]
    wait_until(rejoined, 60, "the new registration")
    again = network["a"].run(PROGRAM, "hosts", ARGOSY_ADDRESS=address)
    assert again.returncode == 0 and "task on b\ntask on c\n" in again.stdout, again.stdout + again.stderr


def test_a_cluster_of_hosts_on_ipv6(network):
    if pathlib.Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").read_text().strip() != "0":
        pytest.skip("this host has no IPv6")
    address = network["a"].start("--head", "--port", "0", "--dashboard-port", "0", "--node-ip", "fd99::1", "--num-cpus", "1")["address"]
    assert address.startswith("[fd99::1]:")
    for name in "bc":
        network[name].start("--address", address, "--num-cpus", "2", "--resources", '{"roam": 1}')
    result = network["a"].run(PROGRAM, "hosts", ARGOSY_ADDRESS=address)
    assert result.returncode == 0, result.stdout + result.stderr
    for line in ("node a at fd99::1", "node b at fd99::2", "node c at fd99::3", "task on b", "task on c", "the driver has 5000000 bytes"):
        assert line + "\n" in result.stdout, result.stdout
    # Nothing joins without the token, from wherever.
    stranger = network["b"].run(argosy_binary(), "status", "--address", address, ARGOSY_AUTH_TOKEN="f" * 64)
    assert stranger.returncode != 0, stranger.stdout
