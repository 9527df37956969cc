"""Models and rows for the tests, small enough that a run takes seconds."""

import dataclasses
import json
import os
import pathlib

import pytest

from argosy_cluster import ROOT
from training_cluster import verb


@dataclasses.dataclass
class Material:
    model: pathlib.Path
    train: pathlib.Path
    test: pathlib.Path
    tokens: pathlib.Path | None = None

    def flags(self, *, added_tokens=False, test=True):
        flags = ["--model-name", self.model, "--train-path", self.train]
        if test:
            flags += ["--test-path", self.test]
        if added_tokens:
            flags += ["--special-token-path", self.tokens]
        return flags

    def rows(self, path=None):
        return [json.loads(line)["input"] for line in open(path or self.train, encoding="utf-8")]


def asset(relative: str) -> pathlib.Path:
    """A file or folder of the assets beside the repository; the test is skipped where they are missing."""
    root = pathlib.Path(os.environ.get("ARGOSY_ASSETS", ROOT.parent / "shared" / "assets"))
    if not (root / relative).exists():
        pytest.skip(f"{root / relative} is not there (ARGOSY_ASSETS names the folder of the assets)")
    return root / relative


def make_sums(folder: pathlib.Path) -> Material:
    verb("dataset", "create", "--kind", "arithmetic", "--rows", 600, "--prompt-type", 3, "--test-split", 0.1, "--output-dir", folder / "data")
    verb("model", "init", "--preset", "nano", "--train-text", folder / "data" / "train.jsonl", "--special-token-path",
         folder / "data" / "tokens.json", "--output-dir", folder / "base")
    return Material(folder / "base", folder / "data" / "train.jsonl", folder / "data" / "test.jsonl", folder / "data" / "tokens.json")


def make_stories(folder: pathlib.Path) -> Material:
    source = asset("models/stories260K")
    rows = [json.loads(line) for line in open(asset("data/gsm8k/train.jsonl"), encoding="utf-8")][:260]
    for name, part in (("train.jsonl", rows[:240]), ("test.jsonl", rows[240:])):
        with open(folder / name, "w", encoding="utf-8") as file:
            for row in part:
                # First sentences: rows of unequal length, most shorter than the context and some longer.
                file.write(json.dumps({"input": row["question"].split(".")[0] + "."}) + "\n")
    return Material(source, folder / "train.jsonl", folder / "test.jsonl")
