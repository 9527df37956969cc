"""The instructions of the hot paths do not grow unnoticed."""

import importlib.util
import json
import os
import pathlib
import shutil

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ARGOSY_BUILD_DIR", ROOT / "build/release"))

spec = importlib.util.spec_from_file_location("count", ROOT / "bench/instructions/count.py")
counting = importlib.util.module_from_spec(spec)
spec.loader.exec_module(counting)


def test_no_hot_path_grew_by_more_than_a_tenth(capsys):
    assert shutil.which("valgrind"), "valgrind is missing: install the packages that test.sh installs"
    program = BUILD / "bench/hot_paths"
    counts = counting.count(program)
    assert len(counts) >= 8 and min(counts.values()) > 10, counts
    name = counting.compiler(program)
    baseline = json.loads(counting.BASELINE.read_text()).get(name)
    lines, grown = counting.compare(counts, baseline or {})
    with capsys.disabled():
        if baseline is None:
            print(f"\nbench/instructions/baseline.json has no baseline of {name}; counted:\n" + "\n".join(lines))
    if baseline is not None:
        assert set(counts) == set(baseline), "paths and baseline differ: bench/instructions/count.py --update"
    assert not grown, "\n".join(grown + ["if this is meant: bench/instructions/count.py --update"])


def test_growth_is_noticed():
    lines, grown = counting.compare({"a": 110, "b": 112}, {"a": 100, "b": 100})
    assert grown == ["b: 100 -> 112 instructions"]
    assert len(lines) == 2
