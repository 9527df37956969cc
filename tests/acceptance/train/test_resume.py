"""A run that is stopped and goes on ends where one that never stopped does; nothing of another run is mixed in."""

import json
import os
import re
import shutil
import signal

import pytest

import reference
from training_cluster import with_own_folder

FLAGS = ["--ctx-len", 48, "--lr", 1e-3, "--batch-size-per-device", 2, "--grad-accum", 2, "--num-epochs", 2, "--no-eval-first",
         "--sample-prompts", 0, "--eval-rows", 20, "--weight-decay", 0.01]


def put(flags, *pairs):
    """The flags with other values for some."""
    flags = list(flags)
    for name, value in zip(pairs[::2], pairs[1::2]):
        if name in flags:
            flags[flags.index(name) + 1] = value
        else:
            flags += [name, value]
    return flags


def weights(run_or_dir, epoch=2):
    return (run_or_dir / f"epoch-{epoch}" / "model.safetensors").read_bytes()


def steps(folder):
    return [row for row in map(json.loads, open(folder / "metrics.jsonl")) if "loss" in row]


def cut_rows(material, folder, count=150):
    path = folder / "rows.jsonl"
    path.write_text("".join(open(material.train).readlines()[:count]))
    return ["--model-name", material.model, "--train-path", path, "--test-path", material.test]


@pytest.fixture(scope="module")
def whole(cluster, sums, tmp_path_factory):
    """Three ranks in ZeRO-3 and bf16, never stopped, every training state kept."""
    folder = tmp_path_factory.mktemp("whole")
    data = cut_rows(sums, folder)
    run = cluster.finetune(folder, *data, *FLAGS, "--mx", "bf16", "--zero-stage", 3, "--save-every", 3, "--save-state", "all", ranks=3)
    return folder, data, run


def copy_state(whole, folder, step):
    name = f"step-{step:07}"
    (folder / "out" / "training_state").mkdir(parents=True)
    shutil.copytree(whole[0] / "out" / "training_state" / name, folder / "out" / "training_state" / name)


def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(cluster, tmp_path, whole):
    folder, data, run = whole
    states = sorted(path.name for path in (folder / "out" / "training_state").iterdir())
    per_epoch = len(run.losses) // 2
    assert per_epoch > 4 and f"step-{per_epoch:07}" in states and "step-0000003" in states
    # Within the first epoch, and at its end.
    for step in (3, per_epoch):
        part = tmp_path / str(step)
        part.mkdir()
        copy_state(whole, part, step)
        resumed = cluster.finetune(part, *data, *FLAGS, "--mx", "bf16", "--zero-stage", 3, "--resume", ranks=3)
        assert f"resume:    from {part}/out/training_state/step-{step:07}" in resumed.stdout
        assert resumed.losses == run.losses[step:] and resumed.grad_norms == run.grad_norms[step:]
        assert resumed.learning_rates == run.learning_rates[step:]
        assert weights(part / "out") == weights(folder / "out")
        want = [row for row in run.metrics if "train_loss" in row]
        got = [row for row in resumed.metrics if "train_loss" in row]
        assert [row["train_loss"] for row in got] == [row["train_loss"] for row in want][-len(got):]
        assert [row["eval_loss"] for row in got] == [row["eval_loss"] for row in want][-len(got):]


def test_a_state_goes_on_with_other_numbers_of_ranks_and_stages(cluster, tmp_path, whole):
    folder, data, run = whole
    for ranks, stage in ((2, 1), (1, 0)):
        part = tmp_path / f"{ranks}-{stage}"
        part.mkdir()
        copy_state(whole, part, 3)
        resumed = cluster.finetune(part, *data, *FLAGS, "--mx", "bf16", "--zero-stage", stage, "--resume", ranks=ranks)
        assert "12 rows a step, as before" in resumed.stdout and f"ranks 3 -> {ranks}" in resumed.stdout
        difference = reference.relative(resumed.losses, run.losses[3:])
        print(f"\n3 ranks, ZeRO-3 -> {ranks}, ZeRO-{stage}: losses off by {difference:.2e} relative")
        assert difference <= 2e-3


def test_a_run_ended_by_sigterm_goes_on_where_it_stopped(cluster, tmp_path, sums):
    """A run that would last for many minutes; at a constant rate the number of its steps does not matter to the first ones."""
    flags = put([*cut_rows(sums, tmp_path), *FLAGS], "--mx", "no", "--zero-stage", 3, "--lr-scheduler", "constant", "--num-epochs", 10_000)
    with cluster.start_finetune(tmp_path, *flags, "--metrics-path", tmp_path / "metrics.jsonl", ranks=3) as first:
        first.read_until("[epoch 2/10000 step ")
        first.send_signal(signal.SIGTERM)
        out, error = first.communicate()
    assert first.returncode != 0 and "SIGTERM ended the run after step " in error and "--resume goes on" in error, out + error
    losses = [row["loss"] for row in steps(tmp_path)]
    done = len(losses)
    assert [path.name for path in (tmp_path / "out" / "training_state").iterdir()] == [f"step-{done:07}"]

    (tmp_path / "whole").mkdir()
    run = cluster.finetune(tmp_path / "whole", *flags, "--max-steps", done + 5, ranks=3)
    assert run.losses[:done] == losses
    second = cluster.finetune(tmp_path, *flags, "--max-steps", done + 5, "--resume", ranks=3)
    assert second.losses == run.losses, "the metrics file has each step once"
    assert (second.checkpoint / "model.safetensors").read_bytes() == (run.checkpoint / "model.safetensors").read_bytes()


def test_a_run_whose_driver_is_killed_goes_on_from_its_last_state(cluster, tmp_path, whole):
    folder, data, run = whole
    flags = [*data, *FLAGS, "--mx", "bf16", "--zero-stage", 3, "--save-every", 2]
    with cluster.start_finetune(tmp_path, *flags, "--metrics-path", tmp_path / "metrics.jsonl", ranks=3) as first:
        first.read_until("state: ")
        first.kill()
        first.wait()
    second = cluster.finetune(tmp_path, *flags, "--resume", ranks=3)
    assert second.losses == run.losses
    assert weights(tmp_path / "out") == weights(folder / "out")


def test_a_damaged_state_is_named_and_the_one_before_it_used(cluster, tmp_path, whole):
    folder, data, run = whole
    flags = [*data, *FLAGS, "--mx", "bf16", "--zero-stage", 3, "--save-every", 2]
    first = cluster.finetune(tmp_path, *put(flags, "--save-state", 2), "--max-steps", 6, ranks=3)
    states = sorted((first.output_dir / "training_state").iterdir())
    assert len(states) == 2 and states[1].name == "step-0000006"
    before = int(states[0].name.removeprefix("step-"))
    file = states[1] / "training_state.safetensors"
    content = bytearray(file.read_bytes())
    content[-100] ^= 4
    file.write_bytes(content)
    second = cluster.finetune(tmp_path, *put(flags, "--save-state", 2), "--max-steps", 8, "--resume", ranks=3)
    assert re.search(rf"^damaged:   {file} is damaged: its checksum .*: an earlier state is used$", second.stdout, re.M)
    assert f"resume:    from {states[0]}" in second.stdout and f"step {before} of 8" in second.stdout
    assert len(second.losses) == 8 and second.losses[before:6] == first.losses[before:6]


def test_checkpoints_and_states_that_ranks_write_together_have_the_bytes_of_rank_0s(cluster, tmp_path, whole):
    folder, data, run = whole
    contents = []
    for stage, more in ((3, []), (3, ["--save-by-ranks"]), (1, ["--save-by-ranks"])):
        part = tmp_path / f"{stage}{len(more)}"
        part.mkdir()
        out = cluster.finetune(part, *data, *FLAGS, "--mx", "bf16", "--zero-stage", stage, "--max-steps", 3, "--shard-size", 300_000, *more,
                               ranks=3).output_dir
        files = sorted(path.relative_to(out) for path in out.rglob("*.safetensors*"))
        assert len([name for name in files if "epoch-1/" in str(name)]) > 2 and any("training_state" in str(name) for name in files)
        contents.append({name: (out / name).read_bytes() for name in files})
        resumed = cluster.finetune(part, *data, *FLAGS, "--mx", "bf16", "--zero-stage", stage, "--max-steps", 4, "--resume", ranks=3)
        assert len(resumed.losses) == 4
    assert contents[0] == contents[1] == contents[2]


def test_ranks_that_do_not_see_the_folder_cannot_write_into_it_together(cluster, tmp_path, whole):
    folder, data, run = whole
    (tmp_path / "out").mkdir()
    with cluster.node("elsewhere", "--num-gpus", "1", prefix=with_own_folder(tmp_path / "out")):
        apart = cluster.finetune(tmp_path, *data, *FLAGS, "--mx", "bf16", "--max-steps", 1, "--save-by-ranks", ranks=4, check=False)
    assert apart.returncode != 0 and "all ranks' nodes share" in apart.stderr, apart.stderr
    assert not (tmp_path / "out" / "epoch-1").exists() and not list((tmp_path / "out").glob("training_state/step-*"))


def refuse(cluster, folder, *arguments):
    run = cluster.finetune(folder, *arguments, check=False, ranks=1)
    lines = [line for line in run.stderr.strip().splitlines() if not line.startswith("(")]   # what ranks print
    assert run.returncode != 0 and len(lines) == 1 and lines[0].startswith("error: "), run.stdout + run.stderr
    print("\n" + lines[0])
    return lines[0]


def test_an_earlier_run_in_the_output_folder_is_never_mixed_in(cluster, tmp_path, sums):
    flags = [*cut_rows(sums, tmp_path), "--ctx-len", 48, "--max-steps", 2, "--batch-size-per-device", 8, "--mx", "no", "--no-eval-first",
             "--sample-prompts", 0]
    first = cluster.finetune(tmp_path, *flags)
    before = weights(first.output_dir, 1)
    message = refuse(cluster, tmp_path, *flags, "--seed", 7)
    assert "epoch-1" in message and "training state of step 2" in message and "--resume" in message and "--overwrite" in message
    assert weights(first.output_dir, 1) == before
    # Foreign: other rows of data, another seed.
    message = refuse(cluster, tmp_path, *flags, "--seed", 7, "--resume")
    assert "another run's" in message and "seed is 7 and was 42" in message
    other = tmp_path / "other.jsonl"
    other.write_text("".join(open(sums.train).readlines()[:40]))
    message = refuse(cluster, tmp_path, *put(flags, "--train-path", other), "--resume")
    assert "training data is 40 rows" in message
    # Damaged: one byte.
    state = tmp_path / "out" / "training_state" / "step-0000002" / "training_state.safetensors"
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(content)
    message = refuse(cluster, tmp_path, *put(flags, "--max-steps", 4), "--resume")
    assert "damaged" in message and str(state) in message
    # Weights alone are no state.
    shutil.rmtree(tmp_path / "out" / "training_state")
    message = refuse(cluster, tmp_path, *flags, "--resume")
    assert "no training state" in message and "epoch-1" in message

    anew = cluster.finetune(tmp_path, *flags, "--seed", 7, "--overwrite")
    assert "removed:   epoch-1" in anew.stdout and weights(anew.output_dir, 1) != before


def test_a_full_disk_while_saving_leaves_the_last_state_and_says_so(cluster, tmp_path, sums):
    """The output is on a file system of its own, too small for the second of two states side by side."""
    small = tmp_path / "out"
    small.mkdir()
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=70m tmpfs {small} 2>/dev/null") != 0:
        pytest.skip("needs root, to mount a small file system")
    try:
        flags = [*cut_rows(sums, tmp_path), "--ctx-len", 48, "--batch-size-per-device", 8, "--mx", "no", "--no-eval-first", "--sample-prompts", 0,
                 "--lr-scheduler", "constant", "--num-epochs", 10_000, "--save-every", 2]
        with cluster.start_finetune(tmp_path, *flags) as run:
            run.read_until("state: ")
            (small / "filler").write_bytes(b"x" * (4 << 20))
            out, error = run.communicate()
        print("\n" + error.strip())
        assert run.returncode != 0 and "GB are free there" in error and str(small) in error
        states = list((small / "training_state").iterdir())
        assert len(states) == 1 and not states[0].name.startswith(".")
        (small / "filler").unlink()
        step = json.loads((states[0] / "training_state.json").read_text())["steps_done"]
        resumed = cluster.finetune(tmp_path, *flags, "--max-steps", step + 1, "--resume")
        assert len(resumed.losses) == 1
    finally:
        os.system(f"umount {small}")
