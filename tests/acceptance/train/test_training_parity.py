"""The numbers of a run against those of transformers and torch, and of ranks and ZeRO stages against each other."""

import pytest

import reference

LR = 1e-3
STEPS = 20
PARITY = ["--mx", "no", "--recipe-parity", "--lr", LR, "--max-steps", STEPS, "--no-eval-first", "--sample-prompts", 0]


def run_parity(cluster, folder, material, *flags, ranks, batch, ctx_len=32, check_nodes=None):
    folder.mkdir(exist_ok=True)
    run = cluster.finetune(folder, *material.flags(test=False), *PARITY, "--ctx-len", ctx_len, "--batch-size-per-device", batch, *flags, ranks=ranks)
    assert len(run.losses) == STEPS
    return run


@pytest.mark.parametrize("which", ["sums", "stories"])
@pytest.mark.parametrize("ranks, stage", [(1, 0), (3, 3)])
def test_losses_of_20_steps_are_those_of_transformers_and_adamw(cluster, tmp_path, request, which, ranks, stage):
    material = request.getfixturevalue(which)
    rows = 12
    run = run_parity(cluster, tmp_path, material, "--zero-stage", stage, "--weight-decay", 0.01, ranks=ranks, batch=rows // ranks)

    model = reference.load_model(material.model)
    batches = reference.padded_batches(material.model, material.rows(), ctx_len=32, rows_per_step=rows, steps=STEPS)
    assert any((mask == 0).any() for _, mask in batches) and (which == "sums" or any(mask.all(dim=1).any() for _, mask in batches))
    losses, norms = reference.train(model, batches, lr=LR, total_steps=STEPS, weight_decay=0.01)

    assert losses[-1] < 0.9 * losses[0], "the run is to move the weights, or equal losses say little"
    difference, norm_difference = reference.relative(run.losses, losses), reference.relative(run.grad_norms, norms)
    print(f"\n{which}, {ranks} ranks, ZeRO-{stage}: losses {losses[0]:.4f} -> {losses[-1]:.4f}, off by {difference:.2e} relative, "
          f"gradient norms by {norm_difference:.2e}")
    assert difference <= 1e-5
    assert norm_difference <= 1e-4
    assert run.learning_rates == pytest.approx([LR * min(step / 10, (STEPS - step) / (STEPS - 10)) for step in range(STEPS)], rel=1e-12)

    trained = reference.load_model(run.checkpoint)
    for (name, ours), theirs in zip(trained.named_parameters(), model.parameters()):
        assert (ours - theirs).abs().max() <= 2e-5, name


def test_zero_stages_give_equal_bits_and_rank_counts_equal_losses(cluster, tmp_path, sums):
    runs = {(ranks, stage): run_parity(cluster, tmp_path / f"{ranks}-{stage}", sums, "--zero-stage", stage, ranks=ranks, batch=12 // ranks)
            for ranks, stage in [(3, 2), (3, 3), (1, 2)]}
    two, three, alone = runs[3, 2], runs[3, 3], runs[1, 2]

    assert two.losses == three.losses and two.grad_norms == three.grad_norms
    base = (sums.model / "model.safetensors").read_bytes()
    weights = (three.checkpoint / "model.safetensors").read_bytes()
    assert (two.checkpoint / "model.safetensors").read_bytes() == weights
    assert len(weights) == len(base) and weights != base

    difference = reference.relative(three.losses, alone.losses)
    print(f"\n3 ranks against 1: losses off by {difference:.2e} relative")
    assert difference <= 2e-6


def test_packed_rows_with_masked_prompts_agree_over_ranks_and_stages(cluster, tmp_path, sums):
    """The default preset: shuffled, packed, loss on the answers; 7 rows a step leave the ranks with unequal shares."""
    flags = ["--mx", "no", "--lr", LR, "--ctx-len", 48, "--max-steps", STEPS, "--answer-marker", "<START_A>", "--no-eval-first", "--sample-prompts", 0]
    runs = {}
    for ranks, stage, batch, accumulate in [(3, 2, 2, 2), (3, 3, 2, 2), (1, 0, 6, 2)]:
        folder = tmp_path / f"{ranks}-{stage}"
        folder.mkdir()
        runs[ranks, stage] = cluster.finetune(folder, *sums.flags(test=False), *flags, "--zero-stage", stage, "--batch-size-per-device", batch,
                                              "--grad-accum", accumulate, ranks=ranks)
    two, three, alone = runs[3, 2], runs[3, 3], runs[1, 0]
    assert two.losses == three.losses
    assert (two.checkpoint / "model.safetensors").read_bytes() == (three.checkpoint / "model.safetensors").read_bytes()
    difference = reference.relative(three.losses, alone.losses)
    print(f"\npacked, 3 ranks against 1: losses off by {difference:.2e} relative")
    assert difference <= 2e-6
