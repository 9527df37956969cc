"""The direction of dependencies: a folder includes only what docs/architecture.md allows it."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]

# std, Abseil and spdlog (with fmt) are everyone's.
EVERYONE = {"std", "absl", "spdlog"}

# folder -> what it may include: folders of the tree, or libraries by the names in LIBRARIES.
ALLOWED = {
    "runtime/base": {"json"},
    "scheduler": {"runtime/base"},
    "runtime/async": {"runtime/base", "asio"},
    "runtime/rpc": {"runtime/base", "runtime/async", "proto", "grpc", "openssl"},
    "runtime/wire": {"runtime/base", "runtime/async", "openssl"},
    "runtime/store": {"runtime/base", "runtime/async", "runtime/wire"},
    "runtime/transfer": {"runtime/base", "runtime/async", "runtime/wire", "runtime/store"},
    "runtime/head": {"runtime/base", "runtime/async", "runtime/rpc", "proto", "grpc", "scheduler", "sqlite", "json"},
    "runtime/node": {"runtime/base", "runtime/async", "runtime/rpc", "runtime/wire", "proto", "grpc", "scheduler", "runtime/store",
                     "runtime/transfer", "zip", "json"},
    "runtime/worker": {"runtime/base", "runtime/async", "runtime/wire", "runtime/store", "json"},
    "runtime/api/include": {"runtime/base", "argosy"},
    "runtime/api": {"runtime/base", "runtime/worker", "runtime/wire", "runtime/store", "runtime/async", "argosy", "json"},
    "train": {"runtime/base", "argosy", "torch", "openmp", "sentencepiece", "pcre2", "utf8proc", "curl", "json", "cli11"},
    "dashboard/server": {"runtime/base", "runtime/async", "runtime/rpc", "proto", "grpc", "beast", "asio", "json", "openssl"},
    "cli": {"runtime/base", "scheduler", "runtime/async", "runtime/rpc", "runtime/wire", "runtime/store", "runtime/transfer",
            "runtime/head", "runtime/node", "runtime/worker", "dashboard/server", "proto", "grpc", "beast", "asio", "json", "cli11",
            "zip", "yaml", "openssl", "argosy"},
    "examples": {"argosy", "runtime/base"},
}
# Parts of the training library whose verbs must start fast.
TORCH_FREE = ["train/config", "train/data", "train/tokenizer", "train/checkpoint", "train/collective", "train/optim", "train/plan", "train/report", "train/tool"]

LIBRARIES = [
    ("absl", r"absl/"), ("spdlog", r"spdlog/|fmt/"), ("json", r"nlohmann/"), ("grpc", r"grpc(pp)?/|google/protobuf/"),
    ("proto", r"argosy/v1/"), ("asio", r"boost/(asio|system)"), ("beast", r"boost/(beast|url|optional)"),
    ("openssl", r"openssl/"), ("sqlite", r"sqlite3\.h"), ("zip", r"zip\.h|archive"), ("torch", r"ATen/|torch/|c10/|train/model/torch_headers"),
    ("openmp", r"omp\.h"), ("pcre2", r"pcre2\.h"), ("utf8proc", r"utf8proc\.h"), ("sentencepiece", r"sentencepiece"), ("curl", r"curl/"),
    ("cli11", r"CLI/"), ("yaml", r"yaml-cpp/"), ("argosy", r"argosy/"),
]
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.M)


def sources(folder):
    return sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in {".h", ".cc", ".cu"})


def folder_of(path):
    relative = str(path.relative_to(ROOT))
    return max((f for f in ALLOWED if relative.startswith(f + "/")), key=len, default=None)


def what(include):
    for name, pattern in LIBRARIES:
        if re.match(pattern, include):
            return name
    for folder in ALLOWED:
        if include.startswith(folder + "/"):
            return folder
    return "std"


def test_every_include_is_allowed():
    wrong = []
    for top in ("runtime", "scheduler", "train", "dashboard/server", "cli", "examples"):
        for path in sources(top):
            folder = folder_of(path)
            assert folder, f"{path} is in no folder of the table"
            for include in INCLUDE.findall(path.read_text()):
                target = what(include)
                if target not in EVERYONE | ALLOWED[folder] | {folder}:
                    wrong.append(f"{path.relative_to(ROOT)} includes {include}: {folder} may not use {target}")
    assert not wrong, "\n".join(wrong)


def test_head_node_and_worker_never_include_each_other():
    wrong = []
    for process in ("head", "node", "worker"):
        for path in sources(f"runtime/{process}"):
            for other in {"head", "node", "worker"} - {process}:
                if f'#include "runtime/{other}/' in path.read_text():
                    wrong.append(f"{path.relative_to(ROOT)} includes runtime/{other}")
    assert not wrong, "\n".join(wrong)


def test_protobuf_stops_at_codecs_services_and_rpc():
    """In head and node, generated headers are for *_codec, *_service, links and servers; never for the pure machines and tables."""
    wrong = []
    for path in sources("runtime/head") + sources("runtime/node"):
        if re.search(r"_(machine|table|ledger)\.(h|cc)$", path.name):
            if re.search(r'#include "argosy/v1/|#include <grpc', path.read_text()):
                wrong.append(str(path.relative_to(ROOT)))
    assert not wrong, "\n".join(wrong)


def test_no_file_has_protobuf_and_torch():
    for path in sources("train") + sources("runtime") + sources("cli"):
        kinds = {what(i) for i in INCLUDE.findall(path.read_text())}
        assert not ({"torch"} & kinds and {"proto", "grpc"} & kinds), path


def test_parts_that_start_fast_are_free_of_torch():
    wrong = [f"{p.relative_to(ROOT)}" for part in TORCH_FREE for p in sources(part)
             if "torch" in {what(i) for i in INCLUDE.findall(p.read_text())}]
    assert not wrong, "\n".join(wrong)


def test_pure_cores_have_no_clock_thread_or_randomness():
    banned = re.compile(r"\b(absl::Now\(|std::chrono::\w+_clock::now|std::thread|std::mutex|absl::Mutex|std::random_device|rand\(\))")
    pure = [p for p in sources("scheduler")]
    pure += [p for p in sources("runtime") if re.search(r"_(machine|table|ledger)\.(h|cc)$", p.name)]
    wrong = [f"{p.relative_to(ROOT)}: {m.group(0)}" for p in pure for m in banned.finditer(p.read_text())]
    assert not wrong, "\n".join(wrong)


def test_no_aggregate_temporary_inside_co_await():
    """GCC 12 destroys such a temporary twice: name it first."""
    wrong = []
    for top in ("runtime", "scheduler", "train", "dashboard/server", "cli"):
        for path in sources(top):
            for match in re.finditer(r"co_await [^;]*?\b[A-Z]\w*\s*\{[^;]*\}", path.read_text()):
                wrong.append(f"{path.relative_to(ROOT)}: {match.group(0)[:80]}")
    assert not wrong, "\n".join(wrong)
