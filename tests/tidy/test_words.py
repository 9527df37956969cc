"""What a reader of the repository should never stumble on."""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = {".h", ".cc", ".py", ".sh", ".md", ".txt", ".cmake", ".proto", ".ts", ".tsx", ".css", ".html", ".json"}


def tracked():
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [ROOT / n for n in names if n and pathlib.Path(n).suffix in TEXT and not n.startswith("tests/tidy/")
            and not n.endswith("package-lock.json") and (ROOT / n).exists()]


def test_nothing_says_of_itself_that_it_is_unfinished():
    pattern = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|\bnot (yet )?implemented\b", re.I)
    wrong = [f"{p.relative_to(ROOT)}:{i}: {line.strip()[:80]}" for p in tracked() for i, line in enumerate(p.read_text().splitlines(), 1)
             if pattern.search(line)]
    assert not wrong, "\n".join(wrong)


def test_headers_are_guarded_and_sources_include_their_own_header_first():
    wrong = []
    for path in tracked():
        text = path.read_text()
        if path.suffix == ".h" and "#pragma once" not in text:
            wrong.append(f"{path.relative_to(ROOT)} has no #pragma once")
        own = path.with_suffix(".h")
        if path.suffix == ".cc" and own.exists() and "tests/" not in str(path.relative_to(ROOT)):
            first = re.search(r'#include [<"]([^>"]+)[>"]', text)
            if first and pathlib.Path(first.group(1)).name != own.name:
                wrong.append(f"{path.relative_to(ROOT)} includes {first.group(1)} before its own header")
    assert not wrong, "\n".join(wrong)


def test_lock_files_name_no_registry():
    lock = ROOT / "dashboard/web/package-lock.json"
    if lock.exists():
        assert '"resolved"' not in lock.read_text()
