"""A fine-tuning run as a job: what people see of it, while it runs and after."""

import json
import re


def test_finetune_as_a_job_reports_progress_quality_and_times(cluster, tmp_path, sums):
    metrics_path = tmp_path / "metrics.jsonl"
    job = "sums-on-three-ranks"
    command = ["argosy", "finetune", *sums.flags(added_tokens=True), "--output-dir", tmp_path / "out", "--answer-marker", "<START_A>",
               "--num-devices", 3, "--threads", 1, "--trainer-resources", '{"large_cpu_mem": 0.01}', "--mx", "no", "--ctx-len", 48,
               "--batch-size-per-device", 8, "--num-epochs", 3, "--lr", 3e-3, "--exact-rows", 20, "--max-new-tokens", 6, "--num-checkpoints-to-keep", 2,
               "--metrics-path", metrics_path]
    submitted = cluster.argosy("job", "submit", "--submission-id", job, "--", *command, timeout=180)
    assert submitted.returncode == 0, submitted.stdout[-4000:] + submitted.stderr[-2000:]
    logs = cluster.argosy("job", "logs", job)
    assert logs.returncode == 0
    status = cluster.argosy("job", "status", job)
    assert "SUCCEEDED" in (status.stdout + status.stderr).upper()

    for where, text in (("logs", logs.stdout), ("submit", submitted.stdout)):
        assert re.search(r"^rank 0: +node large-memory .* device cpu", text, re.M), where
        steps = re.findall(r"^\[epoch (\d)/3 step (\d+)/(\d+)\] loss: ([\d.]+) lr: \S+ grad-norm: \S+ tokens/s: (\d+) useful: \d+% ETA: \d", text, re.M)
        assert {epoch for epoch, *_ in steps} == {"1", "2", "3"}, (where, text)
        assert all(int(rate) > 0 for *_, rate in steps)
        assert re.search(r"^base: +eval loss [\d.]+, perplexity [\d.]+$", text, re.M)
        assert len(re.findall(r"^epoch \d: +train loss [\d.]+, eval loss [\d.]+, perplexity [\d.]+$", text, re.M)) == 3
        assert all(len(re.findall(rf"^  {name}: ", text, re.M)) == 3 for name in ("prompt", "expected", "base", "fine-tuned")), where
        assert re.search(r"^exact: +\d+ of 20 held-out answers", text, re.M)
        table = re.search(r"^ *epoch +steps +train time +eval time .*\n((?: +(?:base|\d+) .*\n)+)", text, re.M)
        assert table and [line.split()[0] for line in table[1].splitlines()] == ["base", "1", "2", "3"], where
        assert re.search(r"^perplexity: [\d.]+ -> [\d.]+ \([\d.]+x lower\)$", text, re.M)
        assert f"\ncheckpoint: {tmp_path}/out/epoch-3\n" in text

    epochs = [row for row in map(json.loads, open(metrics_path)) if "perplexity" in row]
    assert [row["epoch"] for row in epochs] == [1, 2, 3]
    perplexities = [row["perplexity"] for row in epochs]
    assert perplexities == sorted(perplexities, reverse=True) and perplexities[-1] < 20
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["epoch-2", "epoch-3", "metrics.jsonl", "result.json", "tensorboard", "training_state"]


def test_a_job_that_cannot_train_fails_with_its_reason(cluster, tmp_path, sums):
    job = "no-such-model"
    submitted = cluster.argosy("job", "submit", "--submission-id", job, "--", "argosy", "finetune", "--model-name", tmp_path / "nothing",
                               "--train-path", sums.train, "--output-dir", tmp_path / "out")
    assert submitted.returncode != 0
    logs = cluster.argosy("job", "logs", job).stdout
    assert re.search(rf"^error: .*{re.escape(str(tmp_path / 'nothing'))}", logs, re.M), logs
    assert "FAILED" in cluster.argosy("job", "status", job).stdout.upper()
    assert not (tmp_path / "out").exists()
