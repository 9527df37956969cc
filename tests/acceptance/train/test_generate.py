"""`argosy generate` against transformers' greedy generation."""

import json
import random
import re
import subprocess

import pytest
import torch

import models
import reference
from argosy_cluster import argosy_binary
from training_cluster import verb


def greedy(model, ids, count, stop=()):
    out = model.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False, pad_token_id=0, eos_token_id=list(stop) or None)
    return out[0, len(ids):].tolist()


@pytest.mark.parametrize("flags, words", [
    (["--max-new-tokens", "-3"], ["--max-new-tokens", "-3", "at least 0"]), (["--threads", "-1"], ["--threads", "-1", "0 for all cores"]),
    (["--batch-size", "0"], ["--batch-size", "0", "at least 1"]), (["--dtype", "fp16"], ["--dtype", "fp16", "bf16"]),
    (["--model", "/nowhere"], ["/nowhere", "no such folder"]), (["--ids", "[1.5]"], ["--ids", "[1.5]", "array"])])
def test_flags_that_mean_nothing_are_refused(sums, flags, words):
    result = subprocess.run([argosy_binary(), "generate", *([] if "--model" in flags else ["--model", sums.model]), *([] if "--ids" in flags else ["--prompt", "x"]),
                             *flags], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and result.stderr.startswith("error: ") and all(word in result.stderr for word in words), result.stderr


@pytest.mark.parametrize("name", ["llama3-gqa", "mistral-swa", "smollm2-tied", "qwen2-bias", "qwen3-qknorm", "llama-rope-linear"])
def test_a_batch_of_prompts_of_unequal_lengths_gives_each_its_own_tokens(name):
    folder = models.asset(f"tiny/{name}")
    model = reference.load_model(folder)
    model.generation_config.eos_token_id = None
    prng = random.Random(name)
    prompts = [[prng.randrange(3, 512) for _ in range(length)] for length in (1, 5, 23, 2, 11, 8, 40)]
    said = verb("generate", "--model", folder, "--ids", json.dumps(prompts), "--max-new-tokens", 24, "--batch-size", 4)
    ours = [json.loads(line) for line in said.stdout.splitlines()]
    eos = 2
    for prompt, made in zip(prompts, ours):
        want = greedy(model, prompt, 24)
        assert made == (want[:want.index(eos) + 1] if eos in want else want)


def test_stories_and_the_way_they_are_printed(tmp_path):
    folder = models.asset("models/stories260K")
    golden = json.loads((folder / "expected.json").read_text())
    model, tokenizer = reference.load_model(folder), reference.load_tokenizer(folder)
    starts = ["Once upon a time", "Lily and Tom", "The big red dog \u00e9"]
    want = []
    for text in starts:
        ids = tokenizer(text).input_ids
        want.append(tokenizer.decode(greedy(model, ids, 40, stop=[2]), skip_special_tokens=True))
    assert verb("generate", "--model", folder, "--prompt", starts[0], "--max-new-tokens", 40).stdout == want[0] + "\n"
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in starts))
    for flags in (["--prompts-path", tmp_path / "prompts.jsonl"], [flag for text in starts for flag in ("--prompt", text)]):
        said = verb("generate", "--model", folder, *flags, "--max-new-tokens", 40)
        assert [json.loads(line)["text"] for line in said.stdout.splitlines()] == want
    assert golden


def test_smollm2_answers_a_chat_as_transformers_does(smollm2):
    model, tokenizer = reference.load_model(smollm2), reference.load_tokenizer(smollm2)
    messages = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Name a colour."}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    want = tokenizer.decode(greedy(model, ids, 12, stop=[tokenizer.eos_token_id]), skip_special_tokens=True)
    said = verb("generate", "--model", smollm2, "--chat", "--system", "You are brief.", "--prompt", "Name a colour.", "--max-new-tokens", 12, timeout=300)
    assert said.stdout == want + "\n"


def test_smollm2s_mean_nll_on_gsm8k_and_pubmedqa_is_the_known_one(tmp_path, smollm2):
    gsm8k = [json.loads(line) for line in open(models.asset("data/gsm8k/test.jsonl"), encoding="utf-8")][:16]
    pubmedqa = list(json.loads(models.asset("data/pubmedqa/ori_pqal.json").read_text()).values())[:8]
    texts = {"gsm8k": [row["question"] + "\n" + row["answer"] for row in gsm8k],
             "pubmedqa": [row["QUESTION"] + " " + "".join(row["CONTEXTS"]) + " " + row["LONG_ANSWER"] for row in pubmedqa]}
    known = {"gsm8k": (1.8794, 3308), "pubmedqa": (3.0126, 3200)}
    for name, rows in texts.items():
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"input": row}) + "\n" for row in rows))
        last = verb("generate", "--model", smollm2, "--score", "--prompts-path", tmp_path / "rows.jsonl", timeout=500).stdout.splitlines()[-1]
        mean, tokens = re.fullmatch(r"mean NLL (\d\.\d{4}) over (\d+) tokens", last).groups()
        print(name, last)
        # The known values are rounded, and transformers' own sum is 1.879451.
        assert float(mean) == pytest.approx(known[name][0], abs=1.01e-4) and int(tokens) == known[name][1]
