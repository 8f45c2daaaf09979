from damcha.analysis.progress import Progress, finished


def steps():
    for k in range(3):
        yield Progress(k, 3, "counting")
    yield "all"


def test_the_last_thing_is_the_result():
    seen = []
    assert finished(steps(), seen.append) == "all"
    assert [step.done for step in seen] == [0, 1, 2]
    assert finished(steps()) == "all"
