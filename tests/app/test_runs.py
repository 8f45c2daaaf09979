def test_curves_results_differences_and_cards(opened, charts):
    at = opened("runs", runs_chosen="fashion-damcha,unshared")
    assert "curves" in charts(at) and not at.error
    said = "\n".join(mark.value for mark in at.markdown).replace("\\", "")
    assert "| fashion-damcha |" in said and "| sharing | stack | none |" in said
    assert any("A tiny run" in code.value for code in at.code)


def test_one_run_and_none(opened, charts):
    at = opened("runs", runs_chosen="mha")
    assert "curves" in charts(at)
    at.multiselect(key="runs-chosen").set_value([]).run()
    assert any("Choose runs" in caption.value for caption in at.caption)


def test_broken_runs_are_named(opened):
    captions = [caption.value.replace("\\", "") for caption in opened("runs").caption]
    assert any("no-config" in caption and "cannot be opened" in caption for caption in captions)
