"""A real model on real rows: SmolLM2-135M on GSM8K."""

import json
import math

import pytest
import torch

import models
import reference
from training_cluster import verb

STEPS = 3
CTX = 128
LR = 2e-5


@pytest.fixture(scope="session")
def gsm8k(tmp_path_factory):
    """The recipes' data set of GSM8K: {"input"} rows of prompt type 1."""
    folder = tmp_path_factory.mktemp("gsm8k")
    said = verb("dataset", "create", "--dataset-path", models.asset("data/gsm8k/train.jsonl"), "--prompt-type", 1, "--test-split", 0.01,
                "--output-dir", folder)
    assert "(7398 rows)" in said.stdout and "(75 rows)" in said.stdout
    return folder


def test_full_fine_tuning_of_smollm2_on_gsm8k_is_what_transformers_does(cluster, tmp_path, smollm2, gsm8k):
    run = cluster.finetune(tmp_path, "--model-name", smollm2, "--train-path", gsm8k / "train.jsonl", "--test-path", gsm8k / "test.jsonl", "--mx", "no",
                           "--recipe-parity", "--zero-stage", 3, "--trainer-resources", '{"large_cpu_mem": 0.01}', "--ctx-len", CTX,
                           "--batch-size-per-device", 1, "--lr", LR, "--lr-scheduler", "constant", "--warmup-steps", 0, "--max-steps", STEPS,
                           "--no-eval-first", "--eval-rows", 2, "--eval-batch-size-per-device", 1, "--sample-prompts", 0, ranks=2, timeout=400)
    assert run.rank_nodes()[0] == "large-memory" and "134515008 parameters" in run.stdout

    texts = [json.loads(line)["input"] for line in open(gsm8k / "train.jsonl", encoding="utf-8")]
    held_out = [json.loads(line)["input"] for line in open(gsm8k / "test.jsonl", encoding="utf-8")][:2]
    batches = reference.padded_batches(smollm2, texts, ctx_len=CTX, rows_per_step=2, steps=STEPS)
    model = reference.load_model(smollm2)
    losses, norms = reference.train(model, batches, lr=LR, total_steps=STEPS, warmup=0, schedule="constant")
    difference, norm_difference = reference.relative(run.losses, losses), reference.relative(run.grad_norms, norms)

    with torch.no_grad():
        evaluated = [model(input_ids=ids, attention_mask=mask, labels=ids).loss.item()
                     for ids, mask in reference.padded_batches(smollm2, held_out, ctx_len=CTX, rows_per_step=1, steps=2)]
    epoch = [row for row in run.metrics if "perplexity" in row][0]
    perplexity_difference = abs(epoch["perplexity"] / math.exp(sum(evaluated) / 2) - 1)

    trained = reference.load_model(run.checkpoint)
    assert trained.get_input_embeddings().weight.data_ptr() == trained.get_output_embeddings().weight.data_ptr(), "the head stays tied"
    weights = max((ours - theirs).abs().max().item() for ours, theirs in zip(trained.parameters(), model.parameters()))
    with torch.no_grad():
        ids, mask = batches[0]
        logits = [m(input_ids=ids, attention_mask=mask).logits[mask.bool()] for m in (trained, model)]
    logit_difference = (logits[0] - logits[1]).abs().max().item()
    first = reference.relative(run.losses[:1], losses[:1]), reference.relative(run.grad_norms[:1], norms[:1])
    print(f"\nSmolLM2-135M on GSM8K, 2 ranks, ZeRO-3: losses {', '.join(f'{x:.5f}' for x in run.losses)}, off by {difference:.2e} relative, the first by "
          f"{first[0]:.2e}; gradient norms by {norm_difference:.2e}, the first by {first[1]:.2e}; perplexity {epoch['perplexity']:.4f} by "
          f"{perplexity_difference:.2e}; weights by {weights:.2e} (lr {LR}), logits by {logit_difference:.2e}")
    # What is left at the first step is the plain loop's own rounding: its fp32 cross-entropy of 49,152 logits puts its loss 3e-6 and its norm 9e-6
    # off those in fp64; ours are within 1e-7 and 7e-7 of them. AdamW's first updates are lr times the sign of each gradient, so where one is
    # nothing but rounding the two go apart by 2 lr a step.
    assert first[1] <= 2e-5
    assert difference <= 1e-5 and norm_difference <= 1e-4 and perplexity_difference <= 1e-4
    assert weights <= 2.01 * STEPS * LR
    assert losses[-1] != losses[0] and logit_difference <= 5e-3


def test_smollm2_as_it_comes_has_the_known_nll_and_answer(tmp_path, smollm2):
    row = json.loads(open(models.asset("data/gsm8k/test.jsonl"), encoding="utf-8").readline())
    ids = reference.load_tokenizer(smollm2)(row["question"] + "\n" + row["answer"]).input_ids
    verb("generate", "--model", smollm2, "--prompt", row["question"] + "\n" + row["answer"], "--logits", tmp_path / "logits.safetensors",
         "--max-new-tokens", 0)
    ours = reference.read_tensor(tmp_path / "logits.safetensors", "logits")
    theirs = reference.logits(reference.load_model(smollm2), ids)
    nll = [torch.nn.functional.cross_entropy(logits[:-1].double(), torch.tensor(ids[1:])).item() for logits in (ours, theirs)]
    print(f"\nGSM8K test[0], {len(ids)} tokens: mean NLL {nll[0]:.6f}, transformers' {nll[1]:.6f}; logits differ by {(ours - theirs).abs().max():.2e}")
    assert ours.shape == theirs.shape and nll[0] == pytest.approx(nll[1], rel=1e-6)
    assert (ours - theirs).abs().max() <= 2e-4
    assert verb("generate", "--model", smollm2, "--prompt", "The capital of France is", "--max-new-tokens", 2).stdout == " Paris.\n"
