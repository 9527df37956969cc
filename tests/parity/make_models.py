#!/usr/bin/env python3
"""Models of a few thousand parameters, one a feature, with what transformers and torch make of them.

    make_models.py FOLDER [--seed N] [--larger] [NAME ...]

Each FOLDER/NAME has config.json and model.safetensors as save_pretrained writes them, and
  expected.safetensors  float64 results rounded to float32: CASE.logits, CASE.grad.PARAMETER; trained.PARAMETER after the steps
  expected.json         ids, masks, labels and loss of each case; how far transformers' own runs are from its float64 one: in float32
                        ("noise": the largest difference) and in bfloat16 ("bf16": root of the summed squares), each the larger one of eager
                        and, where nothing is padded, sdpa attention; the losses of six optimizer steps; a greedy continuation

Cases: "plain" two rows; "padded" four rows, of them one padded on the left and one on the right, padding and prompt being
targets, as the reference recipes train; "packed" samples that our side puts into one row and transformers computes one by one.
Attention is eager unless said otherwise. The committed models are seed 1; tests make others with other seeds and --larger.
"""
import argparse
import contextlib
import copy
import json
import pathlib

import torch
import transformers
from safetensors.torch import save_file
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

BASE = dict(vocab_size=61, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, attention_dropout=0.0)
LLAMA3_ROPE = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=32)


def rope(theta, **more):
    return {"rope_type": "default", "rope_theta": float(theta), **more}


MODELS = {
    "llama-mha": (LlamaConfig, dict(num_key_value_heads=4, rope_parameters=rope(10000))),
    "llama-one-kv-head": (LlamaConfig, dict(num_key_value_heads=1, rope_parameters=rope(10000))),
    "llama-head-dim": (LlamaConfig, dict(hidden_size=18, num_attention_heads=3, num_key_value_heads=1, head_dim=10, rope_parameters=rope(10000))),
    "llama-biases-tied": (LlamaConfig, dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True, rope_parameters=rope(100000))),
    "llama-rope-linear": (LlamaConfig, dict(rope_parameters=rope(10000, rope_type="linear", factor=4.0))),
    "llama-rope-dynamic": (LlamaConfig, dict(max_position_embeddings=16, rope_parameters=rope(10000, rope_type="dynamic", factor=2.0))),
    "llama-rope-llama3": (LlamaConfig, dict(rope_parameters=LLAMA3_ROPE)),
    "llama-pad-token": (LlamaConfig, dict(pad_token_id=0, vocab_size=37, rope_parameters=rope(10000))),
    "mistral-window": (MistralConfig, dict(sliding_window=5, head_dim=6, rope_parameters=rope(10000))),
    "mistral-no-window": (MistralConfig, dict(sliding_window=None, rope_parameters=rope(1000000))),
    "qwen2-some-layers-slide": (Qwen2Config, dict(num_hidden_layers=3, use_sliding_window=True, sliding_window=6, max_window_layers=1,
                                                  tie_word_embeddings=True, rope_parameters=rope(1000000))),
    "qwen3-norms": (Qwen3Config, dict(head_dim=12, tie_word_embeddings=True, rope_parameters=rope(1000000))),
}
LENGTH = 13


def sizes(name, larger):
    kind, changes = MODELS[name]
    fields = dict(BASE, **changes)
    if larger:   # another shape of the same kind
        fields.update(hidden_size=48, intermediate_size=72, num_hidden_layers=fields["num_hidden_layers"] + 1, vocab_size=131)
        if "head_dim" in changes:
            fields.update(num_attention_heads=4, num_key_value_heads=2, head_dim=changes["head_dim"] + 4)
        else:
            fields.update(num_attention_heads=6, num_key_value_heads={4: 6, 1: 1}.get(changes.get("num_key_value_heads"), 3))
    return kind(**fields)


def randomize(model, generator):
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=generator)
            if p.dim() == 1:
                p.copy_((1.0 if name.endswith("norm.weight") else 0.0) + 0.1 * noise)
            else:
                p.copy_(noise * (0.3 if "embed" in name else 1.2 / p.shape[1] ** 0.5))


def make_cases(vocab, pad, generator):
    draw = lambda *shape: torch.randint(3, vocab, shape, generator=generator)
    padded, mask = draw(4, LENGTH), torch.ones(4, LENGTH, dtype=torch.long)
    for row, hidden in ((1, slice(0, 6)), (2, slice(8, LENGTH)), (3, slice(0, 1))):
        mask[row, hidden] = 0
    padded[mask == 0] = pad
    plain_labels = draw(2, LENGTH)
    plain = plain_labels.clone()
    plain_labels[1, :4] = -100    # a masked prompt
    return {"plain": dict(ids=plain, labels=plain_labels), "padded": dict(ids=padded, mask=mask, labels=padded),
            "packed": dict(samples=[draw(1, n) for n in (5, 3, LENGTH - 1, 1)])}


@contextlib.contextmanager
def in_float64():
    """transformers' norms and softmax ask for torch.float32 whatever the model's type; here they get float64."""
    single, torch.float32 = torch.float32, torch.float64
    try:
        yield
    finally:
        torch.float32 = single


def total_loss(model, ids, labels, mask=None):
    """Logits and the sum over targets; the mean of several samples is over all of their targets."""
    logits = model(ids, attention_mask=mask).logits
    targets = labels[:, 1:].reshape(-1)
    return logits, torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), targets, ignore_index=-100, reduction="sum")


def run_case(model, case):
    model.zero_grad(set_to_none=True)
    if "samples" in case:
        parts = [total_loss(model, ids, ids) for ids in case["samples"]]
        logits = torch.cat([part[0][0] for part in parts])
        loss = sum(part[1] for part in parts) / sum(ids.shape[1] - 1 for ids in case["samples"])
    else:
        logits, nll = total_loss(model, case["ids"], case["labels"], case.get("mask"))
        loss = nll / (case["labels"][:, 1:] != -100).sum()
    loss.backward()
    result = {"logits": logits.detach()}
    result.update({f"grad.{name}": p.grad.clone() if p.grad is not None else torch.zeros_like(p) for name, p in model.named_parameters()})
    return loss.item(), result


def train(model, batches, learning_rates):
    """AdamW with decay of matrices only, norm clipped at 0.5, two micro-batches accumulated; a mean over the step's targets."""
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.01},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.999), eps=1e-8, foreach=False)
    log = []
    optimizer.zero_grad()
    for lr, step in zip(learning_rates, batches):
        for group in optimizer.param_groups:
            group["lr"] = lr
        targets = sum(ids.shape[0] * (ids.shape[1] - 1) for ids in step)
        losses = [total_loss(model, ids, ids)[1] / targets for ids in step]
        sum(losses).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()
        optimizer.step()
        optimizer.zero_grad()
        log.append({"lr": lr, "loss": sum(loss.item() for loss in losses), "grad_norm": norm})
    return log


def make(folder, name, seed, larger):
    torch.manual_seed(seed)   # what from_config draws; replaced below
    generator = torch.Generator().manual_seed(seed * 1000 + sorted(MODELS).index(name))
    config = sizes(name, larger)
    single = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    randomize(single, generator)
    folder.mkdir(parents=True, exist_ok=True)
    single.save_pretrained(folder)
    double = copy.deepcopy(single).double()

    cases = make_cases(config.vocab_size, config.eos_token_id if config.pad_token_id is None else config.pad_token_id, generator)
    expected, tensors = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0], "seed": seed, "cases": {}}, {}
    for case_name, case in cases.items():
        with in_float64():
            exact_loss, exact = run_case(double, case)
        assert all(torch.isfinite(t).all() for t in exact.values()), f"{name}: {case_name} is not finite in float64"
        keys = {"logits": ["logits"], "grads": [key for key in exact if key != "logits"]}
        narrow = copy.deepcopy(single).bfloat16()
        runs = {torch.float32: [], torch.bfloat16: []}
        for attention in ["eager"] if "mask" in case else ["eager", "sdpa"]:
            for model in (single, narrow):
                model.set_attn_implementation(attention)
                runs[model.dtype].append(run_case(model, case))
        single.set_attn_implementation("eager")
        noise = {what: max((results[key].double() - exact[key]).abs().max().item() for _, results in runs[torch.float32] for key in of)
                 for what, of in keys.items()}
        noise["loss"] = max(abs(loss - exact_loss) for loss, _ in runs[torch.float32])
        gap = {what: max(sum((results[key].double() - exact[key]).square().sum().item() for key in of) ** 0.5 for _, results in runs[torch.bfloat16])
               for what, of in keys.items()}
        gap["loss"] = max(abs(loss - exact_loss) for loss, _ in runs[torch.bfloat16])
        expected["cases"][case_name] = {
            **{key: [part[0].tolist() for part in value] if key == "samples" else value.tolist() for key, value in case.items()},
            "loss": exact_loss, "noise": noise, "bf16": gap}
        tensors.update({f"{case_name}.{key}": value.float() for key, value in exact.items()})
    prompt = torch.randint(3, config.vocab_size, (1, 5), generator=generator)
    with torch.no_grad(), in_float64():
        double.generation_config.eos_token_id = None   # goes on behind it
        greedy = double.generate(prompt, max_new_tokens=20, do_sample=False, pad_token_id=2)[0]
        assert len(greedy) == 25
    expected["greedy"] = {"prompt": prompt[0].tolist(), "continuation": greedy[5:].tolist()}

    batches = [[torch.randint(3, config.vocab_size, (2, 11), generator=generator) for _ in range(2)] for _ in range(3)]
    learning_rates = [0.0, 5e-4, 1e-3, 7.5e-4, 5e-4, 2.5e-4]
    with in_float64():
        log = train(double, [batches[step % 3] for step in range(6)], learning_rates)
    expected["train"] = {"batches": [[ids.tolist() for ids in step] for step in batches], "log": log}
    tensors.update({f"trained.{key}": value.detach().float() for key, value in double.named_parameters()})
    save_file({key: value.contiguous().clone() for key, value in tensors.items()}, folder / "expected.safetensors")
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")
    for file in folder.iterdir():
        file.chmod(0o644)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--larger", action="store_true", help="other shapes")
    parser.add_argument("names", nargs="*", default=sorted(MODELS))
    given = parser.parse_args()
    for name in given.names:
        make(given.folder / name, name, given.seed, given.larger)


if __name__ == "__main__":
    main()
