"""The working directory of a submitted job is that of its workers, on every node."""


def test_workers_of_a_submitted_job_run_in_its_working_directory(observed, tmp_path):
    (tmp_path / "words.txt").write_text("packed words\n")
    result = observed.argosy("job", "submit", "--working-dir", tmp_path, "--", observed.program, "reads", "words.txt")
    assert result.returncode == 0, result.stdout + result.stderr
    assert " reads packed words\nthere reads packed words\n" in result.stdout, result.stdout
