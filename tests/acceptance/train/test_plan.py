"""What a run takes is known before it starts, and one that cannot fit is refused."""

import json
import re

import pytest

import reference
from test_bad_input import refused
from training_cluster import verb


def rows_of(text):
    return [line.split() for line in re.search(r"^stage recompute .*\n((?: +\d .*\n)+)", text, re.M)[1].splitlines()]


def test_plan_names_the_memory_of_each_stage_and_the_cheapest_that_fits(sums):
    told = verb("plan", "--model", "70b", "--num-devices", 32, "--gpus-per-node", 8, "--node-memory", 640).stdout
    assert verb("plan", "--model", "70b", "--num_devices", 32, "--gpus_per_node", 8, "--node_memory=640").stdout == told
    table = rows_of(told)
    assert [(row[0], row[1]) for row in table] == [(str(stage), mode) for stage in range(4) for mode in ("none", "selective", "full")]
    totals = [float(row[8]) for row in table]
    assert totals[-1] == min(totals) and [row[-1] for row in table] == ["no"] * 9 + ["fits"] * 3
    assert "cheapest:  --zero-stage 3 --recompute none fits" in told and "18 M/N K" in told
    assert "2 layers of width 64" in verb("plan", "--model", sums.model).stdout


def test_a_run_that_fits_no_node_is_refused_with_what_would(cluster, tmp_path, sums):
    message = refused(cluster, tmp_path, *sums.flags(test=False), "--batch-size-per-device", 10_000_000)
    assert "the run needs" in message and "it would fit with --batch-size-per-device" in message


@pytest.fixture(scope="module")
def larger(sums, tmp_path_factory):
    """43 million parameters: enough that they, and not libraries, fill the memory."""
    folder = tmp_path_factory.mktemp("larger")
    verb("model", "init", "--train-text", sums.train, "--output-dir", folder / "model", "--hidden-size", 576, "--intermediate-size", 1536,
         "--layers", 12, "--heads", 9, "--kv-heads", 3)
    return folder / "model"


@pytest.mark.parametrize("ranks, stage, precision, recompute, lora", [
    (1, 0, "bf16", "full", []), (1, 0, "bf16", "selective", []), (2, 3, "bf16", "full", []), (2, 3, "bf16", "none", []), (2, 2, "no", "none", []),
    (1, 0, "bf16", "none", ["--lora"]), (2, 3, "no", "none", ["--lora"])])
def test_the_plan_is_within_a_tenth_of_what_a_run_takes(cluster, tmp_path, sums, larger, ranks, stage, precision, recompute, lora):
    # Rows of the whole context: a shorter batch would take less than planned.
    rows = [json.loads(line)["input"] for line in open(sums.train)]
    long = tmp_path / "rows.jsonl"
    long.write_text("".join(json.dumps({"input": " ".join(rows[i:] + rows[:i])[:4000]}) + "\n" for i in range(24)))
    sizes = ["--mx", precision, "--ctx-len", 256, "--batch-size-per-device", 2, *lora]
    run = cluster.finetune(tmp_path, "--model-name", larger, "--train-path", long, *sizes, "--zero-stage", stage, "--max-steps", 3, "--save-state",
                           "none", "--sample-prompts", 0, *(["--no-grad-ckpt"] if recompute == "none" else ["--recompute", recompute]), ranks=ranks)
    measured = max(row["peak_bytes"] for row in run.metrics if "peak_bytes" in row) / 1e9
    told = verb("plan", "--model", larger, "--num-devices", ranks, *sizes).stdout
    planned = next(float(row[7]) for row in rows_of(told) if row[0] == str(stage) and row[1] == recompute)
    print(f"\n{ranks} ranks, ZeRO-{stage}, recompute {recompute} {lora}: planned {planned:.2f} GB, measured {measured:.3f} GB")
    assert abs(planned - measured) <= 0.1 * measured


def test_rows_dealt_by_speed_give_the_same_losses(cluster, tmp_path, sums):
    losses = []
    for balance in ([], ["--balance"]):
        folder = tmp_path / str(len(balance))
        folder.mkdir()
        run = cluster.finetune(folder, *sums.flags(test=False), "--mx", "no", "--ctx-len", 48, "--batch-size-per-device", 4, "--max-steps", 20, "--lr",
                               1e-3, "--sample-prompts", 0, *balance, ranks=3)
        losses.append(run.losses)
        deals = [row["deal"] for row in run.metrics if "deal" in row]
        assert bool(deals) == bool(balance) and all(len(deal) == 3 and abs(sum(deal) - 1) < 1e-9 and min(deal) > 0 for deal in deals)
    assert reference.relative(*losses) <= 2e-6
