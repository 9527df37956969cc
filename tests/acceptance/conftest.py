import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from argosy_cluster import cluster  # noqa: E402,F401  (the fixture)
