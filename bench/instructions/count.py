#!/usr/bin/env python3
"""Counts the instructions of the hot paths under callgrind and compares them with baseline.json.

    bench/instructions/count.py [--build DIR] [--update]

A path may grow by a tenth over the baseline of its compiler; --update writes what was counted as the new baseline.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
BASELINE = HERE / "baseline.json"
GROWTH_MAX = 1.10


def compiler(program):
    """What built `program`, e.g. gcc-12: instruction counts differ between major versions."""
    return subprocess.run([program, "--compiler"], check=True, capture_output=True, text=True).stdout.strip()


def count(program):
    """Instructions of one operation, by path."""
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", "--zero-before=MeasuredPath", "--dump-after=MeasuredPath",
             program], capture_output=True, text=True, timeout=300)
        if run.returncode != 0:
            raise RuntimeError(f"valgrind {program} ended with {run.returncode}:\n{run.stderr[-2000:]}")
        counts = {}
        for part, line in enumerate(run.stdout.splitlines(), 1):
            path, operations = line.rsplit(" ", 1)
            total = re.search(r"^totals: (\d+)", pathlib.Path(f"{folder}/out.{part}").read_text(), re.M)
            counts[path] = round(int(total.group(1)) / int(operations))
        return counts


def compare(counts, baseline):
    """Lines of a table, and the paths that grew too much."""
    lines, grown = [], []
    for path, now in counts.items():
        before = baseline.get(path)
        change = "" if not before else f"{100 * (now / before - 1):+.1f}%"
        if before and now > before * GROWTH_MAX:
            grown.append(f"{path}: {before} -> {now} instructions")
        lines.append(f"{path:62} {now:9,} {'-' if not before else format(before, ','):>9} {change:>7}")
    return lines, grown


def main():
    parser = argparse.ArgumentParser(description="Instructions of the hot paths")
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parents[1] / "build/release")
    parser.add_argument("--update", action="store_true", help="keep what was counted as the baseline of this compiler")
    args = parser.parse_args()
    program = args.build / "bench/hot_paths"
    name, counts = compiler(program), count(program)
    baselines = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    lines, grown = compare(counts, baselines.get(name, {}))
    print(f"{'instructions of one operation, ' + name:62} {'now':>9} {'baseline':>9}")
    print("\n".join(lines))
    if args.update:
        baselines[name] = counts
        BASELINE.write_text(json.dumps(baselines, indent=2) + "\n")
    elif grown:
        sys.exit("grew by more than a tenth:\n" + "\n".join(grown))


if __name__ == "__main__":
    main()
