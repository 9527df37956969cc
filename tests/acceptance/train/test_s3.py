"""Checkpoints that stream into S3, while it fails, throttles and forgets who asks."""

import collections
import threading

import pytest

import s3_server
from s3_server import BUCKET, part_number
from training_cluster import verb

RUN = ["--mx", "no", "--ctx-len", 48, "--batch-size-per-device", 2, "--max-steps", 2, "--no-eval-first", "--save-state", "none"]


@pytest.fixture(scope="module")
def server():
    running = s3_server.S3Server()
    yield running
    running.stop()


@pytest.fixture
def s3(server, cluster):
    """The server in its first state, and credentials for it where the nodes look for them."""
    server.reset()
    give_credentials(cluster)
    yield server
    server.reset()
    (cluster.home / ".aws" / "credentials").unlink(missing_ok=True)


def give_credentials(cluster, token=None):
    folder = cluster.home / ".aws"
    folder.mkdir(exist_ok=True)
    new = folder / "new"
    new.write_text("[other]\naws_access_key_id = x\n\n[default]\naws_access_key_id = key\naws_secret_access_key=secret\n"
                   + (f"aws_session_token = {token}\n" if token else ""))
    new.rename(folder / "credentials")


@pytest.fixture(scope="module")
def several_parts(sums, tmp_path_factory):
    """A model whose weights are 28 MB in fp32: four parts."""
    folder = tmp_path_factory.mktemp("parts")
    verb("model", "init", "--train-text", sums.train, "--output-dir", folder / "model", "--hidden-size", 384, "--intermediate-size", 1024,
         "--layers", 4, "--heads", 6, "--kv-heads", 6)
    return folder / "model"


def to_s3(s3, prefix):
    return ["--storage-path", f"s3://{BUCKET}/{prefix}/", "--s3-endpoint", s3.endpoint]


def test_what_is_in_s3_is_byte_for_byte_what_a_folder_gets_whatever_fails_on_the_way(cluster, tmp_path, sums, several_parts, s3):
    flags = [*sums.flags(test=False), *RUN]
    flags[flags.index("--model-name") + 1] = several_parts
    (tmp_path / "local").mkdir()
    local = cluster.finetune(tmp_path / "local", *flags, ranks=3)
    want = {path.name: path.read_bytes() for path in local.checkpoint.iterdir()}

    seen, lock = collections.Counter(), threading.Lock()

    def fault(request, body):
        part = part_number(request.path)
        kind = f"part {part}" if part else f"{request.command} uploadId" if "uploadId" in request.path else request.command
        with lock:
            seen[kind] += 1
            nth = seen[kind]
        if kind == "part 1" and nth <= 2:
            return 503, "SlowDown"
        if kind == "part 2" and nth == 1:
            return "drop"
        if kind == "part 3" and nth == 1:
            # The token of the run's first requests is old from here on.
            s3.door.token = "second"
            give_credentials(cluster, "second")
            return 400, "ExpiredToken"
        if kind == "POST uploadId" and nth == 1:
            return 200, "InternalError"
        return None

    s3.door.fault = fault
    left = s3.client.create_multipart_upload(Bucket=BUCKET, Key="a/epoch-1/model.safetensors")   # as a run that was killed leaves one
    assert left["UploadId"] in [upload["UploadId"] for upload in s3.uploads()]
    run = cluster.finetune(tmp_path, *flags, *to_s3(s3, "a"), ranks=3)
    assert f"checkpoint: s3://{BUCKET}/a/epoch-1" in run.stdout
    assert not (run.output_dir / "epoch-1").exists()
    got = s3.objects("a/epoch-1/")
    assert sorted(got) == sorted(want)
    assert all(got[name] == want[name] for name in want if name != "argosy_checkpoint.json")
    assert seen["part 1"] == 3 and seen["part 2"] == 2 and seen["part 4"] >= 1 and seen["POST uploadId"] == 2
    assert s3.uploads() == []
    order = [line for line in s3.door.seen if "epoch-1/" in line and line.startswith("PUT") and "uploadId" not in line]
    assert "argosy_checkpoint.json" in order[-1]


def test_what_cannot_be_sent_is_taken_back_and_the_error_says_why(cluster, tmp_path, sums, several_parts, s3):
    flags = [*sums.flags(test=False), *RUN]
    flags[flags.index("--model-name") + 1] = several_parts
    damaged = []

    def damage(request, body):
        if part_number(request.path) == "2":
            damaged.append(request.path)
            return body[:1000] + b"!" + body[1001:]
        return None

    def refuse(request, body):
        return (403, "AccessDenied") if part_number(request.path) == "3" else None

    def expire(request, body):
        s3.door.token = "never given"
        return 400, "ExpiredToken"

    for number, (fault, words) in enumerate([(refuse, ["AccessDenied", "profile \"default\""]), (damage, ["epoch-1/model.safetensors"])]):
        s3.door.fault = fault
        folder = tmp_path / str(number)
        folder.mkdir()
        # A server that checks nothing itself: what is there is read back.
        s3.door.hidden_headers = {"x-amz-checksum-crc32c"}
        run = cluster.finetune(folder, *flags, *to_s3(s3, f"b{number}"), check=False)
        print("\n" + run.stderr.strip())
        assert run.returncode != 0 and all(word in run.stderr for word in words), run.stderr
        assert s3.objects(f"b{number}/") == {} and s3.uploads() == []
    assert damaged
    folder = tmp_path / "expired"
    folder.mkdir()
    s3.door.fault = expire
    run = cluster.finetune(folder, *flags, *to_s3(s3, "c"), check=False)
    assert run.returncode != 0 and "have expired" in run.stderr and "renew" in run.stderr and "5 attempts" in run.stderr
    assert "never given" not in run.stderr and "secret" not in run.stderr


def test_a_server_that_says_the_checksums_is_believed_when_they_are_right(cluster, tmp_path, sums, s3):
    for said, good in (("same", True), ("AAAAAA==", False)):
        s3.reset()
        s3.door.checksum = said
        folder = tmp_path / str(good)
        folder.mkdir()
        run = cluster.finetune(folder, *sums.flags(), *RUN, "--sample-prompts", 1, *to_s3(s3, f"sums-{good}"), check=False)
        assert (run.returncode == 0) == good, run.stderr
        assert good == ("held-out prompts are not answered" in run.stdout)
        assert good or "arrived with checksum AAAAAA==" in run.stderr and s3.objects(f"sums-{good}/") == {} and s3.uploads() == []
        assert not [line for line in s3.door.seen if line.startswith("GET") and line.endswith(".safetensors")]


def test_the_newest_are_kept_and_an_earlier_run_is_never_mixed_in(cluster, tmp_path, sums, s3):
    flags = [*sums.flags(test=False), "--mx", "no", "--ctx-len", 48, "--batch-size-per-device", 16, "--num-epochs", 3, "--no-eval-first",
             "--num-checkpoints-to-keep", 2, "--as-test"]
    flags = [flag for flag in flags if flag != "--as-test"] + ["--eval-rows", 4]
    run = cluster.finetune(tmp_path, *flags, *to_s3(s3, "kept"), ranks=3)
    assert {key.split("/")[0] for key in s3.objects("kept/")} == {"epoch-2", "epoch-3"}, run.stdout
    (tmp_path / "again").mkdir()
    again = cluster.finetune(tmp_path / "again", *flags, *to_s3(s3, "kept"), ranks=3, check=False)
    assert again.returncode != 0 and "epoch-2, epoch-3" in again.stderr and "--overwrite" in again.stderr
    anew = cluster.finetune(tmp_path / "again", *flags, *to_s3(s3, "kept"), "--overwrite", "--max-steps", 1, ranks=3)
    assert anew.returncode == 0 and {key.split("/")[0] for key in s3.objects("kept/")} == {"epoch-1"}


def test_without_credentials_or_a_bucket_the_run_does_not_begin(cluster, tmp_path, sums, s3):
    flags = [*sums.flags(test=False), *RUN]
    run = cluster.finetune(tmp_path, *flags, "--storage-path", "s3://no-such-bucket/x", "--s3-endpoint", s3.endpoint, check=False)
    assert run.returncode != 0 and "NoSuchBucket" in run.stderr and "node " in run.stderr
    (cluster.home / ".aws" / "credentials").unlink()
    run = cluster.finetune(tmp_path, *flags, *to_s3(s3, "d"), check=False)
    assert run.returncode != 0 and "no credentials for S3" in run.stderr and "AWS_ACCESS_KEY_ID" in run.stderr
    for wrong in (["--storage-path", "/folder"], ["--s3-endpoint", s3.endpoint]):
        run = cluster.finetune(tmp_path, *flags, *wrong, check=False)
        assert run.returncode != 0 and wrong[0] in run.stderr
