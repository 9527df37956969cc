"""argosy list, get, summary, logs, timeline, memory and stack against a program that leaves something of each."""

import json
import re

import pytest

from argosy_cluster import wait_until


@pytest.fixture(scope="module")
def held(observed, tmp_path_factory):
    """The cluster while the program holds its tasks, actor and objects; `.job` is its job id."""
    until = tmp_path_factory.mktemp("hold") / "until"
    program = observed.start("hold", until)
    for line in program.stdout:
        if line == "ready\n":
            break
    observed.job = wait_until(lambda: [t["job_id"] for t in tasks(observed, "name=the-running-one", "state=RUNNING")], what="the running task")[0]
    yield observed
    until.touch()
    program.communicate(timeout=60)


def tasks(cluster, *filters, job=True):
    mine = ["job_id=" + cluster.job] if job and hasattr(cluster, "job") else []
    return rows(cluster, "tasks", *filters, *mine)


def rows(cluster, kind, *filters, more=()):
    arguments = ["list", kind, "--json", "--detail", "--address", cluster.address, *more]
    for one in filters:
        arguments += ["--filter", one]
    result = cluster.argosy(*arguments)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["warnings"] == []
    return answer["rows"]


def test_nodes_are_listed_with_what_they_have(observed):
    found = {row["name"]: row for row in rows(observed, "nodes")}
    assert set(found) == {"here", "there"}
    assert found["there"]["resources_total"]["away"] == 2 and found["here"]["is_head_node"]
    assert [row["name"] for row in rows(observed, "nodes", "resources_total.away=2")] == ["there"]
    assert [row["name"] for row in rows(observed, "nodes", "name!=there")] == ["here"]


def test_tasks_are_listed_by_state_with_why_they_wait_and_failed(held):
    wait_until(lambda: len(tasks(held, "name=Square", "state=FINISHED")) == 5, what="the squares")
    failed = wait_until(lambda: tasks(held, "name=Throws", "state=FAILED"), what="the failure")[0]
    assert failed["reason"].endswith("a bad day") and failed["seconds"] is not None
    impossible = wait_until(lambda: tasks(held, "name=the-impossible-one"), what="the impossible task")[0]
    assert impossible["state"] == "PENDING" and "submarine" in impossible["reason"]
    behind = wait_until(lambda: tasks(held, "name=the-one-behind"), what="the task behind it")[0]
    assert behind["state"] == "PENDING" and behind["reason"] == "waits for its arguments"
    running = tasks(held, "state=running")
    assert [row["name"] for row in running] == ["the-running-one"], "states match in any case"
    call = wait_until(lambda: tasks(held, "kind=ACTOR_CALL", "state=FINISHED"), what="the call")[0]
    assert call["actor_id"] and call["submitted"] is None or call["started"]


def test_what_is_left_out_is_counted(held):
    wait_until(lambda: len(tasks(held, "name=Square", "state=FINISHED")) == 5, what="the squares")
    limited = held.argosy("list", "tasks", "--address", held.address, "--limit", "2", "--filter", "name=Square", "--filter", "job_id=" + held.job)
    assert len(limited.stdout.splitlines()) == 3 and "3 more tasks are not shown" in limited.stderr
    answer = json.loads(held.argosy("list", "tasks", "--address", held.address, "--limit", "2", "--filter", "name=Square", "--filter",
                                    "job_id=" + held.job, "--json").stdout)
    assert (answer["shown"], answer["left_out"]) == (2, 3)


def test_actors_workers_jobs_and_groups(held):
    actor = rows(held, "actors", "name=keeper", "state=ALIVE")[0]
    assert actor["class_name"] == "Speaker"
    workers = rows(held, "workers", "job_id=" + held.job)
    assert {row["type"] for row in workers} == {"DRIVER", "ACTOR", "WORKER"}
    assert [row["actor_id"] for row in workers if row["type"] == "ACTOR"] == [actor["actor_id"]]
    assert all(row["pid"] > 0 for row in workers)
    assert [row["state"] for row in rows(held, "jobs", "job_id=" + held.job)] == ["RUNNING"]
    assert rows(held, "placement-groups") == []


def test_get_shows_everything_about_one(held):
    actor = rows(held, "actors", "name=keeper", "state=ALIVE")[0]
    by_name = held.argosy("get", "actor", "keeper", "--json", "--address", held.address)
    assert by_name.returncode == 0 and json.loads(by_name.stdout)["actor_id"] == actor["actor_id"]
    by_digits = held.argosy("get", "actor", actor["actor_id"][:10], "--address", held.address)
    assert by_digits.returncode == 0 and re.search(r"^class_name +Speaker$", by_digits.stdout, re.M)
    nobody = held.argosy("get", "actor", "nobody", "--address", held.address)
    assert nobody.returncode == 1 and "no actor with the id or name nobody" in nobody.stderr


def test_summary_counts_tasks_by_function(held):
    wait_until(lambda: len(tasks(held, "name=Square", "state=FINISHED")) == 5, what="the squares")
    result = held.argosy("summary", "tasks", "--json", "--filter", "name=Square", "--address", held.address)
    assert result.returncode == 0, result.stderr
    assert [(row["name"], row["kind"], row["finished"]) for row in json.loads(result.stdout)["rows"]] == [("Square", "TASK", 5)]


def test_wrong_questions_say_what_there_is(observed):
    kind = observed.argosy("list", "dragons", "--address", observed.address)
    assert kind.returncode != 0 and "there are nodes, actors, tasks" in kind.stderr
    field = observed.argosy("list", "nodes", "--filter", "colour=red", "--address", observed.address)
    assert field.returncode == 2 and "nodes have no field colour; they have node_id" in field.stderr
    form = observed.argosy("list", "nodes", "--filter", "name", "--address", observed.address)
    assert form.returncode == 2 and "FIELD=VALUE" in form.stderr
    token = observed.argosy("list", "nodes", "--address", observed.address, env={"ARGOSY_AUTH_TOKEN": "wrong"})
    assert token.returncode == 1 and "token" in token.stderr


def test_logs_of_a_task_are_what_it_printed_and_of_an_actor_all(held):
    wait_until(lambda: len(tasks(held, "name=Square", "state=FINISHED")) == 5, what="the squares")
    texts = [held.argosy("logs", "--task", row["task_id"], "--address", held.address).stdout for row in tasks(held, "name=Square")]
    assert sorted(texts) == [f"square of {i}\n" for i in range(5)]
    actor = held.argosy("logs", "--actor", "keeper", "--address", held.address)
    assert actor.stdout == "made number\nnumber 7\n", actor.stderr
    assert held.argosy("logs", "--actor", "keeper", "--tail", "1", "--address", held.address).stdout == "number 7\n"
    running = tasks(held, "name=the-running-one")[0]
    assert held.argosy("logs", "--task", running["task_id"], "--address", held.address).stdout == "waiting\n"
    assert held.argosy("logs", "--worker", running["worker_id"], "--address", held.address).stdout.endswith("waiting\n")
    node = held.argosy("logs", "--node", "there", "--address", held.address)
    assert "registered with cluster" in node.stdout or "cluster" in node.stdout, node.stderr
    nobody = held.argosy("logs", "--worker", "ffffffff", "--address", held.address)
    assert nobody.returncode == 1 and "no log on any connected node" in nobody.stderr
    both = held.argosy("logs", "--worker", "ffffffff", "--task", "ffff", "--address", held.address)
    assert both.returncode == 2 and "one of --actor" in both.stderr


def test_timeline_is_a_chrome_trace(held, tmp_path):
    wait_until(lambda: len(tasks(held, "name=Square", "state=FINISHED")) == 5, what="the squares")
    path = tmp_path / "trace.json"
    result = held.argosy("timeline", "-o", path, "--filter", "job_id=" + held.job, "--address", held.address)
    assert result.returncode == 0, result.stderr
    events = json.loads(path.read_text())["traceEvents"]
    squares = [event for event in events if event["name"] == "Square"]
    assert len(squares) == 5 and all(event["ph"] == "X" and event["dur"] >= 0 and event["args"]["state"] == "FINISHED" for event in squares)
    names = {event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "process_name"}
    assert names and names <= {"node here", "node there"}
    assert {event["pid"] for event in squares} <= {event["pid"] for event in events if event["ph"] == "M"}


def test_memory_says_where_objects_are_and_who_holds_them(held):
    big = wait_until(lambda: [row for row in rows(held, "objects") if row["size"] > 3 << 20 and row["where"] == "STORE"], what="the big object")[0]
    assert big["state"] == "SEALED"
    owner = [holder for holder in big["held_by"] if holder["is_owner"]]
    assert len(owner) == 1 and owner[0]["handles"] == 1
    text = held.argosy("memory", "--address", held.address)
    assert text.returncode == 0, text.stderr
    assert big["object_id"] in text.stdout and re.search(r"^node here: .* used by \d+ objects$", text.stdout, re.M)
    driver = [row for row in rows(held, "workers", "type=DRIVER", "job_id=" + held.job)][0]
    assert f"owner  {driver['worker_id'][:8]} (pid {driver['pid']}): 1 handles" in text.stdout


def test_stack_shows_where_a_worker_is_and_it_goes_on(held):
    running = tasks(held, "name=the-running-one")[0]
    result = held.argosy("stack", running["worker_id"][:12], "--address", held.address)
    assert result.returncode == 0, result.stderr
    assert "LoopUntilThere" in result.stdout and "main" in result.stdout, result.stdout
    driver = rows(held, "workers", "type=DRIVER", "job_id=" + held.job)[0]
    assert "Hold" in held.argosy("stack", driver["worker_id"], "--address", held.address).stdout
    assert tasks(held, "name=the-running-one")[0]["state"] == "RUNNING"
    nobody = held.argosy("stack", "ffffffff", "--address", held.address)
    assert nobody.returncode == 1 and "argosy list workers" in nobody.stderr


def test_what_a_finished_job_did_is_still_listed(observed):
    assert observed.run("prints").returncode == 0
    spoke = tasks(observed, "name=Speak", "state=FINISHED", "node=there", job=False)
    assert spoke, "reported before the driver left"
    assert observed.argosy("logs", "--task", spoke[0]["task_id"], "--address", observed.address).stdout == "from there\n"
    died = tasks(observed, "name=Die", job=False)[0]
    assert died["state"] == "FAILED" and "died" in died["reason"]
