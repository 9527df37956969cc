import pathlib
import shutil
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
