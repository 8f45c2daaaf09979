import csv
import io
import re

import pytest

from damcha.errors import InputError
from damcha.figures.table import Table, escape, to_csv, to_latex, to_markdown

TABLE = Table(
    ("System_1", "Loss", "Gap [95 %]"),
    (("100 % & more", 0.06291, (-0.5, -0.61234, 0.25)), ("=1+1 | x", 1, None)),
    "Losses of 5 % & others.",
)


def test_latex_is_booktabs_and_escaped():
    text = to_latex(TABLE)
    assert r"\begin{tabular}{lrr}" in text
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert text.count(rule) == 1
    assert r"System\_1 & Loss & Gap [95 \%] \\" in text
    assert r"100 \% \& more & 0.0629 & $-$0.5000 [$-$0.6123, 0.2500] \\" in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert all(len(re.findall(r"(?<!\\)&", row)) == 2 for row in rows)
    assert text.count("{") == text.count("}")


def test_escaping():
    assert escape("a_b {c} \\d ‖x‖ ≠ 1") == (r"a\_b \{c\} \textbackslash{}d $\|$x$\|$ $\neq$ 1")


def test_csv_keeps_every_digit_and_runs_nothing():
    rows = list(csv.reader(io.StringIO(to_csv(TABLE))))
    assert rows[0] == ["System_1", "Loss", "Gap [95 %]", "Gap [95 %] low", "Gap [95 %] high"]
    assert rows[1] == ["100 % & more", "0.06291", "-0.5", "-0.61234", "0.25"]
    assert rows[2] == ["'=1+1 | x", "1", "", "", ""]


def test_markdown():
    lines = to_markdown(TABLE).splitlines()
    assert lines[0] == "| System_1 | Loss | Gap [95 %] |"
    assert lines[1] == "| --- | ---: | ---: |"
    assert lines[2].endswith("| 0.0629 | −0.5000 [−0.6123, 0.2500] |")
    assert lines[3].startswith(r"| =1+1 \| x | 1 |")
    assert lines[-1] == TABLE.caption


def test_a_row_of_another_length_is_refused():
    with pytest.raises(InputError, match="row 0 has 1 cells for 2 columns"):
        Table(("a", "b"), (("x",),))
