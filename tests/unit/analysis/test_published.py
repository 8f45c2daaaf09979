import pytest
import torch
from click.testing import CliRunner

from damcha.analysis.published import PUBLISHED_CODE
from damcha.attention import ATTENTIONS
from damcha.cli import main


@pytest.mark.parametrize("name", PUBLISHED_CODE)
def test_published_code_s_way_gives_the_same(name, randomise, normal):
    layer = randomise(ATTENTIONS[name](16, 4, batch_first=True).double())
    x = normal(2, 7, 16)
    ours = layer(x, x, x, need_weights=False, is_causal=True)[0]
    theirs = PUBLISHED_CODE[name][0](layer, x)
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-12)


def test_from_the_shell():
    words = ["bench", "published", "--d-model", "16", "--seq-len", "8", "--repeats", "1"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if "at most 1.00" in line]
    assert len(lines) == 2 * len(PUBLISHED_CODE)
