"""What a run takes is known before it starts, and one that cannot fit is refused."""

import re

from test_bad_input import refused
from training_cluster import verb


def rows(text):
    return [line.split() for line in re.search(r"^stage recompute .*\n((?: +\d .*\n)+)", text, re.M)[1].splitlines()]


def test_plan_names_the_memory_of_each_stage_and_the_cheapest_that_fits(sums):
    told = verb("plan", "--model", "70b", "--num-devices", 32, "--gpus-per-node", 8, "--node-memory", 640).stdout
    table = rows(told)
    assert [(row[0], row[1]) for row in table] == [(str(stage), mode) for stage in range(4) for mode in ("none", "full")
                                                   if (stage, mode) != (3, "none")]
    totals = [float(row[8]) for row in table]
    assert totals[-1] == min(totals) and [row[-1] for row in table] == ["no"] * 6 + ["fits"]
    assert "cheapest:  --zero-stage 3 fits" in told and "18 M/N K" in told
    assert "2 layers of width 64" in verb("plan", "--model", sums.model).stdout


def test_a_run_that_fits_no_node_is_refused_with_what_would(cluster, tmp_path, sums):
    message = refused(cluster, tmp_path, *sums.flags(test=False), "--batch-size-per-device", 10_000_000)
    assert "the run needs" in message and "it would fit with --batch-size-per-device" in message
