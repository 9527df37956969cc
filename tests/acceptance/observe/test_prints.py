"""What tasks and actors print, as their driver shows it."""

import re


def test_prints_of_all_nodes_appear_at_the_driver_with_who_printed_them(observed):
    result = observed.run("prints")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert any(re.fullmatch(r"\(Speak pid=\d+\) from here", line) for line in lines), result.stdout
    assert any(re.fullmatch(r"\(Speak pid=\d+, node=there\) from there", line) for line in lines), result.stdout
    assert any(re.fullmatch(r"\(Whisper pid=\d+\) no newline", line) for line in lines), result.stdout
    assert any(re.fullmatch(r"\(Speaker pid=\d+(, node=there)?\) made number", line) for line in lines), result.stdout
    said = [line for line in lines if re.fullmatch(r"\(Speaker pid=\d+(, node=there)?\) number \d", line)]
    assert [line[-1] for line in said] == ["0", "1", "2"], "the actor's lines come once and in order"
    assert any(re.fullmatch(r"\(Die pid=\d+(, node=there)?\) last words", line) for line in lines), "a worker that died has been heard"
    # Standard error stays standard error.
    assert re.search(r"^\(Whisper pid=\d+(, node=there)?\) an error$", result.stderr, re.M), result.stderr
    assert "an error" not in result.stdout


def test_prints_can_be_switched_off(observed):
    result = observed.run("prints", env={"ARGOSY_LOG_TO_DRIVER": "0"})
    assert result.returncode == 0, result.stderr
    assert result.stdout == "it died\ndone\n" and "pid=" not in result.stderr
    bad = observed.run("prints", env={"ARGOSY_LOG_TO_DRIVER": "no"})
    assert bad.returncode != 0 and 'ARGOSY_LOG_TO_DRIVER is "no"' in bad.stderr


def test_who_prints_too_much_is_shown_the_newest_and_told_what_is_missing(observed):
    result = observed.run("flood", 40)
    assert result.returncode == 0, result.stderr
    missing = re.search(r"\(Flood pid=\d+(, node=there)?\) \.\.\. (\d+) MB before this are not shown", result.stdout)
    assert missing, result.stdout[-2000:]
    assert "the last line\n" in result.stdout and len(result.stdout) < 30 << 20


def test_the_log_of_a_job_has_what_its_workers_print(observed):
    result = observed.argosy("job", "submit", "--", observed.program, "prints")
    assert result.returncode == 0, result.stderr
    assert re.search(r"^\(Speak pid=\d+, node=there\) from there$", result.stdout, re.M), result.stdout
