#!/usr/bin/env python3
"""Runs `argosy bench` and the peer's own microbenchmark in turns on this machine and prints both beside each other.

    bench/runtime/side_by_side.py --peer-python PYTHON [--argosy build/release/bin/argosy] [--rounds 1] [--only PATTERN] [--output FILE]

PYTHON is one that has `ray[default]` and numpy. The peer runs the groups of its loops that have a row in ours, as `ray microbenchmark` does.
Ratios of one run count: figures of two runs do not compare.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Ours -> what the peer prints. It matches TESTS_TO_RUN as a part of the name.
ROWS = {
    "single client get calls": "single client get calls (Plasma Store)",
    "single client put calls": "single client put calls (Plasma Store)",
    "single client put gigabytes": "single client put gigabytes",
    "single client get object containing 10k refs": "single client get object containing 10k refs",
    "single client tasks sync": "single client tasks sync",
    "single client tasks async": "single client tasks async",
    "single client tasks and get batch": "single client tasks and get batch",
    "single client wait 1k refs": "single client wait 1k refs",
    "multi client tasks async": "multi client tasks async",
    "1:1 actor calls sync": "1:1 actor calls sync",
    "1:1 actor calls async": "1:1 actor calls async",
    "1:1 actor calls concurrent": "1:1 actor calls concurrent",
    "1:1 async-actor calls sync": "1:1 async-actor calls sync",
    "1:1 async-actor calls async": "1:1 async-actor calls async",
    "1:n actor calls async": "1:n actor calls async",
    "n:n actor calls async": "n:n actor calls async",
    "placement group create/removal": "placement group create/removal",
}


def ours(argosy: str, only: str) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "rows.json")
        subprocess.run([argosy, "bench", "--json", path, *(["--only", only] if only else [])], check=True, stdout=sys.stderr,
                       env=os.environ | {"ARGOSY_SESSIONS_DIR": folder})
        return {row["name"]: row for row in json.loads(path.read_text())}


# The peer runs the loops whose names hold one of these; those of its remote client hold them too, and are not shown.
GROUPS = ["single client", "multi client tasks", "1:1 actor calls", "1:1 async-actor calls", "1:n actor calls async", "n:n actor calls async",
          "placement group"]


def peers(python: str, group: str, seconds: float) -> dict:
    environment = os.environ | {"TESTS_TO_RUN": group, "RAY_USAGE_STATS_ENABLED": "0"}
    command = [python, "-c", "from ray._private.ray_perf import main; main()"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True) as run:
        rates = {}
        # What it has printed by then counts.
        limit = threading.Timer(seconds, os.killpg, (run.pid, signal.SIGKILL))
        limit.start()
        for line in run.stdout:
            if found := re.match(r"(.*) per second ([\d.]+) \+- ", line):
                rates[found[1]] = float(found[2])
            if line.startswith("client: "):   # the rest is its remote client
                break
        limit.cancel()
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGINT)
    return rates


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--argosy", default=str(ROOT / "build/release/bin/argosy"))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--group-seconds", type=float, default=180, help="the longest that one of the peer's groups of loops may take")
    parser.add_argument("--output", help="also write the table here, e.g. bench/results/DATE-runtime.txt")
    options = parser.parse_args()

    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    lines = [f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, commit {commit}, {os.cpu_count()} cores, {platform.platform()}",
             f"load before: {os.getloadavg()[0]:.1f}", ""]
    for round_number in range(options.rounds):
        rows = ours(options.argosy, options.only)
        wanted = [ROWS[name] for name in rows if name in ROWS]
        rates = {}
        for group in GROUPS:
            if any(group in name for name in wanted):
                rates |= peers(options.peer_python, group, options.group_seconds)
        lines.append(f"{'':46} {'argosy':>12} {'unit':5} {'of limit':>9} {'peer':>10} {'ratio':>8}")
        for name, row in rows.items():
            limit = f"{row['value'] / row['limit']:.2f}" if row["limit"] else ""
            peer = rates.get(ROWS.get(name))
            beside = f"{peer:10.5g} {row['value'] / peer:7.1f}x" if peer else ""
            lines.append(f"{name:46} {row['value']:12.5g} {row['unit']:5} {limit:>9} {beside}".rstrip())
            print(lines[-1], flush=True)
        lines.append("")
    text = "\n".join(lines)
    if options.output:
        pathlib.Path(options.output).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
