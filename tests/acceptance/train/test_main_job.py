"""What quickstart.sh runs once the cluster is up: from nothing to a model that answers sums it has never seen."""

import json
import pathlib
import re
import subprocess

from argosy_cluster import argosy_binary

ROOT = pathlib.Path(__file__).resolve().parents[3]


def test_the_main_job_teaches_a_small_llama_to_add(cluster, tmp_path):
    environment = dict(cluster.environment, ARGOSY_JOB_ADDRESS=cluster.dashboard)
    environment["PATH"] = f"{pathlib.Path(argosy_binary()).parent}:{environment['PATH']}"
    result = subprocess.run([ROOT / "deploy/main_job.sh", tmp_path], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                            text=True, timeout=500)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    assert re.search(r"^rank 0: +node large-memory .* device cpu", result.stdout, re.M)

    rows = [json.loads(line) for line in open(tmp_path / "metrics.jsonl")]
    exact = next(row for row in rows if "exact" in row)
    assert exact["exact"] >= 0.9 * exact["exact_of"] and exact["exact_of"] == 500
    before, after = map(float, re.search(r"^perplexity: ([\d.]+) -> ([\d.]+)", result.stdout, re.M).groups())
    assert before > 10 * after

    checkpoint = tmp_path / "checkpoints" / "epoch-20"
    answer = cluster.argosy("generate", "--model", checkpoint, "--prompt", "<START_Q>48+27<END_Q><START_C><END_C><START_A>",
                            "--max-new-tokens", 4)
    assert answer.stdout.startswith("075"), answer.stdout + answer.stderr
