"""Metrics of user code at the dashboard's port, and traces."""

import json
import re
import urllib.error
import urllib.request

import pytest

from argosy_cluster import wait_until


def read(cluster, token):
    request = urllib.request.Request(cluster.dashboard + "/metrics", headers={"Authorization": "Bearer " + token} if token else {})
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return response.read().decode()


def value(text, name, **labels):
    """The sum of the samples of that name that have these labels."""
    found = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
             if re.match(re.escape(name) + r"(\{| )", line) and all(f'{key}="{wanted}"' in line for key, wanted in labels.items())]
    return sum(found) if found else None


def test_metrics_are_not_for_everybody(observed):
    for token in ["", "wrong"]:
        with pytest.raises(urllib.error.HTTPError) as refused:
            read(observed, token)
        assert refused.value.code in (401, 403)


def test_the_cluster_is_measured(observed):
    text = read(observed, observed.token)
    assert value(text, "argosy_nodes", state="ALIVE") == 2
    assert value(text, "argosy_resource_total", node="there", resource="away") == 2
    for line in text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) [a-zA-Z_:][a-zA-Z0-9_:]* .*|[a-zA-Z_:][a-zA-Z0-9_:]*(\{.*\})? [-+0-9.eInfNa]+", line), line


def test_what_user_code_counts_is_summed_and_stays_after_the_job(observed):
    result = observed.run("metrics")
    assert result.returncode == 0, result.stderr
    assert "accepted" not in result.stdout and "tasks_submitted is a counter already" in result.stdout
    text = wait_until(lambda: (lambda t: t if value(t, "rows_read", table="orders") else None)(read(observed, observed.token)), what="the counter")
    assert value(text, "rows_read", table="orders") == 7
    assert value(text, "tasks_submitted") == 2
    assert value(text, "load_seconds_bucket", le="0.1") == 0
    assert value(text, "load_seconds_bucket", le="1") == 2
    assert value(text, "load_seconds_sum") == 1
    assert "# TYPE load_seconds histogram" in text and "# HELP rows_read Rows read" in text
    # A gauge goes with its process.
    wait_until(lambda: value(read(observed, observed.token), "depth") is None, what="the end of the workers")


def test_a_trace_is_carried_through_calls(observed):
    result = observed.run("trace")
    assert result.returncode == 0, result.stderr
    outer, inner = re.search(r"^trace (\S+) (\S+)$", result.stdout, re.M).groups()
    trace = "0af7651916cd43dd8448eb211c80319c"
    assert outer.split("-")[1] == inner.split("-")[1] == trace and outer != inner
    assert re.search(r"^without \.$", result.stdout, re.M) and "refused: traceparent" in result.stdout

    def spans():
        answer = observed.argosy("list", "tasks", "--json", "--detail", "--filter", "trace=" + trace, "--address", observed.address)
        rows = {row["name"]: row for row in json.loads(answer.stdout)["rows"]}
        return rows if set(rows) == {"Outer", "Inner"} else None

    rows = wait_until(spans, what="the trace's tasks")
    assert rows["Outer"]["parent_span"] == "b7ad6b7169203331"
    assert rows["Inner"]["parent_span"] == rows["Outer"]["span"] == outer.split("-")[2]
    assert rows["Inner"]["span"] == inner.split("-")[2]
