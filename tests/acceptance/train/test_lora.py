"""Low-rank adapters against peft: what is trained, written, loaded and merged."""

import json
import math
import re
import shutil
import subprocess
import sys

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

import models
import reference
from argosy_cluster import argosy_binary
from test_bad_input import refused
from training_cluster import verb

LR = 2e-3
STEPS = 20
PARITY = ["--mx", "no", "--recipe-parity", "--lr", LR, "--max-steps", STEPS, "--no-eval-first", "--sample-prompts", 0, "--ctx-len", 32]
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# As the recipes have it.
RECIPE = {"r": 8, "lora_alpha": 16, "lora_dropout": 0.05, "target_modules": [*LINEAR, "embed_tokens", "lm_head"], "task_type": "CAUSAL_LM",
          "modules_to_save": [], "bias": "none", "fan_in_fan_out": False, "init_lora_weights": True}


def make_adapter(folder, base, seed=5, dtype=torch.float32, **config):
    """An adapter by peft, its B not 0 as one that has been trained."""
    model = peft.get_peft_model(reference.load_model(base, dtype), peft.LoraConfig(task_type="CAUSAL_LM", **config))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.requires_grad and "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
            elif parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.01)
    model.save_pretrained(folder)
    # peft sorts the keys of the file, and takes the first pattern in the file's order: the caller's order is to count.
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: config[key] for key in ("rank_pattern", "alpha_pattern") if key in config}))
    return model.eval()


def load_adapter(base, folder):
    return peft.PeftModel.from_pretrained(reference.load_model(base), folder, is_trainable=True).eval()


def our_logits(tmp_path, ids, *flags):
    verb("generate", "--ids", json.dumps(ids), "--max-new-tokens", 0, "--logits", tmp_path / "logits.safetensors", *flags)
    return reference.read_tensor(tmp_path / "logits.safetensors", "logits")


@pytest.mark.parametrize("which, config", [
    ("stories", dict(r=8, lora_alpha=16, target_modules=LINEAR)),
    ("sums", dict(r=4, lora_alpha=8, target_modules=[*LINEAR, "embed_tokens", "lm_head"], use_rslora=True, rank_pattern={"q_proj": 6},
                  alpha_pattern={"mlp.up_proj": 3, "layers.1.mlp.up_proj": 5})),
    ("sums", dict(r=4, lora_alpha=8, target_modules=r".*layers\.1\..*(q|v)_proj", modules_to_save=["lm_head", "embed_tokens", "norm"])),
])
@pytest.mark.parametrize("ranks, stage", [(1, 0), (3, 3)])
def test_losses_of_20_steps_are_those_of_peft_and_adamw(cluster, tmp_path, request, which, config, ranks, stage):
    material = request.getfixturevalue(which)
    make_adapter(tmp_path / "start", material.model, **config)
    rows = 12
    run = cluster.finetune(tmp_path, *material.flags(test=False), *PARITY, "--adapter", tmp_path / "start", "--zero-stage", stage, "--weight-decay", 0.01,
                           "--batch-size-per-device", rows // ranks, ranks=ranks)
    assert len(run.losses) == STEPS

    model = load_adapter(material.model, tmp_path / "start")
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    batches = reference.padded_batches(material.model, material.rows(), ctx_len=32, rows_per_step=rows, steps=STEPS)
    optimizer = torch.optim.AdamW(trainable.values(), lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, foreach=False)
    scheduler = reference.transformers.get_linear_schedule_with_warmup(optimizer, 10, STEPS)
    losses, norms = [], []
    for ids, mask in batches:
        loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss
        loss.backward()
        norms.append(math.sqrt(sum(torch.linalg.vector_norm(p.grad, dtype=torch.float64).item() ** 2 for p in trainable.values())))
        torch.nn.utils.clip_grad_norm_(trainable.values(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    difference, norm_difference = reference.relative(run.losses, losses), reference.relative(run.grad_norms, norms)
    print(f"\n{which}, {ranks} ranks, ZeRO-{stage}: losses {losses[0]:.4f} -> {losses[-1]:.4f}, off by {difference:.2e} relative, norms by {norm_difference:.2e}")
    assert losses[-1] < 0.97 * losses[0], "the run is to move the adapter, or equal losses say little"
    assert difference <= 1e-5 and norm_difference <= 1e-4

    trained, total = map(int, re.search(r"^lora: .* (\d+) of (\d+) parameters are trained", run.stdout, re.M).groups())
    assert (trained, total) == model.get_nb_trainable_parameters()

    # The base's files are as they were; the checkpoint is an adapter that peft loads, with the weights that peft has learned and our logits.
    written = load_adapter(material.model, run.checkpoint)
    for name, parameter in written.named_parameters():
        if parameter.requires_grad:
            assert (parameter - trainable[name]).abs().max() <= 1e-4, name
    names = set(load_file(tmp_path / "start" / "adapter_model.safetensors"))
    assert {name for name in names if "base_layer" not in name} == set(load_file(run.checkpoint / "adapter_model.safetensors"))
    assert not (run.checkpoint / "config.json").exists() and (run.checkpoint / "tokenizer.json").exists()
    ids = reference.load_tokenizer(material.model)(material.rows()[0]).input_ids[:24]
    ours = our_logits(tmp_path, ids, "--adapter", run.checkpoint)
    gap = (ours - reference.logits(written, ids)).abs().max()
    print(f"logits of the trained adapter: ours and peft's differ by {gap:.1e}")
    assert gap <= 1e-4


def test_the_recipes_file_is_read_where_the_recipe_reads_it_and_its_dropout_is_the_rows(cluster, tmp_path, sums):
    (tmp_path / "lora_configs").mkdir()
    (tmp_path / "lora_configs" / "lora.json").write_text(json.dumps(RECIPE))
    runs = {}
    for ranks, stage in [(3, 3), (3, 0), (1, 2)]:
        folder = tmp_path / f"{ranks}-{stage}"
        folder.mkdir()
        said = cluster.drive("finetune", *sums.flags(), "--output-dir", folder / "out", "--num-devices", ranks, "--batch-size-per-device", 12 // ranks, "--threads", 1,
                             "--mx", "no", "--lr", 1e-2, "--ctx-len", 48, "--num-epochs", 1, "--max-steps", 30, "--zero-stage", stage, "--lora",
                             "--metrics-path", folder / "metrics.jsonl", "--answer-marker", "<START_A>", "--eval-rows", 20, cwd=tmp_path, timeout=300)
        assert said.returncode == 0, said.stderr
        runs[ranks, stage] = [row for row in map(json.loads, open(folder / "metrics.jsonl")) if "loss" in row]
    assert "rank 8, alpha 16, dropout 0.05" in said.stdout and "fine-tuned:" in said.stdout
    losses = {key: [row["loss"] for row in rows] for key, rows in runs.items()}
    assert losses[3, 3] == losses[3, 0]
    assert (tmp_path / "3-3/out/epoch-1/adapter_model.safetensors").read_bytes() == (tmp_path / "3-0/out/epoch-1/adapter_model.safetensors").read_bytes()
    difference = reference.relative(losses[3, 3], losses[1, 2])
    print(f"\nwith dropout, 3 ranks against 1: losses {losses[1, 2][0]:.3f} -> {losses[1, 2][-1]:.3f}, off by {difference:.1e} relative")
    assert difference <= 2e-6 and losses[1, 2][-1] < 0.9 * losses[1, 2][0]

    # A new adapter begins as peft's: uniform A within 1 / sqrt(in), B at 0; and the file says what peft needs.
    config = json.loads((tmp_path / "1-2/out/epoch-1/adapter_config.json").read_text())
    assert config["r"] == 8 and config["lora_dropout"] == 0.05 and config["base_model_name_or_path"] == str(sums.model)
    peft.PeftModel.from_pretrained(reference.load_model(sums.model), tmp_path / "1-2/out/epoch-1")


def test_a_run_that_is_stopped_goes_on_with_its_bits(cluster, tmp_path, sums):
    (tmp_path / "lora.json").write_text(json.dumps(RECIPE))
    flags = [*sums.flags(test=False), "--lora-config", tmp_path / "lora.json", "--ctx-len", 48, "--lr", 1e-3, "--batch-size-per-device", 4, "--num-epochs", 1,
             "--sample-prompts", 0, "--save-every", 5, "--zero-stage", 3]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    one = cluster.finetune(whole, *flags, "--max-steps", 12, "--save-state", "all", ranks=2)
    (parts / "out" / "training_state").mkdir(parents=True)
    shutil.copytree(whole / "out" / "training_state" / "step-0000005", parts / "out" / "training_state" / "step-0000005")
    two = cluster.finetune(parts, *flags, "--max-steps", 12, "--resume", ranks=2)
    assert "epoch 1, step 5 of 12" in two.stdout
    assert two.losses == one.losses[5:]
    assert (one.checkpoint / "adapter_model.safetensors").read_bytes() == (two.checkpoint / "adapter_model.safetensors").read_bytes()
    state = load_file(whole / "out" / "training_state" / "step-0000005" / "training_state.safetensors")
    assert all("lora_" in name for name in state), "a state has the adapters alone"
    other = cluster.finetune(parts, *flags[:-2], "--r", 4, "--resume", ranks=2, check=False)
    assert other.returncode != 0
    full = cluster.finetune(parts, *sums.flags(test=False), "--ctx-len", 48, "--batch-size-per-device", 4, "--max-steps", 12, "--resume", ranks=2, check=False)
    assert full.returncode != 0 and "trained is all weights and was adapters" in full.stderr


def test_added_tokens_go_along_with_the_adapter(cluster, tmp_path, stories, sums):
    """Rows for new tokens are in the adapter's file as peft has them: it loads into a base that was resized, and merges into one that was not."""
    run = cluster.finetune(tmp_path, "--model-name", stories.model, "--train-path", sums.train, "--special-token-path", sums.tokens, "--mx", "no", "--ctx-len", 48,
                           "--lora", "--max-steps", 4, "--lr", 1e-2, "--batch-size-per-device", 8, "--sample-prompts", 0)
    stored = load_file(run.checkpoint / "adapter_model.safetensors")
    rows = stored["base_model.model.model.embed_tokens.weight"].shape[0]
    base = reference.load_model(stories.model)
    assert rows > base.config.vocab_size
    ids = reference.load_tokenizer(run.checkpoint)("<START_Q>1+2<END_Q>").input_ids
    assert max(ids) >= base.config.vocab_size
    base.resize_token_embeddings(rows, mean_resizing=False)
    theirs = reference.logits(peft.PeftModel.from_pretrained(base, run.checkpoint).eval(), ids)
    assert (our_logits(tmp_path, ids, "--adapter", run.checkpoint) - theirs).abs().max() <= 1e-4
    verb("merge-lora", "--adapter", run.checkpoint, "--output-dir", tmp_path / "merged")
    merged = reference.load_model(tmp_path / "merged")
    assert merged.config.vocab_size == rows and (reference.logits(merged, ids) - theirs).abs().max() <= 1e-4
    assert reference.load_tokenizer(tmp_path / "merged").convert_tokens_to_ids("<START_Q>") in ids


@pytest.mark.parametrize("base, config", [
    ("llama3-gqa", dict(r=8, lora_alpha=16, target_modules="all-linear")),
    ("llama2-mha-sharded", dict(r=4, lora_alpha=8, target_modules=[*LINEAR, "embed_tokens", "lm_head"], use_rslora=True)),
    ("llama-biases", dict(r=3, lora_alpha=7, target_modules=["q_proj", "up_proj"], bias="all", modules_to_save=["lm_head"])),
    ("llama-biases", dict(r=3, lora_alpha=7, target_modules=["q_proj", "up_proj"], bias="lora_only")),
    ("qwen3-qknorm", dict(r=2, target_modules=["q_proj", "down_proj"], layers_to_transform=[1], rank_pattern={"down_proj": 5})),
])
def test_merging_gives_the_weights_of_pefts_merge_and_unload(tmp_path, base, config):
    folder = models.asset(f"tiny/{base}")
    model = make_adapter(tmp_path / "adapter", folder, **config)
    ids = list(range(3, 40))
    with_adapter = reference.logits(model, ids)
    assert (our_logits(tmp_path, ids, "--adapter", tmp_path / "adapter", "--model", folder) - with_adapter).abs().max() <= 1e-4
    said = verb("merge-lora", "--adapter", tmp_path / "adapter", "--model", folder, "--output-dir", tmp_path / "merged", "--shard-size", 400_000)
    theirs = {name: tensor for name, tensor in model.merge_and_unload().state_dict().items()}
    merged = reference.load_model(tmp_path / "merged")
    gap = max((ours - theirs[name]).abs().max().item() for name, ours in merged.state_dict().items())
    print(f"\n{base}: {said.stdout.splitlines()[-1]}; off by {gap:.1e}")
    assert gap <= 1e-6
    assert (reference.logits(merged, ids) - with_adapter).abs().max() <= 1e-4


def test_merging_rounds_once_and_refuses_to_part_a_tied_matrix(tmp_path):
    folder = models.asset("tiny/smollm2-tied")
    model = make_adapter(tmp_path / "adapter", folder, r=4, target_modules=["q_proj", "embed_tokens"])
    command = ["merge-lora", "--adapter", tmp_path / "adapter", "--model", folder, "--output-dir", tmp_path / "merged"]
    result = subprocess.run([argosy_binary(), *map(str, command)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and "tie_word_embeddings" in result.stderr and "--untie" in result.stderr and not (tmp_path / "merged").exists()
    verb(*command, "--untie", "--save-dtype", "fp32")
    merged = reference.load_model(tmp_path / "merged")
    assert not merged.config.tie_word_embeddings
    ids = list(range(3, 40))
    assert (reference.logits(merged, ids) - reference.logits(model, ids)).abs().max() <= 1e-4
    shutil.rmtree(tmp_path / "merged")
    verb(*command, "--untie", "--save-dtype", "bf16")
    rounded = load_file(tmp_path / "merged" / "model.safetensors")
    for name, tensor in merged.state_dict().items():
        assert torch.equal(rounded[name], tensor.bfloat16()), name


def test_merging_needs_little_memory_whatever_the_model(tmp_path, smollm2):
    make_adapter(tmp_path / "adapter", smollm2, dtype=torch.bfloat16, r=8, target_modules=LINEAR)
    # Started by a small process: what a child of this one is charged with begins at this one's size.
    measure = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    said = subprocess.run([sys.executable, "-S", "-c", measure, argosy_binary(), "merge-lora", "--adapter", str(tmp_path / "adapter"), "--model", str(smollm2),
                           "--output-dir", str(tmp_path / "merged")], capture_output=True, text=True, timeout=120, check=True).stdout
    kibibytes = int(said.splitlines()[-1])
    size = (tmp_path / "merged" / "model.safetensors").stat().st_size
    print(f"\n{said}peak memory {kibibytes / 1024:.0f} MiB, the model has {size / 2**20:.0f}")
    assert kibibytes < 64 * 1024 < size / 1024
    theirs = load_adapter(smollm2, tmp_path / "adapter").merge_and_unload().state_dict()
    ours = reference.load_model(tmp_path / "merged").state_dict()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name].bfloat16().float()) or (tensor - theirs[name]).abs().max() <= 2 ** -8 * theirs[name].abs().max(), name


def test_what_does_not_fit_is_refused_by_name(cluster, tmp_path, sums, stories):
    def said(config, **more):
        (tmp_path / "lora.json").write_text(config if isinstance(config, str) else json.dumps(dict(RECIPE, **config)))
        return refused(cluster, tmp_path, *sums.flags(test=False), "--lora-config", tmp_path / "lora.json")
    file = str(tmp_path / "lora.json")
    for config, parts in [
        ({"use_dora": True}, ["use_dora", "DoRA"]), ({"r": 0}, ['"r" is 0', "at least 1"]), ({"target_modules": ["q_prj"]}, ["q_prj", "q_proj", "up_proj"]),
        ({"modules_to_save": ["nothing"]}, ["modules_to_save", "nothing", "lm_head"]), ({"init_lora_weights": "pissa"}, ["init_lora_weights", "pissa"]),
        ({"r": 100_000}, ['"r"']), ("{", ["not a JSON object"]), ({"target_modules": "nothing"}, ['"nothing"', "model.layers.0."]),
        ({"lora_dropuot": 0.1}, ["lora_dropuot", "lora_dropout"])]:
        message = said(config)
        assert all(part in message for part in [file, *parts]), message
    make_adapter(tmp_path / "of_stories", stories.model, r=2, target_modules=["q_proj"])
    message = refused(cluster, tmp_path, *sums.flags(test=False), "--adapter", tmp_path / "of_stories")
    assert "of_stories" in message and "another base" in message
    message = refused(cluster, tmp_path, *stories.flags(test=False), "--lora-config", models.asset("tiny/lora-dell/adapter_config.json"), "--freeze", "norm")
    assert "--freeze" in message
    (tmp_path / "tied.json").write_text(json.dumps(dict(RECIPE, modules_to_save=["lm_head"], target_modules=["q_proj"])))
    message = refused(cluster, tmp_path, *stories.flags(test=False), "--lora-config", tmp_path / "tied.json")
    assert "tie_word_embeddings" in message

    def fails(*command):
        result = subprocess.run([argosy_binary(), *map(str, command)], capture_output=True, text=True, timeout=60)
        assert result.returncode == 1 and result.stderr.startswith("error: "), result.stderr
        return result.stderr
    adapter = tmp_path / "of_stories"
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(dict(config, base_model_name_or_path="meta-llama/Llama-2-7b-hf")))
    for command in (["merge-lora", "--output-dir", tmp_path / "merged"], ["generate", "--prompt", "x"]):
        message = fails(*command, "--adapter", adapter)
        assert "base_model_name_or_path" in message and "meta-llama/Llama-2-7b-hf" in message and "--model" in message
    tensors = load_file(adapter / "adapter_model.safetensors")
    first = next(iter(tensors))
    save_file({**tensors, first: tensors[first][:1].contiguous()}, adapter / "adapter_model.safetensors")
    message = fails("merge-lora", "--adapter", adapter, "--model", stories.model, "--output-dir", tmp_path / "merged")
    assert first in message and "[1, 64]" in message and "[2, 64]" in message
    del tensors[first]
    save_file(tensors, adapter / "adapter_model.safetensors")
    assert first in fails("generate", "--prompt", "x", "--adapter", adapter, "--model", stories.model)
    (adapter / "adapter_model.safetensors").unlink()
    assert "adapter_model" in fails("generate", "--prompt", "x", "--adapter", adapter, "--model", stories.model)
