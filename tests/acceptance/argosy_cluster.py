"""A real cluster for one test session: `argosy start --head` of the build under test, in a home and session folder of its own."""

import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def build_dir() -> pathlib.Path:
    return pathlib.Path(os.environ.get("ARGOSY_BUILD_DIR", ROOT / "build" / "release"))


def argosy_binary() -> str:
    binary = build_dir() / "bin" / "argosy"
    if not binary.exists():
        raise RuntimeError(f"{binary} is not there: build it, or set ARGOSY_BUILD_DIR")
    return str(binary)


def clean_environment(**more) -> dict:
    """This process's, without what would point at a cluster of its user's."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("ARGOSY_", "RAY_"))} | {k: str(v) for k, v in more.items()}


class Cluster:
    """Lives until `stop`, or until this process dies: the head ends at the end of a pipe that only this process holds."""

    def __init__(self, home: pathlib.Path, start_arguments=()):
        self.home = home
        self.environment = clean_environment(HOME=home, ARGOSY_SESSIONS_DIR=home / "sessions")
        ready_read, ready_write = os.pipe()
        eof_read, self._alive = os.pipe()
        self.log_path = home / "start.log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [argosy_binary(), "start", "--head", "--port", "0", "--dashboard-port", "0",
                 "--ready-fd", str(ready_write), "--until-eof-fd", str(eof_read), *start_arguments],
                pass_fds=(ready_write, eof_read), env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True)
        os.close(ready_write)
        os.close(eof_read)
        try:
            ready = json.loads(self._read_line(ready_read, seconds=60))
        except Exception:
            self.stop()
            raise RuntimeError(f"the cluster did not start:\n{self.log_path.read_text(errors='replace')[-4000:]}") from None
        finally:
            os.close(ready_read)
        self.address = ready["address"]
        self.dashboard = ready["dashboard"]
        if "://" not in self.dashboard:
            self.dashboard = "http://" + self.dashboard
        self.session_dir = pathlib.Path(ready["session_dir"])
        self.token = pathlib.Path(ready["token_file"]).read_text().strip()
        self.ready = ready

    @staticmethod
    def _read_line(fd: int, seconds: float) -> bytes:
        deadline = time.monotonic() + seconds
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise TimeoutError
            piece = os.read(fd, 4096)
            if not piece:
                raise EOFError
            line += piece
        return line

    def stop(self):
        if self._alive is not None:
            os.close(self._alive)
            self._alive = None
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def argosy(self, *arguments, timeout=120, **options):
        """Runs a command of the CLI against this cluster; the result has .returncode, .stdout, .stderr."""
        environment = dict(self.environment, ARGOSY_JOB_ADDRESS=self.dashboard, **options.pop("env", {}))
        return subprocess.run([argosy_binary(), *map(str, arguments)], env=environment, capture_output=True, text=True,
                              timeout=timeout, stdin=subprocess.DEVNULL, **options)


@pytest.fixture(scope="session")
def cluster():
    home = pathlib.Path(tempfile.mkdtemp(prefix="argosy-acceptance-"))
    running = Cluster(home)
    yield running
    running.stop()
    shutil.rmtree(home, ignore_errors=True)


def wait_until(condition, seconds=30, what="the condition"):
    """The first true value of `condition`, asked again and again."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come within {seconds} s")
        time.sleep(0.05)
