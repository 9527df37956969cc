"""`argosy job` against a running cluster."""

import json
import signal
import socket
import subprocess
import threading
import urllib.parse

from argosy_cluster import argosy_binary, wait_until


def test_submit_follows_the_log_and_exits_0(cluster):
    result = cluster.argosy("job", "submit", "--", "bash", "-c", "echo out; echo err >&2; printf end")
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("end") and "out\n" in result.stdout and "err\n" in result.stdout
    assert "succeeded" in result.stderr


def test_submit_exits_1_iff_the_job_failed(cluster):
    result = cluster.argosy("job", "submit", "--", "bash", "-c", "echo reason; exit 7")
    assert result.returncode == 1
    assert "exit code 7" in result.stderr
    stopped = cluster.argosy("job", "submit", "--no-wait", "--submission-id", "cli_stopped", "--", "sleep", "1000")
    assert stopped.returncode == 0 and stopped.stdout.strip() == "cli_stopped"
    assert cluster.argosy("job", "stop", "cli_stopped").returncode == 0
    assert cluster.argosy("job", "logs", "--follow", "cli_stopped").returncode == 0
    assert json.loads(cluster.argosy("job", "status", "--json", "cli_stopped").stdout)["status"] == "STOPPED"


def test_words_of_the_command_stay_words(cluster):
    result = cluster.argosy("job", "submit", "--", "printf", "[%s]", "a b", "it's", "", "$HOME", "*")
    assert result.returncode == 0, result.stderr
    assert "[a b][it's][][$HOME][*]" in result.stdout


def test_working_dir_is_sent_once_and_without_what_is_ignored(cluster, tmp_path):
    work = tmp_path / "work"
    (work / "sub").mkdir(parents=True)
    (work / "__pycache__").mkdir()
    (work / "__pycache__" / "x.pyc").write_text("x")
    (work / "run.sh").write_text("#!/bin/sh\nfind . -type f | sort; cat sub/data.txt\n")
    (work / "run.sh").chmod(0o755)
    (work / "sub" / "data.txt").write_text("seventeen\n")
    (work / "secret.key").write_text("no")
    (work / ".gitignore").write_text("# keys\n*.key\n/build/\n")
    (work / "build").mkdir()
    (work / "build" / "big.o").write_text("no")
    (tmp_path / "outside.txt").write_text("outside")
    (work / "link_out").symlink_to(tmp_path / "outside.txt")
    (work / "link_in").symlink_to("sub/data.txt")
    result = cluster.argosy("job", "submit", "--working-dir", work, "--env", "A=1", "--env", "B=x y", "--", "sh", "-c", "sh ./run.sh; echo $A $B")
    assert result.returncode == 0, result.stderr
    assert "left out of the working directory: link_out" in result.stderr
    for name in ["./run.sh", "./sub/data.txt", "./link_in", "./.gitignore", "seventeen", "1 x y"]:
        assert name in result.stdout.splitlines()
    for name in ["secret.key", "big.o", "x.pyc", "link_out", "outside"]:
        assert name not in result.stdout.split("./.gitignore", 1)[1]

    def uri(name):
        assert cluster.argosy("job", "submit", "--no-wait", "--submission-id", name, "--working-dir", work, "--", "true").returncode == 0
        return json.loads(cluster.argosy("job", "status", "--json", name).stdout)["runtime_env"]["working_dir"]

    first = uri("cli_wd_1")
    assert first.startswith("gcs://_ray_pkg_") and first.endswith(".zip")
    (work / "run.sh").touch()
    assert uri("cli_wd_2") == first, "the name depends on times"
    (work / "sub" / "data.txt").write_text("eighteen\n")
    assert uri("cli_wd_3") != first


def test_list_status_logs_stop_delete(cluster):
    assert cluster.argosy("job", "submit", "--no-wait", "--submission-id", "cli_all", "--metadata", "team=x", "--", "echo", "words").returncode == 0
    wait_until(lambda: json.loads(cluster.argosy("job", "status", "--json", "cli_all").stdout)["status"] == "SUCCEEDED", what="SUCCEEDED")
    assert "cli_all" in cluster.argosy("job", "list").stdout
    listed = [job for job in json.loads(cluster.argosy("job", "list", "--json").stdout) if job["submission_id"] == "cli_all"]
    assert listed[0]["metadata"] == {"team": "x"}
    assert "words\n" in cluster.argosy("job", "logs", "cli_all").stdout
    assert "SUCCEEDED" in cluster.argosy("job", "status", "cli_all").stdout
    assert cluster.argosy("job", "delete", "cli_all").returncode == 0
    gone = cluster.argosy("job", "status", "cli_all")
    assert gone.returncode == 1 and "Job cli_all does not exist" in gone.stderr


def test_errors_say_what_to_do(cluster):
    nobody = cluster.argosy("job", "list", "--address", "http://127.0.0.1:1")
    assert nobody.returncode == 1 and "no head answers at http://127.0.0.1:1" in nobody.stderr
    token = cluster.argosy("job", "list", env={"ARGOSY_AUTH_TOKEN": "wrong"})
    assert token.returncode == 1 and "token" in token.stderr
    address = cluster.argosy("job", "list", "--address", "127.0.0.1:8265")
    assert address.returncode == 1 and "http://HOST:PORT" in address.stderr
    name = cluster.argosy("job", "submit", "--no-wait", "--submission-id", "../x", "--", "true")
    assert name.returncode == 1 and "letters, digits" in name.stderr
    folder = cluster.argosy("job", "submit", "--working-dir", "/does/not/exist", "--", "true")
    assert folder.returncode == 1 and "/does/not/exist" in folder.stderr


def test_interrupting_a_follow_leaves_the_job_running(cluster):
    environment = dict(cluster.environment, ARGOSY_JOB_ADDRESS=cluster.dashboard)
    follow = subprocess.Popen([argosy_binary(), "job", "submit", "--submission-id", "cli_interrupt", "--", "bash", "-c", "echo begun; sleep 1000"],
                              env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))   # a background shell ignores it
    while "begun" not in follow.stdout.readline():
        pass
    follow.send_signal(signal.SIGINT)
    assert follow.wait(timeout=10) != 0
    follow.stdout.close()
    assert json.loads(cluster.argosy("job", "status", "--json", "cli_interrupt").stdout)["status"] == "RUNNING"
    assert cluster.argosy("job", "stop", "cli_interrupt").returncode == 0


def test_following_a_job_that_waits_says_why_it_waits(cluster):
    environment = dict(cluster.environment, ARGOSY_JOB_ADDRESS=cluster.dashboard)
    command = [argosy_binary(), "job", "submit", "--submission-id", "cli_waits", "--entrypoint-num-gpus", "800", "--", "true"]
    follow = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in follow.stderr:
        if "'cli_waits' waits:" in line and "GPU: 800" in line:
            break
    else:
        raise AssertionError("the follower never said why the job waits")
    assert cluster.argosy("job", "stop", "cli_waits").returncode == 0
    follow.stderr.read()
    assert follow.wait(timeout=20) == 0


class CuttingProxy:
    """Forwards connections to the head; cuts each of the first `cuts` followed logs after some bytes of it."""

    def __init__(self, target, cuts, after_bytes):
        parts = urllib.parse.urlparse(target)
        self.target, self.cuts, self.after_bytes, self.follows = (parts.hostname, parts.port), cuts, after_bytes, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        request = client.recv(65536)
        head = socket.create_connection(self.target)
        head.sendall(request)
        left = None
        if b"/logs/tail" in request.split(b"\r\n", 1)[0]:
            self.follows += 1
            if self.follows <= self.cuts:
                left = self.after_bytes

        def upward():
            try:
                while piece := client.recv(65536):
                    head.sendall(piece)
            except OSError:
                pass

        threading.Thread(target=upward, daemon=True).start()
        try:
            while piece := head.recv(65536 if left is None else min(left, 65536)):
                client.sendall(piece)
                if left is not None:
                    left -= len(piece)
                    if left == 0:
                        break
        except OSError:
            pass
        for end in (client, head):
            try:
                end.shutdown(socket.SHUT_RDWR)   # wakes the other thread, which close alone does not
            except OSError:
                pass
            end.close()


def test_a_follow_goes_on_where_its_connection_broke(cluster):
    proxy = CuttingProxy(cluster.dashboard, cuts=3, after_bytes=100_000)
    try:
        result = cluster.argosy("job", "submit", "--address", proxy.address, "--", "bash", "-c", "seq 1 200000; sleep 1; echo last")
    finally:
        proxy.listener.close()
    assert result.returncode == 0, result.stderr
    assert proxy.follows == 4
    text = result.stdout[result.stdout.index("1\n2\n3\n"):]
    assert text == "".join(f"{i}\n" for i in range(1, 200001)) + "last\n"
