"""The raw HTTP routes of a running cluster: statuses and words that clients match."""

import json
import urllib.error
import urllib.request

from argosy_cluster import wait_until


def call(cluster, method, path, body=None, headers=None, token=True):
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(cluster.dashboard + path, data=data, method=method, headers=headers or {})
    if token:
        request.add_header("Authorization", f"Bearer {cluster.token}")
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_version_names_the_release_whose_api_this_is(cluster):
    status, text = call(cluster, "GET", "/api/version")
    assert status == 200
    version = json.loads(text)
    assert version["version"] == "4" and version["ray_version"] == "2.60.0" and version["session_name"]


def test_token_is_asked_for(cluster):
    assert call(cluster, "GET", "/api/version", token=False) == (401, "Unauthorized: Missing authentication token")
    assert call(cluster, "GET", "/api/version", headers={"X-Ray-Authorization": "Bearer no"}, token=False) == (
        403, "Forbidden: Invalid authentication token")
    assert call(cluster, "GET", "/api/version", headers={"X-Ray-Authorization": f"Bearer {cluster.token}"}, token=False)[0] == 200
    assert call(cluster, "GET", "/api/gcs_healthz", token=False) == (200, "success")


def test_unknown_things_are_404_with_their_name(cluster):
    assert call(cluster, "GET", "/api/jobs/nope") == (404, "Job nope does not exist")
    assert call(cluster, "GET", "/api/jobs/nope/logs") == (404, "Job nope does not exist")
    assert call(cluster, "POST", "/api/jobs/nope/stop") == (404, "Job nope does not exist")
    assert call(cluster, "DELETE", "/api/jobs/nope") == (404, "Job nope does not exist")
    assert call(cluster, "GET", "/api/packages/gcs/_ray_pkg_0000000000000000.zip") == (
        404, "Package gcs://_ray_pkg_0000000000000000.zip does not exist")
    assert call(cluster, "GET", "/api/jobs") == (404, "404: Not Found")
    assert call(cluster, "PUT", "/api/jobs/") == (405, "405: Method Not Allowed")


def test_wrong_fields_are_400_and_start_nothing(cluster):
    before = call(cluster, "GET", "/api/jobs/")
    for body, words in [
        (b"{bad", "not JSON"),
        ({"submission_id": "zz"}, "missing 1 required positional argument: 'entrypoint'"),
        ({"entrypoint": 5}, "entrypoint must be a string, got <class 'int'>"),
        ({"entrypoint": "echo 1", "bogus": 1}, "got an unexpected keyword argument 'bogus'"),
        ({"entrypoint": "echo 1", "submission_id": "a/b c"}, "letters, digits"),
        ({"entrypoint": "echo 1", "submission_id": "../../etc/x"}, "letters, digits"),
    ]:
        status, text = call(cluster, "POST", "/api/jobs/", body)
        assert status == 400 and words in text
    assert call(cluster, "GET", "/api/jobs/") == before


def test_a_page_of_another_origin_cannot_submit(cluster):
    headers = {"Origin": "http://evil.example", "User-Agent": "Mozilla/5.0 (X11) Gecko"}
    assert call(cluster, "POST", "/api/jobs/", {"entrypoint": "echo 1"}, headers) == (405, "'POST' method not allowed for browser traffic.")


def test_a_job_that_no_node_can_take_waits_and_says_why(cluster):
    status, _ = call(cluster, "POST", "/api/jobs/", {"entrypoint": "echo x", "submission_id": "http_waits", "entrypoint_num_gpus": 800})
    assert status == 200

    def explained():
        state = json.loads(call(cluster, "GET", "/api/argosy/cluster")[1])
        return [demand for demand in state["pending"] if "http_waits" in demand["what"]]

    demand = wait_until(explained, what="the reason")[0]
    assert "GPU" in demand["explanation"]
    job = json.loads(call(cluster, "GET", "/api/jobs/http_waits")[1])
    assert job["status"] == "PENDING" and "waiting for resources" in job["message"]
    assert json.loads(call(cluster, "POST", "/api/jobs/http_waits/stop")[1]) == {"stopped": True}
    wait_until(lambda: json.loads(call(cluster, "GET", "/api/jobs/http_waits")[1])["status"] == "STOPPED", what="STOPPED")


def test_the_cluster_is_listed_with_its_resources(cluster):
    state = json.loads(call(cluster, "GET", "/api/argosy/cluster")[1])
    assert len(state["nodes"]) >= 1
    assert state["nodes"][0]["alive"] and state["nodes"][0]["resources_total"]["CPU"] > 0


def test_a_job_that_printed_bytes_and_failed_is_shown_like_any_other(cluster):
    """The end of its log is part of its message, and everything that lists jobs reads that."""
    status, _ = call(cluster, "POST", "/api/jobs/", {"entrypoint": r"printf 'bad \377\376 end\n'; exit 3", "submission_id": "http_bytes"})
    assert status == 200

    def ended():
        job = json.loads(call(cluster, "GET", "/api/jobs/http_bytes")[1])
        return job if job["status"] == "FAILED" else None

    job = wait_until(ended, what="its end")
    assert job["submission_id"] == "http_bytes" and job["type"] == "SUBMISSION" and job["driver_exit_code"] == 3
    assert "bad \ufffd\ufffd end" in job["message"]
    assert "http_bytes" in [job["submission_id"] for job in json.loads(call(cluster, "GET", "/api/jobs/")[1])]
    shown = cluster.argosy("status", "--address", cluster.address)
    assert shown.returncode == 0, shown.stderr


def test_a_path_that_is_no_text_is_refused_by_name(cluster):
    status, text = call(cluster, "GET", "/api/jobs/%ff%fe")
    assert status == 400 and "is not UTF-8" in text
    status, text = call(cluster, "POST", "/api/jobs/", {"entrypoint": "env", "runtime_env": {"env_vars": {"A": "x\0y"}}})
    assert status == 400 and '"A" must not contain a zero byte' in text
