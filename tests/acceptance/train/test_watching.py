"""What can be seen of a run while it goes on and after it."""

import json
import re
import shutil
import xml.etree.ElementTree

import pytest
import torch
from safetensors.torch import load_file, save_file

import event_files
from training_cluster import verb

FLAGS = ["--mx", "no", "--ctx-len", 48, "--batch-size-per-device", 4, "--lr", 1e-3, "--sample-prompts", 0]


@pytest.fixture(scope="module")
def run(cluster, sums, tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    return cluster.finetune(folder, *sums.flags(), *FLAGS, "--max-steps", 12, "--profile", 3, "--zero-stage", 3, "--eval-rows", 10,
                            "--print-schedule", ranks=2)


def test_the_schedule_is_printed(run):
    lines = [line.split(None, 3) for line in re.findall(r"^(?:step|gather|forward|loss|backward|release|reduce) .*$", run.stdout, re.M)]
    uses = [(action, unit) for action, _, _, unit in lines if action in ("forward", "loss", "backward")]
    assert uses == [("forward", "embedding"), ("forward", "layer 0"), ("forward", "layer 1"), ("loss", "head"), ("backward", "layer 1"),
                    ("backward", "layer 0"), ("backward", "embedding")]
    # In ZeRO-3 each use of a layer follows its gather, and each gradient is reduced once.
    for unit in ("layer 0", "layer 1"):
        assert [action for action, _, _, name in lines if name == unit and action in ("gather", "reduce")] in (
            ["gather", "gather", "reduce"], ["gather", "reduce"])
    assert sum(action == "reduce" for action, *_ in lines) == 4 and "\ncommit\n" in run.stdout


def test_the_output_folder_has_the_metrics_of_every_step(run):
    records = [json.loads(line) for line in open(run.output_dir / "metrics.jsonl")]
    assert records == run.metrics, "what --metrics-path has at the driver"
    steps = [row for row in records if "loss" in row]
    assert [row["total_step"] for row in steps] == list(range(1, 13))
    for row in steps:
        parts = sum(row[name + "_seconds"] for name in ("forward", "backward", "optimizer", "waiting"))
        assert 0 < parts <= row["seconds"] * 1.01 and row["forward_seconds"] > 0 and row["backward_seconds"] > 0, row
        assert row["tokens_per_second"] > 0 and 0 < row["useful_share"] <= 1 and row["peak_bytes"] > 0
    assert any("base_eval_loss" in row for row in records)
    assert re.search(r"ETA: .* \[[#.]{10}\] mem: ", run.stdout)


def test_tensorboard_reads_the_same_numbers(run):
    files = list((run.output_dir / "tensorboard").iterdir())
    assert len(files) == 1 and ".tfevents." in files[0].name
    scalars = event_files.scalars(files[0])
    steps = [row for row in run.metrics if "loss" in row]
    assert scalars["train/loss"] == pytest.approx({row["total_step"]: row["loss"] for row in steps}, rel=1e-6)
    assert set(scalars["train/lr"]) == set(range(1, 13)) and set(scalars["epoch/eval_loss"]) == {12}


def test_the_profile_has_the_lines_of_the_schedule_for_each_rank(run):
    events = json.loads((run.output_dir / "profile.json").read_text())["traceEvents"]
    for rank in (0, 1):
        lines = [event for event in events if event["pid"] == rank and event["ph"] == "X"]
        names = [event["name"] for event in lines]
        assert names.count("commit") == 3 and names.count("backward layer 0") == 3 and names.count("loss head") == 3
        begins = [event["ts"] for event in lines]
        assert begins == sorted(begins) and all(event["dur"] >= 0 for event in lines)


def test_report_prints_base_against_tuned_and_plots(run):
    told = verb("train", "report", run.output_dir).stdout
    assert re.search(r"^ +base +- +\d\.\d{4} +\d", told, re.M) and re.search(r"^ +epoch 1 +\d\.\d{4} +\d\.\d{4} +\d", told, re.M)
    for name in ("loss.svg", "throughput.svg", "epochs.svg"):
        root = xml.etree.ElementTree.parse(run.output_dir / "report" / name).getroot()
        assert root.tag.endswith("svg")
    assert len(xml.etree.ElementTree.parse(run.output_dir / "report" / "loss.svg").getroot().findall("{*}path")) == 2


def test_report_of_a_folder_without_a_run_says_so(tmp_path, cluster):
    result = cluster.argosy("train", "report", tmp_path)
    assert result.returncode != 0 and str(tmp_path) in result.stderr and "metrics.jsonl" in result.stderr


def test_numbers_that_are_not_finite_are_named_and_end_the_run(cluster, tmp_path, sums):
    model = tmp_path / "model"
    shutil.copytree(sums.model, model)
    weights = load_file(model / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] = torch.nan
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    run = cluster.finetune(tmp_path, "--model-name", model, "--train-path", sums.train, *FLAGS, "--max-skipped-steps", 4, "--zero-stage", 3, ranks=2,
                           check=False)
    error = run.stderr.strip().splitlines()[-1]
    print("\n" + error)
    assert run.returncode != 0 and error.startswith("error: step 4 is not finite")
    element = 3 * weights["model.layers.1.mlp.up_proj.weight"].shape[1] + 5
    assert re.search(rf"rank [01]: weight model\.layers\.1\.mlp\.up_proj\.weight \(layer 1, element {element}\)", error), error
    assert "4 steps in a row" in error and not (tmp_path / "out" / "epoch-1").exists()


def test_frozen_tensors_keep_their_values_and_the_others_learn(cluster, tmp_path, sums):
    run = cluster.finetune(tmp_path, *sums.flags(test=False), *FLAGS, "--max-steps", 6, "--freeze", r"embed_tokens", "--freeze", r"layers\.0\.",
                           "--weight-decay", 0.1, ranks=2)
    before, after = load_file(sums.model / "model.safetensors"), load_file(run.checkpoint / "model.safetensors")
    for name, value in after.items():
        frozen = "embed_tokens" in name or "layers.0." in name
        assert torch.equal(value, before[name]) == frozen, name
    (tmp_path / "none").mkdir()
    refused = cluster.finetune(tmp_path / "none", *sums.flags(test=False), *FLAGS, "--freeze", "no_such_tensor", check=False)
    assert refused.returncode != 0 and "no_such_tensor" in refused.stderr and "matches no tensor" in refused.stderr
