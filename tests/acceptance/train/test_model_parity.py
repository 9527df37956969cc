"""Models of other seeds and shapes than the committed ones, made by the live transformers and torch and compared by the parity test."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from argosy_cluster import argosy_binary

PARITY = pathlib.Path(__file__).resolve().parents[2] / "parity"


def make_models(folder, *arguments):
    made = subprocess.run([sys.executable, PARITY / "make_models.py", folder, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize("arguments", [("--seed", 2), ("--seed", 3, "--larger"), ("--seed", 4, "--larger")], ids=["seed-2", "seed-3-larger", "seed-4-larger"])
def test_models_of_other_seeds_and_shapes_have_transformers_numbers(tmp_path, arguments):
    make_models(tmp_path, *arguments)
    test = pathlib.Path(argosy_binary()).parents[1] / "tests" / "train_parity_test"
    run = subprocess.run([test], env=dict(os.environ, ARGOSY_PARITY_MODELS=str(tmp_path)), capture_output=True, text=True, timeout=300, cwd=PARITY.parents[1])
    print("\n" + run.stdout)
    assert run.returncode == 0, run.stdout[-6000:]


def test_the_committed_numbers_are_those_of_the_transformers_that_is_installed(tmp_path):
    names = ["llama-biases-tied", "mistral-window", "qwen3-norms"]
    make_models(tmp_path, *names)
    for name in names:
        committed, live = (json.loads((folder / name / "expected.json").read_text()) for folder in (PARITY / "models", tmp_path))
        for case, values in committed["cases"].items():
            assert values["loss"] == pytest.approx(live["cases"][case]["loss"], rel=1e-12), (name, case)
        assert committed["greedy"] == live["greedy"]
        tensors = [load_file(folder / name / "expected.safetensors") for folder in (PARITY / "models", tmp_path)]
        assert tensors[0].keys() == tensors[1].keys()
        for key, tensor in tensors[0].items():
            torch.testing.assert_close(tensor, tensors[1][key], rtol=1e-6, atol=1e-9)
