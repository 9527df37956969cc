"""The reference recipes' jobs as they are written: their flags, data, reports and numbers."""

import json
import math
import re

import pytest
import torch

import reference
from test_deepspeed import DS_7B_13B, DS_70B, write

REPORT_NAMES = ["epoch", "iteration", "train_loss_batch", "avg_train_loss_epoch", "eval_loss", "perplexity", "num_iterations",
                "train_time_per_epoch", "eval_time_per_epoch", "fwd_time", "bwd_time", "avg_fwd_time_per_epoch", "avg_bwd_time_per_epoch",
                "learning_rate"]


def reports(output_dir):
    return [json.loads(line) for line in open(output_dir / "result.json")]


def test_the_job_of_the_first_recipe_runs_with_its_flags_in_its_folder(cluster, tmp_path, sums):
    """create_dataset.py ;train.py, which finds ./data by itself."""
    rows = [{"question": f"{a}+{b}", "context": "of two", "answer": str(a + b)} for a in range(8) for b in range(5)]
    (tmp_path / "dataset.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = cluster.drive("dataset", "create", "--dataset_path", tmp_path / "dataset.json", "--prompt_type", 3, "--test_split", 0.2, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    run = cluster.drive(
        "finetune", "-nd", 2, "-bs", 4, "-ebs", 3, "-mn", sums.model, "--output-dir", "out", "--ds-config", write(tmp_path, DS_7B_13B), "--hf-token", "x",
        "--mx", "bf16", "--stop-perplexity", 0, "--grad-accum", 2, "--special-token-path", "data/tokens.json", "--no-grad-ckpt", "--num-epochs", 1,
        "--num-checkpoints-to-keep", 1, "--learning-rate", 5e-6, "--ctx-len", 48, "--threads", 1, "--recipe-parity", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "32 train rows" in run.stdout and "8 test rows" in run.stdout and "ZeRO-3, bf16" in run.stdout
    assert [row["iteration"] for row in reports(tmp_path / "out")] == [0, 1]


def test_the_job_of_the_second_recipe_runs_with_its_flags(cluster, tmp_path, sums):
    run = cluster.drive(
        "finetune", "--mx", "bf16", "--batch-size-per-device", 4, "--eval-batch-size-per-device", 4, "--num-devices", 2, "--grad_accum", 1,
        "--train_path", sums.train, "--test_path", sums.test, "--special_token_path", sums.tokens, "--output_dir", tmp_path / "out", "--model_name", sums.model,
        "--num-epochs", 3, "--num-checkpoints-to-keep", 1, "--lr", 5e-6, "--ctx-len", 48, "--as-test", "--stop-perplexity", 0,
        "--ds-config", write(tmp_path, DS_70B), "--threads", 1)
    assert run.returncode == 0, run.stderr
    [only] = reports(tmp_path / "out")
    assert only["num_iterations"] == 1 and only["eval_loss"] > 0 and (tmp_path / "out" / "epoch-1" / "model.safetensors").exists()


@pytest.mark.parametrize("flags", [
    # Every flag of both recipes, and every spelling that their documents use.
    ["--mx", "bf16", "--batch-size-per-device", 2, "--stop-perplexity", 0, "--eval-batch-size-per-device", 2, "--num-devices", 2, "--grad-accum", 1,
     "--no-grad-ckpt", "--num-epochs", 1, "--num-checkpoints-to-keep", 1, "--learning-rate", 5e-6, "--ctx-len", 48, "--hf-token", "x"],
    ["--mx=no", "-bs", 2, "-ebs", 2, "-nd", 2, "-ga", 1, "-ne", 1, "-lr", 5e-6, "-hft", "x", "--ctx_len=48"],
    ["--mx", "bf16", "-bs=2", "--num_devices", 2, "--grad_accum", 1, "--num_epochs=1", "--lr", 1e-4, "--ctx-len", 48, "--as-test", "--lora"],
], ids=["first", "short", "second"])
def test_every_flag_of_the_recipes_is_taken(cluster, tmp_path, sums, flags):
    """Up to the model, which is not there."""
    for model, output in (("--model-name", "--output-dir"), ("-mn", "--output_dir")):
        run = cluster.drive("finetune", *flags, model, tmp_path / "no-model", output, tmp_path / "out", "-dc", write(tmp_path, DS_70B), "--train_path", sums.train,
                            "--test-path", sums.test, "--special_token_path", sums.tokens)
        assert run.returncode == 1 and run.stderr.startswith("error: ") and "no-model is not a model" in run.stderr, run.stderr


def recipe_collate(folder, ctx_len):
    tokenizer = reference.load_tokenizer(folder)
    _, left = reference.padding(folder)
    tokenizer.padding_side = "left" if left else "right"
    tokenizer.pad_token = tokenizer.eos_token

    def collate(texts):
        batch = tokenizer(list(texts), padding="max_length", max_length=ctx_len, truncation=True, return_tensors="pt")
        return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": batch["input_ids"].clone()}
    return collate


def recipe_loop(folder, train, test, *, ctx_len, rows_per_step, ranks, epochs, lr, eval_batch):
    """The recipe's loop with transformers, all ranks' rows of a step in one batch: each has as many targets, so the mean is the same."""
    model, collate = reference.load_model(folder), recipe_collate(folder, ctx_len)
    steps = math.ceil(len(train) / rows_per_step)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, foreach=False)
    scheduler = reference.transformers.get_linear_schedule_with_warmup(optimizer, 10, steps * epochs)
    told = []
    for _ in range(epochs):
        losses = []
        for step in range(steps):
            loss = model(**collate(train[step * rows_per_step:(step + 1) * rows_per_step])).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        means = []
        for rank in range(ranks):
            shard = test[len(test) * rank // ranks:len(test) * (rank + 1) // ranks]
            with torch.no_grad():
                means += [model(**collate(shard[i:i + eval_batch])).loss.item() for i in range(0, len(shard), eval_batch)]
        told.append((losses, sum(means) / len(means)))
    return told


@pytest.mark.parametrize("which", ["sums", "stories"])
def test_losses_evaluation_and_reports_are_those_of_the_recipes_collate_in_transformers(cluster, tmp_path, request, which):
    material = request.getfixturevalue(which)
    train, test = material.rows()[:44], material.rows(material.test)[:20]
    for name, rows in (("train.jsonl", train), ("test.jsonl", test)):
        (tmp_path / name).write_text("".join(json.dumps({"input": row}) + "\n" for row in rows))
    added = ["--special-token-path", material.tokens] if material.tokens else []
    run = cluster.finetune(tmp_path, "--model-name", material.model, "--train-path", tmp_path / "train.jsonl", "--test-path", tmp_path / "test.jsonl", *added,
                           "--recipe-parity", "--mx", "no", "--ctx-len", 32, "-bs", 4, "-ebs", 3, "-ne", 2, "--lr", 1e-3, "--no-eval-first",
                           "--sample-prompts", 0, ranks=2)
    theirs = recipe_loop(material.model, train, test, ctx_len=32, rows_per_step=8, ranks=2, epochs=2, lr=1e-3, eval_batch=3)

    told = reports(run.output_dir)
    assert [(row["epoch"], row["iteration"]) for row in told] == [(epoch, step) for epoch in range(2) for step in range(6)]
    assert all(list(row) == REPORT_NAMES and row["num_iterations"] == row["iteration"] + 1 for row in told)
    assert all(row["fwd_time"] > 0 and row["bwd_time"] > 0 for row in told)
    assert reference.relative([row["train_loss_batch"] for row in told], [loss for losses, _ in theirs for loss in losses]) <= 1e-5
    for epoch, (losses, eval_loss) in enumerate(theirs):
        *steps, last = told[6 * epoch:6 * epoch + 6]
        assert all(row[name] is None for row in steps for name in REPORT_NAMES if "epoch" in name[1:] or name in ("eval_loss", "perplexity"))
        assert last["avg_train_loss_epoch"] == pytest.approx(sum(losses) / 6, rel=1e-5)
        assert last["eval_loss"] == pytest.approx(eval_loss, rel=1e-5)
        assert last["perplexity"] == pytest.approx(math.exp(last["eval_loss"]), rel=1e-12)
        assert last["train_time_per_epoch"] > 0 and last["eval_time_per_epoch"] > 0
        assert last["avg_fwd_time_per_epoch"] == pytest.approx(sum(row["fwd_time"] for row in told[6 * epoch:6 * epoch + 6]) / 6)

    lines = re.findall(r"^\[epoch (\d+) step (\d+)\] loss: (\S+) step-time: (\S+)$", run.stdout, re.M)
    assert [(int(epoch), int(step), float(loss)) for epoch, step, loss, _ in lines] == [
        (row["epoch"], row["iteration"], row["train_loss_batch"]) for row in told]


def test_a_run_that_goes_on_keeps_its_reports_whole(cluster, tmp_path, sums):
    flags = [*sums.flags(), "--recipe-parity", "--mx", "no", "--ctx-len", 32, "-bs", 50, "-ne", 2, "--lr", 1e-3, "--lr-scheduler", "constant", "--eval-rows", 10, "--no-eval-first",
             "--sample-prompts", 0]
    once, twice = tmp_path / "once", tmp_path / "twice"
    once.mkdir()
    twice.mkdir()
    whole = cluster.finetune(once, *flags)
    cluster.finetune(twice, *flags, "--max-steps", 14)   # in the midst of the second epoch
    parts = cluster.finetune(twice, *flags, "--resume")

    def told(run):
        rows = {}
        for row in reports(run.output_dir):
            rows[row["epoch"], row["iteration"]] = (row["train_loss_batch"], row["eval_loss"], row["avg_train_loss_epoch"])
        return rows
    assert len(told(whole)) == 22 and told(parts).keys() == told(whole).keys()
    assert told(parts)[1, 10] == told(whole)[1, 10] and told(parts)[0, 10] == told(whole)[0, 10]


def test_stop_perplexity_ends_after_the_epoch_that_is_below_it(cluster, tmp_path, sums):
    run = cluster.finetune(tmp_path, *sums.flags(), "--mx", "no", "--ctx-len", 48, "-bs", 8, "-ne", 6, "--lr", 1e-3, "--eval-rows", 20, "--stop-perplexity", 100,
                           "--save-state", "none", "--sample-prompts", 0)
    perplexities = [row["perplexity"] for row in reports(run.output_dir) if row["perplexity"] is not None]
    assert len(perplexities) < 6 and perplexities[-1] < 100 and all(p >= 100 for p in perplexities[:-1])
    assert f"perplexity {perplexities[-1]:.3f} is below 100: stopping here" in run.stdout
    assert run.checkpoint.name == f"epoch-{len(perplexities)}"


@pytest.mark.parametrize("flags, words", [
    (["--lerning-rate", "1"], ["finetune has no flag --lerning-rate: did you mean --learning-rate?"]),
    (["--grad_acum=2", "--tset-path", "x"], ["--grad-acum: did you mean --grad-accum?", "--tset-path: did you mean --test-path?"]),
    (["--batch-size", "4"], ["--batch-size: did you mean --batch-size-per-device?"]),
    (["--colour", "red"], ["finetune has no flag --colour"]),
])
def test_unknown_flags_get_a_suggestion(cluster, tmp_path, sums, flags, words):
    result = cluster.drive("finetune", "--model-name", sums.model, "--train-path", sums.train, "--output-dir", tmp_path / "out", *flags)
    assert result.returncode != 0 and len(result.stderr.strip().splitlines()) == 1, result.stderr
    for word in words:
        assert word in result.stderr, result.stderr
    assert not (tmp_path / "out").exists()


def test_a_misspelt_flag_is_named_rather_than_the_one_that_is_then_missing(cluster):
    result = cluster.argosy("dataset", "create", "--dataset-paht", "x")
    assert result.returncode == 2 and "did you mean --dataset-path?" in result.stderr
    result = cluster.drive("finetune", "--model-nam", "x", "--output-dir", "y")
    assert result.returncode == 2 and "did you mean --model-name?" in result.stderr
