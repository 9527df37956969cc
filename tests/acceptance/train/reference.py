"""What transformers and torch make of the same models and rows. Nothing here comes from Argosy."""

import json
import math
import pathlib

import torch
import transformers
from safetensors import safe_open

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def load_model(folder, dtype=torch.float32):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager", local_files_only=True)
    return model.eval()


def load_tokenizer(folder):
    """tokenizer.json as it is: LlamaTokenizer of transformers 5 builds another one from the vocabulary alone."""
    return transformers.PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


def padding(folder):
    """(pad id, whether on the left), as the recipes have them: EOS pads where the tokenizer names no other, Llama's pad on the left."""
    config = json.loads((pathlib.Path(folder) / "tokenizer_config.json").read_text())
    tokenizer = load_tokenizer(folder)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    side = config.get("padding_side", "left" if "llama" in config.get("tokenizer_class", "").lower() else "right")
    return pad, side == "left"


def padded_batches(folder, texts, *, ctx_len, rows_per_step, steps):
    """(ids, attention mask) of each step: rows in file order, cut and padded to the context length."""
    tokenizer = load_tokenizer(folder)
    pad, left = padding(folder)
    batches = []
    for step in range(steps):
        ids, mask = [], []
        for text in texts[step * rows_per_step:(step + 1) * rows_per_step]:
            row = tokenizer(text).input_ids[:ctx_len]
            fill = ctx_len - len(row)
            ids.append([pad] * fill + row if left else row + [pad] * fill)
            mask.append([0] * fill + [1] * len(row) if left else [1] * len(row) + [0] * fill)
        batches.append((torch.tensor(ids), torch.tensor(mask)))
    return batches


def train(model, batches, *, lr, total_steps, warmup=10, schedule="linear", weight_decay=0.0, max_grad_norm=1.0):
    """The plain loop: AdamW, clipped gradients, labels = ids. Returns losses and gradient norms before each step.

    The norms are summed in fp64: clip_grad_norm_'s own sum of 28 million fp32 squares is off in the fourth digit.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=weight_decay, foreach=False)
    if schedule == "linear":
        scheduler = transformers.get_linear_schedule_with_warmup(optimizer, warmup, total_steps)
    else:
        scheduler = transformers.get_constant_schedule_with_warmup(optimizer, warmup)
    losses, norms = [], []
    for ids, mask in batches:
        loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss
        loss.backward()
        norms.append(math.sqrt(sum(torch.linalg.vector_norm(p.grad, dtype=torch.float64).item() ** 2 for p in model.parameters())))
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms


@torch.no_grad()
def logits(model, ids):
    return model(torch.tensor([ids])).logits[0].float()


def read_tensor(path, name):
    with safe_open(path, "pt") as file:
        return file.get_tensor(name)


def relative(ours, theirs):
    """The largest relative difference of two series."""
    assert len(ours) == len(theirs) and ours and all(math.isfinite(x) for x in ours), (ours, theirs)
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))
