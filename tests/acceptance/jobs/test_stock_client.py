"""The field's own client library and command, unchanged, against a running cluster."""

import os
import pathlib
import re
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from argosy_cluster import wait_until


@pytest.fixture(scope="session")
def ray_environment(cluster):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=cluster.token, RAY_USAGE_STATS_ENABLED="0", HOME=str(cluster.home))
    return environment


@pytest.fixture(scope="session")
def client(cluster, ray_environment):
    os.environ.update({k: v for k, v in ray_environment.items() if k.startswith("RAY_")})
    from ray.job_submission import JobSubmissionClient

    return JobSubmissionClient(cluster.dashboard)


@pytest.fixture
def ray(cluster, ray_environment):
    command = pathlib.Path(sys.executable).parent / "ray"

    def run(*arguments, timeout=120, env=None):
        return subprocess.run([command, "job", arguments[0], "--address", cluster.dashboard, *arguments[1:]],
                              env={**ray_environment, **(env or {})}, capture_output=True, text=True, timeout=timeout)

    return run


def wait_for(client, job, status, seconds=30):
    return wait_until(lambda: client.get_job_status(job).value == status, seconds, f"{status} of {job}")


class TestLibrary:
    def test_a_job_runs_and_its_log_is_read(self, client):
        job = client.submit_job(entrypoint="echo hello from $0; echo to stderr >&2")
        assert job.startswith("raysubmit_")
        wait_for(client, job, "SUCCEEDED")
        log = client.get_job_logs(job)
        assert "hello from" in log and "to stderr" in log
        info = client.get_job_info(job)
        assert info.message == "Job finished successfully."
        assert info.driver_exit_code == 0
        assert info.start_time <= info.end_time

    def test_a_failure_says_its_exit_code_and_last_words(self, client):
        job = client.submit_job(entrypoint="echo the reason; exit 3")
        wait_for(client, job, "FAILED")
        info = client.get_job_info(job)
        assert info.driver_exit_code == 3
        assert "exit code 3" in info.message and "the reason" in info.message

    def test_a_command_that_is_not_there_fails(self, client):
        job = client.submit_job(entrypoint="this_command_does_not_exist --x")
        wait_for(client, job, "FAILED")
        assert client.get_job_info(job).driver_exit_code == 127

    def test_working_dir_modules_and_environment_reach_the_job(self, client, tmp_path):
        (tmp_path / "main.py").write_text("import os, mymod; print('data:', open('sub/data.txt').read(), mymod.V, os.environ['K'])")
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "data.txt").write_text("17")
        modules = tmp_path / "elsewhere" / "mymod"
        modules.mkdir(parents=True)
        (modules / "__init__.py").write_text("V = 42")
        job = client.submit_job(
            entrypoint=f"{sys.executable} main.py",
            runtime_env={"working_dir": str(tmp_path), "py_modules": [str(modules)], "excludes": ["elsewhere"], "env_vars": {"K": "v v"}},
            metadata={"team": "x"})
        wait_for(client, job, "SUCCEEDED")
        assert "data: 17 42 v v" in client.get_job_logs(job)
        assert client.get_job_info(job).metadata == {"team": "x"}
        assert client.get_job_info(job).runtime_env["working_dir"].startswith("gcs://_ray_pkg_")

    def test_a_name_is_taken_once(self, client):
        client.submit_job(entrypoint="true", submission_id="library_once")
        with pytest.raises(RuntimeError, match="library_once already exists. Please use a different submission_id"):
            client.submit_job(entrypoint="true", submission_id="library_once")

    def test_stop_ends_a_job_with_all_its_processes(self, client):
        job = client.submit_job(entrypoint="sleep 1000 & echo child $!; wait")
        found = wait_until(lambda: re.search(r"^child (\d+)$", client.get_job_logs(job), re.MULTILINE), what="the child's pid")
        child = int(found[1])
        assert pathlib.Path(f"/proc/{child}").exists()
        with pytest.raises(RuntimeError, match=f"Attempted to delete job '{job}', but it is in a non-terminal state RUNNING."):
            client.delete_job(job)
        assert client.stop_job(job)
        wait_for(client, job, "STOPPED")
        assert client.get_job_info(job).message == "Job was intentionally stopped."
        wait_until(lambda: not pathlib.Path(f"/proc/{child}").exists(), what="the child's end")
        assert not client.stop_job(job)

    def test_delete_forgets_a_job_and_list_shows_the_rest(self, client):
        job = client.submit_job(entrypoint="true")
        wait_for(client, job, "SUCCEEDED")
        assert job in [details.submission_id for details in client.list_jobs()]
        assert client.delete_job(job)
        assert job not in [details.submission_id for details in client.list_jobs()]
        with pytest.raises(RuntimeError, match="does not exist"):
            client.get_job_status(job)

    def test_the_log_is_followed_live_to_its_last_byte(self, client):
        job = client.submit_job(entrypoint="for i in 1 2 3 4; do echo line $i; sleep 0.7; done; printf 'no newline \\303\\244 \\377'")
        pieces, times = [], []
        done = threading.Event()

        def follow():
            import asyncio

            async def read():
                async for piece in client.tail_job_logs(job):
                    pieces.append(piece)
                    times.append(time.monotonic())

            asyncio.run(read())
            done.set()

        threading.Thread(target=follow, daemon=True).start()
        assert done.wait(60)
        text = "".join(pieces)
        for i in range(1, 5):
            assert text.count(f"line {i}\n") == 1 + (f"echo line {i}\n" in text)
        assert text.endswith("no newline \u00e4 \ufffd")
        assert times[-1] - times[0] > 1.0, "the lines came all at once"
        assert client.get_job_status(job).value == "SUCCEEDED"

    def test_a_large_log_arrives_whole(self, client):
        job = client.submit_job(entrypoint="seq 1 300000")

        async def read():
            return "".join([piece async for piece in client.tail_job_logs(job)])

        import asyncio

        text = asyncio.run(read())
        assert text[text.index("1\n2\n3\n"):] == "".join(f"{i}\n" for i in range(1, 300001))


class TestCommand:
    def test_submit_follows_to_the_end_and_reports_it(self, ray):
        result = ray("submit", "--submission-id", "cmd_wait", "--", "bash", "-c", "for i in 1 2 3; do echo line $i; sleep 0.3; done")
        assert result.returncode == 0, result.stderr
        assert "line 3" in result.stdout and "Job 'cmd_wait' succeeded" in result.stdout

    def test_submit_of_a_failing_command_exits_with_1(self, ray):
        result = ray("submit", "--", "bash", "-c", "echo out; exit 3")
        assert result.returncode == 1
        assert "failed" in result.stdout

    def test_working_dir_and_env_vars(self, ray, tmp_path):
        (tmp_path / "main.py").write_text(textwrap.dedent("""
            import os, sys
            print('hello from working_dir', os.path.exists('sub/data.txt'), os.environ.get('FOO'), flush=True)
        """))
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "data.txt").write_text("x")
        result = ray("submit", "--working-dir", str(tmp_path), "--runtime-env-json", '{"env_vars":{"FOO":"bar"}}', "--", sys.executable, "main.py")
        assert result.returncode == 0, result.stdout + result.stderr
        assert "hello from working_dir True bar" in result.stdout

    def test_no_wait_status_logs_list_stop_delete(self, ray):
        assert ray("submit", "--no-wait", "--submission-id", "cmd_long", "--", "bash", "-c", "echo started; sleep 1000").returncode == 0
        status = ray("status", "cmd_long")
        assert status.returncode == 0 and "cmd_long" in status.stdout
        assert "cmd_long" in ray("list").stdout
        stop = ray("stop", "cmd_long")
        assert stop.returncode == 0 and "was stopped" in stop.stdout
        assert "started" in ray("logs", "cmd_long").stdout
        assert ray("delete", "cmd_long").returncode == 0
        gone = ray("status", "cmd_long")
        assert gone.returncode == 1 and "Job cmd_long does not exist" in gone.stdout + gone.stderr

    def test_logs_follow_of_a_running_job_ends_with_it(self, ray):
        assert ray("submit", "--no-wait", "--submission-id", "cmd_follow", "--", "bash", "-c", "echo one; sleep 3; echo two").returncode == 0
        result = ray("logs", "cmd_follow", "--follow")
        assert result.returncode == 0
        assert "one" in result.stdout and "two" in result.stdout and "succeeded" in result.stdout

    def test_a_name_that_is_taken_is_refused(self, ray):
        assert ray("submit", "--no-wait", "--submission-id", "cmd_twice", "--", "true").returncode == 0
        again = ray("submit", "--no-wait", "--submission-id", "cmd_twice", "--", "true")
        assert again.returncode == 1
        assert "cmd_twice already exists. Please use a different submission_id" in again.stdout + again.stderr

    def test_a_wrong_token_is_refused(self, ray):
        result = ray("list", env={"RAY_AUTH_TOKEN": "deadbeef"})
        assert result.returncode != 0
        assert "authentication" in (result.stdout + result.stderr).lower()
