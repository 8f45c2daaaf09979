import pytest


@pytest.fixture
def measured(opened):
    """``measured(**query)``: the page, after a click on Measure."""

    def run(**query):
        at = opened("efficiency", bench_attentions="mha,iha", **query)
        assert not at.error
        at.button(key="start-Measure").click()
        at.run()
        assert not at.exception and not at.error, (at.exception, at.error)
        return at

    return run


def test_lines_over_lengths(measured, charts):
    at = measured(bench_lengths="16,32", bench_widths="64")
    figure = charts(at)["efficiency"]
    names = [trace["name"] for trace in figure["data"] if trace.get("name")]
    assert {"mha", "iha"} <= set(names)
    table = at.markdown[-1].value if "| iha |" in at.markdown[-1].value else ""
    table = table or next(m.value for m in at.markdown if "| iha |" in m.value)
    assert table.count("| mha |") == 2 == table.count("| iha |")


def test_one_case_and_a_stack(measured, charts):
    at = measured(bench_lengths="16", bench_widths="64", bench_kind="stack")
    assert "efficiency" in charts(at)
    assert any("Stacks of 4 blocks" in caption.value for caption in at.caption)


def test_nothing_chosen_is_a_sentence(opened):
    at = opened("efficiency")
    at.multiselect(key="bench-lengths").set_value([])
    at.run()
    assert any("Choose a length" in caption.value for caption in at.caption)
