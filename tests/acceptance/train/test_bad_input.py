"""What cannot work is refused with one line that names it, and leaves nothing half-done."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file


def refused(cluster, folder, *arguments, ranks=2, before_placing=True, timeout=60):
    """The one line that a refused run says; it must leave no checkpoint, whole or not."""
    run = cluster.finetune(folder, *arguments, "--mx", "no", "--ctx-len", 48, ranks=ranks, check=False, timeout=timeout)
    assert run.returncode != 0, run.stdout
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    print("\n" + run.stderr.strip())
    assert len(lines) == 1 and lines[0].startswith("error: "), run.stderr
    assert "Traceback" not in run.stderr and not run.losses
    if before_placing:
        assert "rank 0:" not in run.stdout, "an actor was started"
    assert not run.output_dir.exists() or not any(run.output_dir.iterdir()), list(run.output_dir.iterdir())
    return lines[0]


@pytest.fixture
def broken(sums, tmp_path):
    """A copy of the nano model, to be damaged."""
    shutil.copytree(sums.model, tmp_path / "model")
    return tmp_path / "model"


def test_unknown_model_type(cluster, tmp_path, sums, broken):
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(dict(config, model_type="mamba", architectures=["MambaForCausalLM"])))
    message = refused(cluster, tmp_path, "--model-name", broken, "--train-path", sums.train)
    assert "mamba" in message and "llama" in message and "config.json" in message


def shard(cluster, tmp_path, sums):
    sharded = tmp_path / "sharded"
    sharded.mkdir()
    return cluster.finetune(sharded, *sums.flags(test=False), "--mx", "no", "--ctx-len", 48, "--max-steps", 1, "--shard-size", 150_000,
                            "--sample-prompts", 0).checkpoint


def test_missing_shard(cluster, tmp_path, sums):
    model = shard(cluster, tmp_path, sums)
    gone = sorted(model.glob("model-00002-of-*.safetensors"))[0]
    gone.unlink()
    message = refused(cluster, tmp_path, "--model-name", model, "--train-path", sums.train)
    assert gone.name in message and str(model) in message


def test_truncated_safetensors(cluster, tmp_path, sums, broken):
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    message = refused(cluster, tmp_path, "--model-name", broken, "--train-path", sums.train)
    assert str(weights) in message and "cut short" in message


def test_weights_of_another_shape(cluster, tmp_path, sums, broken):
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(dict(config, intermediate_size=128)))
    message = refused(cluster, tmp_path, "--model-name", broken, "--train-path", sums.train)
    assert "mlp" in message and "128" in message and "256" in message


def test_tensors_that_are_missing_or_too_many_are_all_named(cluster, tmp_path, sums, broken):
    weights = load_file(broken / "model.safetensors")
    for layer in (0, 1):
        del weights[f"model.layers.{layer}.mlp.up_proj.weight"]
        weights[f"model.layers.{layer}.self_attn.q_proj.bias"] = torch.zeros(64)
    del weights["model.norm.weight"]
    save_file(weights, broken / "model.safetensors")
    message = refused(cluster, tmp_path, "--model-name", broken, "--train-path", sums.train)
    for part in (str(broken), "lacks 3 tensors", "model.layers.*.mlp.up_proj.weight (layers 0 to 1)", "model.norm.weight", "has 2 tensors",
                 "model.layers.*.self_attn.q_proj.bias (layers 0 to 1)", "config.json"):
        assert part in message, part


def test_overlapping_safetensors(cluster, tmp_path, sums, broken):
    path = broken / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + size])
    first, second = [name for name in header if name != "__metadata__"][:2]
    end = header[first]["data_offsets"][1]
    header[second]["data_offsets"] = [offset - 64 for offset in header[second]["data_offsets"]]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size:])
    message = refused(cluster, tmp_path, "--model-name", broken, "--train-path", sums.train)
    assert end > 0 and str(path) in message and second in message and "overlaps" in message and "64 bytes" in message


@pytest.mark.parametrize("change, words", [
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ["rope", "yarn", "llama3"]),
    ({"attention_type": "flash_linear", "model_type": "llama4"}, ["model_type", "llama4", "llama, mistral, qwen2"]),
    ({"hidden_act": "gelu"}, ["hidden_act", "gelu", "silu"]),
    ({"num_key_value_heads": 3}, ["num_key_value_heads", "3"]),
    ({"quantization_config": {"quant_method": "bitsandbytes"}}, ["quantization_config"]),
])
def test_a_config_that_would_mean_other_numbers(cluster, tmp_path, sums, broken, change, words):
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(dict(config, **change)))
    message = refused(cluster, tmp_path, "--model-name", broken, "--train-path", sums.train)
    assert all(word in message for word in ["config.json", *words]), message


ANSWERS = ["--loss-on", "answer", "--answer-marker", "<START_A>"]


@pytest.mark.parametrize("name, content, flags, words", [
    ("rows.jsonl", b"", [], ["no rows"]),
    ("rows.jsonl", b"\n  \n", [], ["no rows"]),
    ("rows.csv", b"input\n", [], ["no rows"]),
    ("rows.jsonl", b'{"input": "one"}\n{"input": "tw\xff"}\n', [], [":2", "UTF-8"]),
    ("rows.txt", b"one\ntwo\xc3\n", [], [":2", "UTF-8"]),
    ("rows.jsonl", b'{"input": "no marker in here"}\n', ANSWERS, [":1", "row 1", "<START_A>"]),
    # All masked: the answers lie behind the context.
    ("rows.jsonl", b'{"input": "' + b"a b c " * 40 + b'<START_A>1"}\n', ANSWERS, ["is to be learned", "--ctx-len"]),
    ("rows.jsonl", b'{"messages": [{"role": "user", "content": "x"}]}\n', [], [":1", "messages", "chat_template"]),
], ids=["empty", "blank", "header", "jsonl-utf8", "txt-utf8", "marker", "masked", "messages"])
def test_files_that_nothing_can_be_learned_from(cluster, tmp_path, sums, name, content, flags, words):
    (tmp_path / name).write_bytes(content)
    message = refused(cluster, tmp_path, "--model-name", sums.model, "--train-path", tmp_path / name, *flags)
    assert all(word in message for word in [str(tmp_path / name), *words]), message


def test_dataset_row_with_a_missing_field(cluster, tmp_path, sums):
    data = tmp_path / "rows.jsonl"
    data.write_text('{"question": "1+1", "context": "", "answer": "2"}\n\n{"question": "1+2", "context": ""}\n')
    message = refused(cluster, tmp_path, "--model-name", sums.model, "--train-path", data, "--prompt-type", 3)
    assert f"{data}:3" in message and "row 2" in message and "answer" in message

    result = cluster.drive("dataset", "create", "--dataset-path", data, "--prompt-type", 3, "--output-dir", tmp_path / "made")
    assert result.returncode != 0 and f"{data}:3" in result.stderr and "answer" in result.stderr and not (tmp_path / "made").exists()


def test_dataset_row_that_is_no_json(cluster, tmp_path, sums):
    data = tmp_path / "rows.jsonl"
    data.write_text('{"input": "one"}\n{"input": "two"\n')
    message = refused(cluster, tmp_path, "--model-name", sums.model, "--train-path", sums.train, "--test-path", data)
    assert f"{data}:2" in message


def test_more_workers_than_gpus_stay_pending_until_the_start_timeout(cluster, tmp_path, sums):
    run = cluster.finetune(tmp_path, *sums.flags(test=False), "--mx", "no", "--start-timeout", 3, ranks=5, check=False)
    print("\n" + run.stdout.splitlines()[-1] + "\n" + run.stderr.strip())
    assert run.returncode != 0
    waiting = [line for line in run.stdout.splitlines() if line.startswith("waiting for 5 workers to be placed")]
    lines = run.stderr.strip().splitlines()
    assert waiting and len(lines) == 1 and lines[0].startswith("error: ") and "--start-timeout" in lines[0]
    for text in (waiting[0], lines[0]):
        # What is missing, and where it is: three nodes have a GPU each, the head has none.
        assert "GPU" in text and "5" in text and "3" in text, text
    assert "rank 0:" not in run.stdout
    assert not run.output_dir.exists() or not any(run.output_dir.iterdir())

    # The GPUs are free again.
    (tmp_path / "after").mkdir()
    after = cluster.finetune(tmp_path / "after", *sums.flags(test=False), "--mx", "no", "--as-test", "--ctx-len", 48, "--sample-prompts", 0, ranks=3)
    assert len(after.losses) == 1


def test_rank_0_that_no_node_can_hold_names_the_resource(cluster, tmp_path, sums):
    run = cluster.finetune(tmp_path, *sums.flags(test=False), "--mx", "no", "--start-timeout", 3, "--trainer-resources", '{"huge_cpu_mem": 1}',
                           ranks=2, check=False)
    print("\n" + run.stderr.strip())
    assert run.returncode != 0 and "huge_cpu_mem" in run.stderr and "rank 0:" not in run.stdout


def test_a_missing_model_names_its_folder(cluster, tmp_path, sums):
    message = refused(cluster, tmp_path, "--model-name", tmp_path / "nothing", "--train-path", sums.train)
    assert str(tmp_path / "nothing") in message


def test_a_model_that_a_node_lacks_names_the_node(cluster, tmp_path, sums, broken):
    """The run waits for a node to join; by then the model is gone from where that node looks."""
    with cluster.start_finetune(tmp_path, "--model-name", broken, "--train-path", sums.train, "--resources-per-worker", '{"late": 1}', ranks=2) as run:
        run.read_until("waiting for 2 workers to be placed")
        shutil.rmtree(broken)
        with cluster.node("late-node", "--num-gpus", "0", "--resources", '{"late": 2}'):
            out, error = run.communicate(timeout=60)
    print("\n" + error.strip())
    lines = error.strip().splitlines()
    assert run.returncode != 0 and "rank 0:    node late-node" in out
    assert len(lines) == 1 and lines[0].startswith("error: rank ") and "node late-node" in lines[0] and str(broken) in lines[0]
    assert "threw" not in lines[0] and not any((tmp_path / "out").iterdir())


def test_relative_paths_are_those_of_the_driver(cluster, tmp_path, sums):
    shutil.copytree(sums.model, tmp_path / "model")
    shutil.copy(sums.train, tmp_path / "rows.jsonl")
    result = cluster.drive("finetune", "--model-name", "./model/", "--train-path", "rows.jsonl", "--output-dir", "runs/first/", "--mx", "no", "--ctx-len", 48,
                           "--as-test", "--num-checkpoints-to-keep", 1, "--num-devices", 2, "--threads", 1, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert f"\ncheckpoint: {tmp_path}/runs/first/epoch-1\n" in result.stdout
    assert (tmp_path / "runs" / "first" / "epoch-1" / "model.safetensors").exists()


@pytest.mark.parametrize("flags, words", [
    (["--device", "tpu"], ["--device", "tpu", "cpu"]),
    (["--zero-stage", "4"], ["stage", "4"]),
    (["--num-epochs", "0"], ["--num-epochs", "0"]),
    (["--test-path", "/no/such/rows.jsonl"], ["--test-path", "/no/such/rows.jsonl"]),
    (["--mx", "fp16"], ["fp16", "bf16"]),
    (["--moments", "fp16"], ["--moments", "fp16", "bf16"]),
    (["--mx", "no", "--moments", "bf16"], ["moments in bf16", "--mx bf16"]),
    (["--offload", "disk"], ["--offload", "disk", "cpu"]),
    (["--trainer-resources", "lots"], ["--trainer-resources", "lots"]),
])
def test_flags_out_of_range(cluster, tmp_path, sums, flags, words):
    message = cluster.drive("finetune", "--model-name", sums.model, "--train-path", sums.train, "--output-dir", tmp_path / "out", *flags)
    assert message.returncode != 0
    assert len(message.stderr.strip().splitlines()) == 1, message.stderr
    for word in words:
        assert word in message.stderr, message.stderr
    assert not (tmp_path / "out").exists()


def test_an_output_folder_that_rank_0_cannot_make_names_its_node(cluster, tmp_path, sums):
    (tmp_path / "out").write_text("a file")
    result = cluster.drive("finetune", *sums.flags(test=False), "--output-dir", tmp_path / "out" / "runs", "--mx", "no", "--num-devices", 2,
                           "--trainer-resources", '{"large_cpu_mem": 0.01}')
    print("\n" + result.stderr.strip())
    lines = result.stderr.strip().splitlines()
    assert result.returncode != 0 and len(lines) == 1 and "node large-memory" in lines[0] and str(tmp_path / "out") in lines[0]
    assert "[epoch" not in result.stdout


def test_rows_longer_than_the_models_positions_are_refused_with_what_fits(cluster, tmp_path, sums):
    shutil.copytree(sums.model, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(dict(config, max_position_embeddings=8)))
    result = cluster.drive("finetune", "--model-name", tmp_path / "model", "--train-path", sums.train, "--output-dir", tmp_path / "out", "--mx", "no")
    assert result.returncode != 0 and "rank 0" not in result.stdout
    for word in ('"max_position_embeddings" 8', "config.json", "give --ctx-len 8"):
        assert word in result.stderr, result.stderr


def test_a_csv_with_bad_rows_trains_on_the_good_ones_when_told_to(cluster, tmp_path, sums):
    rows = [json.loads(line)["input"] for line in open(sums.train, encoding="utf-8")][:20]
    (tmp_path / "rows.csv").write_text("input\n" + "".join(f'"{row}"\n' for row in rows) + "one,two\n", encoding="utf-8")
    flags = ["--model-name", sums.model, "--train-path", tmp_path / "rows.csv", "--output-dir", tmp_path / "out", "--mx", "no", "--ctx-len", 48, "--as-test",
             "--threads", 1]
    refused = cluster.drive("finetune", *flags)
    assert refused.returncode != 0 and f"{tmp_path}/rows.csv:22: row 21 has 2 fields; the header has 1" in refused.stderr
    trained = cluster.drive("finetune", *flags, "--bad-rows", "skip")
    assert trained.returncode == 0, trained.stderr
    assert "20 train rows" in trained.stdout and "bad rows: 1 skipped, the first: " in trained.stdout


def test_a_model_with_fewer_rows_than_the_tokenizer_has_ids_is_refused_or_grown(cluster, tmp_path, sums, broken):
    weights = load_file(broken / "model.safetensors")
    config = json.loads((broken / "config.json").read_text())
    fewer = config["vocab_size"] - 7
    for name, tensor in weights.items():
        if tensor.shape[0] == config["vocab_size"]:
            weights[name] = tensor[:fewer].clone()
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    (broken / "config.json").write_text(json.dumps(dict(config, vocab_size=fewer)))
    message = refused(cluster, tmp_path, "--model-name", broken, "--train-path", sums.train)
    assert f"ids up to {fewer + 6}" in message and f'"vocab_size" {fewer}' in message and "--grow-vocabulary" in message

    (tmp_path / "grown").mkdir()
    grown = cluster.finetune(tmp_path / "grown", "--model-name", broken, "--train-path", sums.train, "--mx", "no", "--ctx-len", 48, "--as-test",
                             "--grow-vocabulary", "--sample-prompts", 0)
    saved = load_file(grown.checkpoint / "model.safetensors")
    assert saved["model.embed_tokens.weight"].shape[0] == config["vocab_size"]
    assert json.loads((grown.checkpoint / "config.json").read_text())["vocab_size"] == config["vocab_size"]
