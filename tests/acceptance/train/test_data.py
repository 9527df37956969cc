"""Rows of conversations, the token cache, and tokenizers that lack what a run needs."""

import json
import shutil

import pytest
import torch

import reference
from training_cluster import with_own_folder

CHAT = ("{% for m in messages %}{{ bos_token }}{{ m['role'] }}: {% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}{{ eos_token }}"
        "{% endgeneration %}{% else %}{{ m['content'] }} {% endif %}{% endfor %}")


def with_config(source, folder, change):
    shutil.copytree(source, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    change(config)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def conversations():
    return [[{"role": "user", "content": f"Tell me of day {i}."}, {"role": "assistant", "content": "It was a big day. " * (1 + i % 3)},
             {"role": "user", "content": "And then?"}, {"role": "assistant", "content": "The end."}] for i in range(12)]


@pytest.mark.parametrize("loss_on", ["assistant", "all"])
def test_losses_of_conversations_are_those_of_transformers_over_the_assistants_tokens(cluster, tmp_path, stories, loss_on):
    model = with_config(stories.model, tmp_path / "model", lambda config: config.update(chat_template=CHAT))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in conversations()))
    run = cluster.finetune(tmp_path, "--model-name", model, "--train-path", tmp_path / "rows.jsonl", "--loss-on", loss_on, "--mx", "no", "--ctx-len", 200, "-bs", 12,
                           "--lr", 1e-3, "--warmup-steps", 0, "--lr-scheduler", "constant", "--num-epochs", 3, "--no-eval-first", "--sample-prompts", 0)

    tokenizer, theirs = reference.load_tokenizer(model), reference.load_model(model)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3, weight_decay=0.0, foreach=False)
    losses, targets = [], []
    for _ in range(3):
        total, count = 0.0, 0
        for messages in conversations():
            row = tokenizer.apply_chat_template(messages, chat_template=CHAT, return_dict=True, return_assistant_tokens_mask=True)
            ids, mask = torch.tensor([row["input_ids"]]), torch.tensor([row["assistant_masks"]])
            labels = ids if loss_on == "all" else torch.where(mask == 1, ids, -100)
            total = total + torch.nn.functional.cross_entropy(theirs(ids).logits[0, :-1], labels[0, 1:], ignore_index=-100, reduction="sum")
            count += int((labels[0, 1:] != -100).sum())
        (total / count).backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total.item() / count)
        targets.append(count)
    assert [row["target_tokens"] for row in run.metrics if "loss" in row] == targets
    assert reference.relative(run.losses, losses) <= 1e-5


def test_the_token_cache_is_reused_and_made_again_when_it_must_be(cluster, tmp_path, sums):
    train = shutil.copy(sums.train, tmp_path / "train.jsonl")
    flags = ["--model-name", sums.model, "--train-path", train, "--test-path", sums.test, "--mx", "no", "--ctx-len", 48, "--max-steps", 5, "--sample-prompts", 0,
             "--eval-rows", 10, "--overwrite", "-bs", 4, "--lr", 1e-3]
    without = cluster.finetune(tmp_path, *flags, ranks=2)
    said = []

    def cached():
        run = cluster.finetune(tmp_path, *flags, "--token-cache", tmp_path / "cache", ranks=2)
        assert run.losses == without.losses
        said.append([line.split("(", 1)[1] for line in run.stdout.splitlines() if line.startswith("tokens: ")])

    cached()
    assert said[-1] == ["made)", "made)"]
    cached()
    assert said[-1] == ["reused)", "reused)"]
    file = next((tmp_path / "cache").glob("train-*.tokens"))
    content = bytearray(file.read_bytes())
    content[1000] ^= 4
    file.write_bytes(content)
    cached()
    assert '"tokens" is damaged' in said[-1][0] and said[-1][1] == "reused)"
    (tmp_path / "train.jsonl").write_text((tmp_path / "train.jsonl").read_text() + "\n")
    cached()
    assert said[-1][0] == f"made again: {train} changed)"


def test_a_node_that_does_not_see_the_token_cache_gets_the_rows(cluster, tmp_path, sums):
    """Its file system has another folder in the cache's place."""
    cache = tmp_path / "cache"
    cache.mkdir()
    flags = [*sums.flags(test=False), "--mx", "no", "--ctx-len", 48, "--max-steps", 3, "--sample-prompts", 0, "--token-cache", cache, "--resources-per-worker",
             '{"elsewhere": 1}']
    with cluster.node("elsewhere", "--num-gpus", "0", "--resources", '{"elsewhere": 2}', prefix=with_own_folder(cache)):
        run = cluster.finetune(tmp_path, *flags, ranks=2)
    assert "not every rank sees the token cache" in run.stdout and len(run.losses) == 3


def test_a_tokenizer_without_eos_or_pad_is_refused_with_what_to_name(cluster, tmp_path, sums):
    def without(config):
        for name in ("eos_token", "pad_token", "bos_token"):
            config.pop(name, None)
    model = with_config(sums.model, tmp_path / "model", without)
    for name in ("special_tokens_map.json",):
        (model / name).unlink(missing_ok=True)
    for name in ("config.json", "generation_config.json"):
        config = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps({k: v for k, v in config.items() if k not in ("eos_token_id", "pad_token_id", "bos_token_id")}))
    for flags, words in ((["--recipe-parity"], ["pad_token", "eos_token"]), ([], ["EOS"])):
        result = cluster.drive("finetune", "--model-name", model, "--train-path", sums.train, "--output-dir", tmp_path / "out", "--mx", "no", "--ctx-len", 48, *flags)
        assert result.returncode != 0 and len(result.stderr.strip().splitlines()) == 1, result.stderr
        assert all(word in result.stderr for word in [*words, "tokenizer_config.json"]), result.stderr
        assert not (tmp_path / "out").exists()
