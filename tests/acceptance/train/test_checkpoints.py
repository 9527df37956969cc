"""What a run writes is what transformers loads: weights, logits, tokenizer."""

import json

import pytest
import torch
import transformers
from safetensors import safe_open

import reference
from training_cluster import verb, with_own_folder

ON_LARGE_MEMORY = ["--trainer-resources", '{"large_cpu_mem": 0.01}']
TUNE = ["--lr", 1e-3, "--max-steps", 12, "--ctx-len", 48, "--batch-size-per-device", 4, "--no-eval-first", "--sample-prompts", 0]


def our_logits(folder, path, ids, dtype="fp32"):
    verb("generate", "--model", folder, "--ids", json.dumps(ids), "--logits", path, "--dtype", dtype, "--max-new-tokens", 0, "--threads", 1)
    return reference.read_tensor(path, "logits")


def check_tokenizer(checkpoint, texts, folder):
    """Our ids are those of the checkpoint's tokenizer in transformers: equal ids give equal logits, bit for bit."""
    tokenizer = reference.load_tokenizer(checkpoint)
    auto = transformers.AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    for text in texts:
        ids = tokenizer(text).input_ids
        assert auto(text).input_ids == ids, type(auto)
        by_text, by_ids = folder / "text.safetensors", folder / "ids.safetensors"
        told = verb("generate", "--model", checkpoint, "--prompt", text, "--logits", by_text, "--max-new-tokens", 8, "--threads", 1)
        counted = verb("generate", "--model", checkpoint, "--ids", json.dumps(ids), "--logits", by_ids, "--max-new-tokens", 8, "--threads", 1)
        assert by_text.read_bytes() == by_ids.read_bytes(), (text, ids)
        assert told.stdout == tokenizer.decode(json.loads(counted.stdout), skip_special_tokens=True, clean_up_tokenization_spaces=False) + "\n"
    return tokenizer


@pytest.mark.parametrize("which", ["sums", "stories"])
@pytest.mark.parametrize("shard_size", [None, 150_000])
def test_transformers_loads_what_three_zero3_ranks_wrote(cluster, tmp_path, request, which, shard_size):
    material = request.getfixturevalue(which)
    run = cluster.finetune(tmp_path, *material.flags(test=False), *TUNE, "--mx", "no", "--zero-stage", 3, *ON_LARGE_MEMORY,
                           *(["--shard-size", shard_size] if shard_size else []), ranks=3)
    assert run.rank_nodes()[0] == "large-memory" and sorted(run.rank_nodes()[1:]) == ["gpu-0", "gpu-1"]

    files = sorted(path.name for path in run.checkpoint.glob("*.safetensors"))
    if shard_size is None:
        assert files == ["model.safetensors"] and not (run.checkpoint / "model.safetensors.index.json").exists()
    else:
        assert len(files) > 2 and files == [f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))]
        index = json.loads((run.checkpoint / "model.safetensors.index.json").read_text())
        assert sorted(set(index["weight_map"].values())) == files
    assert sorted(path.name for path in run.output_dir.iterdir()) == ["epoch-1", "metrics.jsonl", "result.json", "tensorboard", "training_state"]
    assert [path.name for path in (run.output_dir / "training_state").iterdir()] == ["step-0000012"]
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (run.checkpoint / name).exists(), name

    model, info = transformers.AutoModelForCausalLM.from_pretrained(run.checkpoint, dtype=torch.float32, attn_implementation="eager",
                                                                    local_files_only=True, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    text = material.rows()[3]
    ids = reference.load_tokenizer(run.checkpoint)(text).input_ids
    theirs, ours = reference.logits(model.eval(), ids), our_logits(run.checkpoint, tmp_path / "logits.safetensors", ids)
    difference = (ours - theirs).abs().max().item()
    moved = (ours - reference.logits(reference.load_model(material.model), ids)).abs().max().item()
    print(f"\n{which}, {len(files)} files: {len(ids)} tokens, logits differ by {difference:.2e}; training moved them by {moved:.2f}")
    assert difference <= 1e-4 and moved > 0.1

    greedy = json.loads(verb("generate", "--model", run.checkpoint, "--ids", json.dumps(ids[:6]), "--max-new-tokens", 12).stdout)
    with torch.no_grad():
        want = model.generate(torch.tensor([ids[:6]]), attention_mask=torch.ones(1, 6, dtype=torch.long), max_new_tokens=12, do_sample=False)
    assert greedy == want[0, 6:6 + len(greedy)].tolist()
    check_tokenizer(run.checkpoint, [text, "48 + 27 = 75, isn't it?\n  Quite\tso: naïve 東京 🙂"], tmp_path)


def test_added_tokens_grow_the_vocabulary_and_the_tokenizer(cluster, tmp_path, stories):
    rows = [json.loads(line) for line in open(stories.train)][:60]
    data = tmp_path / "qa.jsonl"
    data.write_text("".join(json.dumps({"question": row["input"], "answer": "A story."}) + "\n" for row in rows))
    verb("dataset", "create", "--dataset-path", data, "--prompt-type", 2, "--test-split", 0.1, "--output-dir", tmp_path / "data")
    run = cluster.finetune(tmp_path, "--model-name", stories.model, "--train-path", tmp_path / "data" / "train.jsonl", "--special-token-path",
                           tmp_path / "data" / "tokens.json", "--answer-marker", "<START_A>", *TUNE, "--mx", "no", ranks=2)
    model = reference.load_model(run.checkpoint)
    assert model.config.vocab_size == 516 and model.get_input_embeddings().weight.shape[0] == 516
    text = json.loads((tmp_path / "data" / "train.jsonl").read_text().splitlines()[0])["input"]
    assert text.startswith("<START_Q>") and text.endswith("<END_A>")
    tokenizer = check_tokenizer(run.checkpoint, [text], tmp_path)
    ids = tokenizer(text).input_ids
    assert len(tokenizer) == 516 and tokenizer.convert_tokens_to_ids(["<START_Q>", "<END_Q>", "<START_A>", "<END_A>"]) == [512, 513, 514, 515]
    assert [i for i in ids if i >= 512] == [512, 513, 514, 515]
    difference = (our_logits(run.checkpoint, tmp_path / "logits.safetensors", ids) - reference.logits(model, ids)).abs().max().item()
    print(f"\nwith 4 tokens added, logits differ by {difference:.2e}")
    assert difference <= 1e-4


def test_bf16_run_with_zero2_loads_in_bf16(cluster, tmp_path, sums):
    run = cluster.finetune(tmp_path, *sums.flags(test=False), *TUNE, "--mx", "bf16", "--zero-stage", 2, ranks=3)
    (tmp_path / "32").mkdir()
    exact = cluster.finetune(tmp_path / "32", *sums.flags(test=False), *TUNE, "--mx", "no", "--zero-stage", 2, ranks=3)
    drift = reference.relative(run.losses, exact.losses)
    assert drift <= 2e-2 and run.losses[-1] < 0.95 * run.losses[0]

    with safe_open(run.checkpoint / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}
    model = transformers.AutoModelForCausalLM.from_pretrained(run.checkpoint, dtype="auto", attn_implementation="eager", local_files_only=True).eval()
    assert model.dtype == torch.bfloat16
    ids = reference.load_tokenizer(run.checkpoint)(sums.rows()[3]).input_ids
    wide = reference.logits(reference.load_model(run.checkpoint), ids)
    theirs = (reference.logits(model, ids) - wide).square().mean().sqrt().item()
    ours = (our_logits(run.checkpoint, tmp_path / "bf16.safetensors", ids, "bf16") - wide).square().mean().sqrt().item()
    same = (our_logits(run.checkpoint, tmp_path / "fp32.safetensors", ids) - wide).abs().max().item()
    print(f"\nbf16: losses within {drift:.1e} of fp32's; logits off fp32's by {ours:.2e} (transformers: {theirs:.2e}); in fp32 they differ by {same:.2e}")
    assert ours <= 1.5 * theirs and same <= 1e-4


def test_checkpoints_lie_on_rank_0s_node_where_the_driver_need_not_see_them(cluster, tmp_path, sums):
    """Rank 0's node has a file system of its own at --output-dir."""
    out = tmp_path / "out"
    out.mkdir()
    with cluster.node("island", "--num-gpus", "0", "--resources", '{"island": 2}', prefix=with_own_folder(out)):
        run = cluster.finetune(tmp_path, *sums.flags(added_tokens=True), *TUNE[:-3], "--mx", "no", "--answer-marker", "<START_A>", "--exact-rows", 5,
                               "--resources-per-worker", '{"island": 1}', ranks=2)
    assert run.rank_nodes() == ["island", "island"]
    assert f"\ncheckpoint: {out}/epoch-1\n" in run.stdout and "  fine-tuned: " in run.stdout and " of 5 held-out answers" in run.stdout
    assert not any(out.iterdir()), "the driver's own folder is untouched"
