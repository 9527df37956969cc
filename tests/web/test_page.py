"""The dashboard's page in headless Chromium, against a running cluster."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


def test_a_job_appears_and_its_log_scrolls_while_it_runs(cluster, tmp_path):
    script = "for i in $(seq 1 300); do echo line $i of 300; sleep 0.05; done; echo the very end"
    submitted = cluster.argosy("job", "submit", "--no-wait", "--submission-id", "web_scroll", "--", "bash", "-c", script)
    assert submitted.returncode == 0, submitted.stderr
    screenshots = os.environ.get("ARGOSY_SCREENSHOTS", str(tmp_path))
    # The set-up brings Node.js into the virtual environment where the system has none.
    node = shutil.which("node", path=os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]))
    result = subprocess.run([node, HERE / "page.mjs", cluster.dashboard, cluster.token, "web_scroll", "the very end", screenshots],
                            capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout.splitlines()[-1])

    assert seen["wrongToken"] == "This is not the cluster's token."
    assert seen["cookieVisible"] == "", "scripts can read the token"
    assert "CPU" in seen["node"]
    assert "web_scroll" in seen["row"] and "RUNNING" in seen["row"]
    assert seen["stateWhileRunning"] == "live" and seen["jobWhileRunning"] == "RUNNING"
    assert seen["movedWhileReading"] is False
    assert seen["found"].startswith("line 10 of 300")
    assert seen["job"] == "SUCCEEDED"

    # The connection broke once; the page went on at the next byte, and nothing is missing or doubled.
    assert len(seen["sockets"]) == 2
    assert seen["sockets"][0].endswith("offset=0") and not seen["sockets"][1].endswith("offset=0")
    assert seen["lines"] == len(seen["downloaded"].splitlines())
    assert seen["downloaded"].splitlines()[-301:] == [f"line {i} of 300" for i in range(1, 301)] + ["the very end"]

    assert seen["errors"] == []
    origin = cluster.dashboard
    assert [url for url in seen["requests"] if not url.startswith((origin + "/", "blob:"))] == []
