"""DeepSpeed files as the recipes have them."""

import base64
import json
import pathlib
import re
import resource
import subprocess

import pytest
import torch

import reference
from argosy_cluster import argosy_binary
from training_cluster import verb

ZERO_7B_13B = {
    "stage": 3, "offload_optimizer": {"device": "none"}, "offload_param": {"device": "none"}, "overlap_comm": True, "contiguous_gradients": True,
    "sub_group_size": 1e9, "reduce_bucket_size": 5e8, "stage3_prefetch_bucket_size": 5e8, "stage3_param_persistence_threshold": 1e6,
    "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": True,
    "round_robin_gradients": True}
ZERO_70B = {
    "stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": False}, "overlap_comm": True, "contiguous_gradients": True,
    "round_robin_gradients": True, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto", "gather_16bit_weights_on_model_save": True}
REST = {"gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 10, "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": False}
DS_7B_13B = {"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}, "zero_optimization": ZERO_7B_13B, **REST}
DS_70B = {"fp16": {"enabled": False}, "bf16": {"enabled": True}, "zero_optimization": ZERO_70B, **REST}


def write(folder, config):
    path = folder / "ds.json"
    # Numbers as the recipes' files spell them: 5e8, not 500000000.0.
    path.write_text(json.dumps(config, indent=2).replace("500000000.0", "5e8").replace("1000000000.0", "1e9").replace("1000000.0", "1e6"))
    assert "e8" in path.read_text() or config is not DS_7B_13B
    return path


@pytest.mark.parametrize("config, mx", [(DS_7B_13B, "bf16"), (DS_70B, None)], ids=["ds_7b_13b", "ds_70b"])
def test_the_recipes_configs_train(cluster, tmp_path, sums, config, mx):
    run = cluster.finetune(tmp_path, *sums.flags(test=False), "-dc", write(tmp_path, config), "-bs", 4, "-lr", 1e-3, "--ctx-len", 48, "--max-steps", 3,
                           "--sample-prompts", 0, *(["--mx", mx] if mx else []), ranks=2)
    assert len(run.losses) == 3 and (run.checkpoint / "model.safetensors").exists()
    assert "ZeRO-3, bf16" in run.stdout
    for line in (r"train_batch_size +8 ", r"train_micro_batch_size_per_gpu +4 ", r"zero_optimization\.stage +3 +file"):
        assert re.search(rf"^  {line}", run.stdout, re.M), line


def test_values_of_the_file_are_used_and_flags_win(cluster, tmp_path, sums):
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "gradient_clipping": 0.25,
              "optimizer": {"type": "AdamW", "params": {"lr": 2e-3, "betas": [0.8, 0.95], "eps": 1e-7, "weight_decay": 0.1}},
              "zero_optimization": {"stage": 2}}
    run = cluster.finetune(tmp_path, *sums.flags(test=False), "-dc", write(tmp_path, config), "--mx", "no", "--lr-scheduler", "constant",
                           "--warmup-steps", 0, "--recipe-parity", "--ctx-len", 16, "--max-steps", 4, "--weight-decay", 0.0, "--sample-prompts", 0, ranks=2)
    assert run.learning_rates == [2e-3] * 4
    assert [row["target_tokens"] for row in run.metrics if "loss" in row] == [2 * 2 * 2 * 15] * 4

    model = reference.load_model(sums.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.8, 0.95), eps=1e-7, weight_decay=0.0, foreach=False)
    losses = []
    for ids, mask in reference.padded_batches(sums.model, sums.rows(), ctx_len=16, rows_per_step=8, steps=4):
        loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert reference.relative(run.losses, losses) <= 1e-5


def test_an_optimizer_offloaded_to_a_folder_learns_the_same_bits_and_is_left_nowhere(cluster, tmp_path, sums):
    losses, weights = [], []
    folder = tmp_path / "disk"
    folder.mkdir()
    for device in ({"device": "cpu"}, {"device": "nvme", "nvme_path": str(folder)}):
        run_folder = tmp_path / device["device"]
        run_folder.mkdir()
        config = {"bf16": {"enabled": True, "bf16_optimizer_states": True}, "zero_optimization": {"stage": 3, "offload_optimizer": device}}
        ds = run_folder / "ds.json"
        ds.write_text(json.dumps(config))
        run = cluster.finetune(run_folder, *sums.flags(test=False), "-dc", ds, "-bs", 4, "-lr", 1e-3, "--ctx-len", 48, "--max-steps", 6,
                               "--save-every", 3, "--sample-prompts", 0, ranks=2)
        losses.append(run.losses)
        weights.append((run.checkpoint / "model.safetensors").read_bytes())
        assert ("in a file of " + str(folder) in run.stdout) == (device["device"] == "nvme")
    assert losses[0] == losses[1] and weights[0] == weights[1]
    assert list(folder.iterdir()) == []
    missing = cluster.finetune(tmp_path, *sums.flags(test=False), "--offload", "/no/such/folder", ranks=2, check=False)
    assert missing.returncode != 0 and "rank " in missing.stderr and "/no/such/folder" in missing.stderr


def test_validating_takes_under_half_a_second_and_no_libtorch(tmp_path):
    path = write(tmp_path, DS_70B)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    verb("validate-config", path, "--num-devices", 32)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5
    linked = subprocess.run(["ldd", str(pathlib.Path(argosy_binary()).parent / "argosy-prepare")], capture_output=True, text=True, check=True).stdout
    assert "libstdc++" in linked and "torch" not in linked


def test_hjson_and_base64_are_the_same_file(tmp_path):
    """DeepSpeed reads its files with hjson, and takes the text itself in base64 where no such file is."""
    path = write(tmp_path, dict(DS_7B_13B, optimizer={"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}}))
    plain = verb("validate-config", path, "--num-devices", 4).stdout
    text = re.sub(r'"(\w+)":', r"\1:", path.read_text()).replace(",\n", "\n")
    assert text.startswith("{") and '"stage"' not in text
    (tmp_path / "ds.hjson").write_text("# as people write it\n" + text)
    assert verb("validate-config", tmp_path / "ds.hjson", "--num-devices", 4).stdout == plain
    for encode in (base64.urlsafe_b64encode, base64.b64encode):
        assert verb("validate-config", "--ds-config", encode(path.read_bytes()).decode(), "--num-devices", 4).stdout == plain
    bare = "\n".join(text.strip()[1:-1].splitlines())   # Hjson's outer braces may be left out
    assert verb("validate-config", "--ds-config", base64.b64encode(bare.encode()).decode(), "--num-devices", 4).stdout == plain
    piped = subprocess.run([argosy_binary(), "validate-config", "/dev/stdin", "--num-devices", "4"], input=path.read_text(), capture_output=True, text=True,
                           timeout=60)
    assert piped.returncode == 0 and piped.stdout == plain
    (tmp_path / "empty.json").write_text(" \n")
    empty = subprocess.run([argosy_binary(), "validate-config", tmp_path / "empty.json"], capture_output=True, text=True, timeout=60)
    assert empty.returncode == 1 and "empty.json is empty" in empty.stderr
    for wrong in ("no/such/file.json", "/dev/zero", base64.b64encode(b"[1]").decode()):
        result = subprocess.run([argosy_binary(), "validate-config", wrong], capture_output=True, text=True, timeout=60)
        assert result.returncode == 1 and wrong in result.stderr and "is no file" in result.stderr and "base64" in result.stderr


def test_batch_sizes_that_do_not_multiply_out_are_refused_before_an_actor_starts(cluster, tmp_path, sums):
    config = dict(DS_7B_13B, train_batch_size=32, train_micro_batch_size_per_gpu=5, gradient_accumulation_steps=2)
    run = cluster.finetune(tmp_path, *sums.flags(test=False), "-dc", write(tmp_path, config), ranks=3, check=False)
    assert run.returncode != 0 and "rank 0" not in run.stdout
    print("\n" + run.stderr)
    message = run.stderr.strip()
    assert message.startswith("error: ") and "\n" not in message
    for number in ("32", "5", "2", "3", "train_batch_size", "train_micro_batch_size_per_gpu"):
        assert number in message, number
    assert not run.output_dir.exists()
