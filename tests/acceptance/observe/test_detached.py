"""Detached actors outlive their job, in their namespace."""


def test_a_detached_actor_outlives_its_job_and_is_found_in_its_namespace_only(observed):
    first = observed.run("detach", "shop", "till")
    assert first.returncode == 0 and "counts 1\n" in first.stdout, first.stdout + first.stderr
    # Another job: the same actor, with what it counted.
    second = observed.run("find", "shop", "till")
    assert second.returncode == 0 and "counts 2\n" in second.stdout, second.stdout + second.stderr
    elsewhere = observed.run("find", "office", "till")
    assert 'NotFoundError: no actor is named "till" in namespace "office"' in elsewhere.stdout, elsewhere.stdout + elsewhere.stderr
    # The name is taken: the error names it, its namespace and who has it.
    taken = observed.run("detach", "shop", "till")
    assert "RuntimeError: " in taken.stdout and "till" in taken.stdout and "shop" in taken.stdout, taken.stdout + taken.stderr
    ended = observed.run("find", "shop", "till", "and-end-it")
    assert "counts 3\n" in ended.stdout, ended.stdout + ended.stderr
    gone = observed.run("find", "shop", "till")
    assert "NotFoundError: " in gone.stdout, gone.stdout + gone.stderr
