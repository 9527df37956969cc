"""Jobs of a higher priority come before others where they wait for the same nodes."""

import pathlib
import shutil
import tempfile

import pytest

from argosy_cluster import Cluster, build_dir, wait_until

PROGRAM = build_dir() / "tests" / "observed"


@pytest.fixture
def one_cpu():
    home = pathlib.Path(tempfile.mkdtemp(prefix="argosy-priority-"))
    running = Cluster(home, ["--num-cpus", "1", "--object-store-memory", "64M"])
    yield running
    running.stop()
    shutil.rmtree(home, ignore_errors=True)


def submit(cluster, name, *flags, work):
    result = cluster.argosy("job", "submit", "--no-wait", "--submission-id", name, *flags, "--", PROGRAM, "work", *work)
    assert result.returncode == 0, result.stderr


def ends(cluster, name):
    wait_until(lambda: "SUCCEEDED" in cluster.argosy("job", "status", name).stdout, 60, f"the end of job {name}")


def test_a_job_of_a_higher_priority_has_the_node_until_it_is_done(one_cpu):
    order = one_cpu.home / "order"
    lines = lambda: order.read_text().split() if order.exists() else []
    submit(one_cpu, "patient", work=[order, "patient", 400, 50])
    wait_until(lambda: len(lines()) >= 3, 60, "the first job's work")
    submit(one_cpu, "urgent", "--priority", "10", work=[order, "urgent", 20, 50])
    ends(one_cpu, "urgent")
    between = lines()[lines().index("urgent"):]
    between = between[: len(between) - between[::-1].index("urgent")]
    # In turns there would be about as many of the other job's.
    assert between.count("urgent") == 20 and between.count("patient") <= 3, between
    assert lines().count("patient") < 400, "the first job was not done already"
    one_cpu.argosy("job", "stop", "patient")
    detail = one_cpu.argosy("job", "status", "urgent", "--json").stdout
    assert '"argosy.priority": "10"' in detail


def test_jobs_of_the_same_priority_share_the_node(one_cpu):
    order = one_cpu.home / "order"
    lines = lambda: order.read_text().split() if order.exists() else []
    submit(one_cpu, "first", work=[order, "first", 2000, 50])   # 100 s of work
    wait_until(lambda: len(lines()) >= 3, 60, "the first job's work")
    submit(one_cpu, "second", work=[order, "second", 40, 50])
    ends(one_cpu, "second")
    between = lines()[lines().index("second"):]
    assert between.count("second") == 40 and between.count("first") > 0, between
    one_cpu.argosy("job", "stop", "first")


def test_a_priority_that_is_none_is_refused_with_what_is_right(one_cpu):
    for value in ("1001", "high", "2.5"):
        result = one_cpu.argosy("job", "submit", "--no-wait", "--priority", value, "--", "true")
        assert result.returncode != 0 and "--priority" in result.stderr, result.stderr
    result = one_cpu.argosy("job", "submit", "--no-wait", "--metadata", "argosy.priority=high", "--", "true")
    assert result.returncode != 0
    assert 'metadata argosy.priority is "high": want a whole number from -1000 to 1000' in result.stderr, result.stderr
    result = one_cpu.argosy("job", "submit", "--env", "ARGOSY_JOB_PRIORITY=soon", "--", PROGRAM, "work")
    assert result.returncode != 0 and 'ARGOSY_JOB_PRIORITY is "soon"; it must be a whole number from -1000 to 1000' in result.stdout, result.stdout
