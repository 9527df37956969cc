"""Ranks and nodes that die, or hang, in the middle of a run."""

import json
import os
import re
import signal

import pytest

import reference
from argosy_cluster import wait_until
from test_resume import FLAGS, cut_rows, put

LONG = ["--mx", "no", "--zero-stage", 3, "--lr-scheduler", "constant", "--num-epochs", 10_000, "--save-every", 5, "--collective-timeout", 20]


def pids(said):
    return {int(rank): int(pid) for rank, pid in re.findall(r"^rank (\d+): +node \S+ \(pid (\d+)\)", said, re.M)}


def run_and_break(cluster, folder, sums, how, *flags, ranks=3, resources='{"GPU": 1}'):
    """A run in which `how(pids of the ranks)` breaks something after the first saved state; its output up to 10 steps after that, its
    losses, and the flags."""
    flags = put([*cut_rows(sums, folder), *FLAGS], *LONG, "--resources-per-worker", resources, *flags)
    metrics = folder / "metrics.jsonl"
    with cluster.start_finetune(folder, *flags, "--metrics-path", metrics, ranks=ranks) as run:
        run.read_until("state: ")
        first = run.said.decode()
        how(pids(first))
        run.read_until("\nresume:    from ", seconds=120)
        second = run.said.decode()
        run.read_until("\n[epoch ", seconds=60)
        run.send_signal(signal.SIGTERM)
        out, error = run.communicate()
    assert "SIGTERM ended the run after step " in error, error
    records = [json.loads(line) for line in open(metrics)]
    return first + second + out, [row for row in records if "loss" in row], [row for row in records if "failure" in row], flags


def check_against_a_whole_run(cluster, folder, flags, steps, equal_bits):
    """Each step is there once, and the losses are those of a run that nothing happened to."""
    assert [row["total_step"] for row in steps] == list(range(1, len(steps) + 1))
    (folder / "whole").mkdir()
    whole = cluster.finetune(folder / "whole", *put(flags, "--max-steps", len(steps), "--resources-per-worker", '{"GPU": 1}'), ranks=3)
    losses = [row["loss"] for row in steps]
    if equal_bits:
        assert losses == whole.losses
    else:
        assert reference.relative(losses, whole.losses) <= 1e-4


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_replaced_and_the_run_goes_on_with_the_same_bits(cluster, tmp_path, sums, victim):
    said, steps, failures, flags = run_and_break(cluster, tmp_path, sums, lambda ranks: os.kill(ranks[victim], signal.SIGKILL))
    assert len(failures) == 1 and "failure 1 of at most 3" in said
    # What was lost is less than what lies between two states.
    lost_at = failures[0]["total_step"]
    resumed = int(re.search(r"^resume: .* step (\d+) of", said, re.M)[1])
    assert lost_at - resumed < 5, (lost_at, resumed)
    check_against_a_whole_run(cluster, tmp_path, flags, steps, equal_bits=True)


def test_a_killed_node_daemon_leaves_fewer_ranks_that_go_on(cluster, tmp_path, sums):
    with cluster.node("short-lived", "--num-gpus", "0", "--resources", '{"slot": 1}') as node, \
            cluster.node("long-lived", "--num-gpus", "0", "--resources", '{"slot": 2}'):
        said, steps, failures, flags = run_and_break(cluster, tmp_path, sums, lambda ranks: os.kill(node.pid, signal.SIGKILL),
                                                     "--replace-timeout", 2, resources='{"slot": 1}')
    assert len(failures) == 1 and "going on with 2 ranks" in said and "ranks 3 -> 2" in said
    assert "12 rows a step, as before" not in said or "where the flags give" in said
    check_against_a_whole_run(cluster, tmp_path, flags, steps, equal_bits=False)


def test_a_hung_rank_is_named_with_unit_and_operation_and_replaced(cluster, tmp_path, sums):
    said, steps, failures, flags = run_and_break(cluster, tmp_path, sums, lambda ranks: os.kill(ranks[1], signal.SIGSTOP),
                                                 "--collective-timeout", 3)
    reason = failures[0]["reason"]
    print("\n" + reason)
    assert re.search(r"^rank 1 does not answer: rank [02]: rank [02] waits for (\d+ bytes of )?rank 1 in "
                     r"(AllReduce|ReduceScatter|AllGather) .*step \d+, unit -?\d+", reason), reason
    check_against_a_whole_run(cluster, tmp_path, flags, steps, equal_bits=True)


def test_without_max_failures_a_lost_rank_ends_the_run_and_its_state_is_left(cluster, tmp_path, sums):
    flags = put([*cut_rows(sums, tmp_path), *FLAGS], *LONG, "--max-failures", 0)
    with cluster.start_finetune(tmp_path, *flags, ranks=3) as run:
        run.read_until("state: ")
        os.kill(pids(run.said.decode())[1], signal.SIGKILL)
        out, error = run.communicate()
    lines = [line for line in error.strip().splitlines() if not line.startswith("(")]   # what ranks print
    print("\n" + error.strip())
    assert run.returncode != 0 and len(lines) == 1 and "--max-failures allows 0" in lines[0] and "--resume" in lines[0]
    assert len(list((tmp_path / "out" / "training_state").glob("step-*"))) == 1
    # The ranks are gone, and their slots free again.
    wait_until(lambda: "actors: 0 alive" in cluster.argosy("status").stdout, what="the end of the ranks")


def test_killing_everything_while_a_state_is_written_leaves_one_that_is_whole(cluster, tmp_path, sums):
    flags = put([*cut_rows(sums, tmp_path), *FLAGS], *LONG, "--save-every", 1)
    states = tmp_path / "out" / "training_state"
    order = [lambda driver, ranks: [*ranks.values(), driver], lambda driver, ranks: [driver, *ranks.values()], lambda driver, ranks: [ranks[0], driver]]
    for victims in order:
        with cluster.start_finetune(tmp_path, *flags, "--resume", "--metrics-path", tmp_path / "metrics.jsonl", ranks=3) as run:
            run.read_until("state: ")
            ranks = pids(run.said.decode())
            wait_until(lambda: list(states.glob(".step-*.partial")), what="a state that is being written")
            for pid in victims(run.pid, ranks):
                os.kill(pid, signal.SIGKILL)
            run.wait()
        whole = list(states.glob("step-*"))
        assert whole, list(states.iterdir())
        for state in whole:
            listed = json.loads((state / "argosy_checkpoint.json").read_text())["files"]
            assert {path.name: path.stat().st_size for path in state.iterdir() if path.name in listed} == {
                name: entry["bytes"] for name, entry in listed.items()}
    # The next one reads it, every byte against its checksum, and removes what was left half-written.
    newest = max(json.loads((state / "training_state.json").read_text())["steps_done"] for state in whole)
    last = cluster.finetune(tmp_path, *put(flags, "--max-steps", newest + 3), "--resume", ranks=3)
    assert f"step {newest} of" in last.stdout
    check_against_a_whole_run(cluster, tmp_path, flags, [row for row in last.metrics if "loss" in row], equal_bits=True)
    assert sorted(path.name for path in states.iterdir()) == [f"step-{newest + 3:07}"]
