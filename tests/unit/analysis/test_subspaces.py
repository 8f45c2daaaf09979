import dataclasses

import numpy as np
import pytest
import torch

from damcha.analysis.progress import finished
from damcha.analysis.subspaces import NOISE, SHARPNESS, SMALL, Size, Student, Teacher, measure
from damcha.config import MetricConfig
from damcha.errors import InputError

TINY = Size(d_model=12, n_heads=3, seq_len=6, widths=(2,), levels=(0.0, 1.0), seeds=2, steps=4,
            batch=4, held_out=16)  # fmt: skip


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def by_loops(teacher, x, width, level, size):
    """z of one sequence, head by head and token by token, as the module's formula has it."""
    h, e = size.n_heads, size.d_model // size.n_heads
    forms = teacher.forms.unflatten(-1, (h, e))
    z = torch.zeros(len(x), h)
    for a in range(h):
        b, c = (a + 1) % h, (a + 2) % h
        own, others = forms[a, :width, a, :width], forms[a, :width, b, :width]
        read = teacher.reads[a].unflatten(0, (h, e))[c]
        for i in range(len(x)):
            q = x[i].unflatten(0, (h, e))[a, :width]
            keys = x.unflatten(-1, (h, e))
            s = torch.stack([q @ own @ k[a, :width] + q @ others @ k[b, :width] for k in keys])
            z[i, a] = s.softmax(0) @ (keys[:, c] @ read)
    return z


@pytest.mark.parametrize(("width", "level"), [(8, 0.0), (3, 0.4), (1, 1.0)])
def test_the_teacher_is_the_formula(width, level):
    teacher = Teacher(SMALL, width, level, 5, torch.float64)
    x = torch.randn(2, 7, SMALL.d_model)
    expected = torch.stack([by_loops(teacher, one, width, level, SMALL) for one in x])
    torch.testing.assert_close(teacher.answer(x), expected, rtol=1e-12, atol=1e-12)
    forms = teacher.forms.unflatten(-1, (4, 8))
    diagonal = sum(forms[a, :, a].square().sum() for a in range(4)) / 4
    assert float(diagonal) == pytest.approx((1 - level) * SHARPNESS**2)
    off = sum(forms[a, :, (a + 1) % 4].square().sum() for a in range(4)) / 4
    assert float(off) == pytest.approx(level * SHARPNESS**2)
    assert float(forms.square().sum()) == pytest.approx(4 * SHARPNESS**2)  # and nothing else


@pytest.mark.parametrize("level", [0.0, 0.5, 1.0])
def test_scores_vary_as_much_at_every_entanglement(level):
    teacher = Teacher(SMALL, 8, level, 0, torch.float64)
    torch.manual_seed(0)
    scores = teacher.scores(torch.randn(400, 16, 32))
    others = scores[..., ~torch.eye(16, dtype=torch.bool)]
    assert float(others.var()) == pytest.approx(SHARPNESS**2, rel=0.05)


def exact(level, metric, width=4):
    """A student with the teacher's own weights, and the teacher."""
    h, e, d = SMALL.n_heads, 8, SMALL.d_model
    teacher = Teacher(SMALL, width, level, 1, torch.float64)
    student = Student(SMALL, metric)
    forms = teacher.forms * e**0.5  # attention divides by √e
    with torch.no_grad():
        for p in student.parameters():
            p.zero_()
        attention = student.attention
        if metric is None:
            q, k, v = attention.in_proj_weight.chunk(3)
            q.copy_(torch.eye(d))
            k.copy_(forms.flatten(0, 1))
        else:
            attention.metric.constant.copy_(forms.flatten(0, 1).view_as(attention.metric.constant))
            v = attention.value_proj.weight
        for a in range(h):
            v[a * e] = teacher.reads[a]
            student.head.weight[a, a * e] = 1
        attention.out_proj.weight.copy_(torch.eye(d))
    return student, teacher


@pytest.mark.parametrize("level", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("metric", [None, MetricConfig(generator="static", aggregation="bilinear")])
def test_mha_and_bilinear_can_be_exact_at_every_entanglement(level, metric):
    student, teacher = exact(level, metric)
    x = torch.randn(3, 9, SMALL.d_model)
    torch.testing.assert_close(student(x), teacher.answer(x), rtol=1e-12, atol=1e-12)


def test_rowsum_can_be_exact_only_where_heads_are_apart():
    x = torch.randn(3, 9, SMALL.d_model)
    static = MetricConfig(generator="static")
    student, teacher = exact(0.0, static)
    torch.testing.assert_close(student(x), teacher.answer(x), rtol=1e-12, atol=1e-12)
    student, teacher = exact(1.0, static)
    assert (student(x) - teacher.answer(x)).abs().max() > 0.1
    # Whatever R is: a head does not see the channels that its answer depends on.
    far = x.clone()
    far[..., 8:16] = torch.randn(3, 9, 8)
    with torch.no_grad():
        student.attention.metric.constant.normal_()
        before, after = (
            student.attention(y, y, y, average_attn_weights=False)[1][:, 0] for y in (x, far)
        )
    torch.testing.assert_close(before, after)
    assert (teacher.scores(x)[:, 0] - teacher.scores(far)[:, 0]).abs().max() > 0.1


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_a_cell_is_measured_and_comes_out_again(kind):
    torch.set_default_dtype(torch.float32)
    first, again = (finished(measure(kind, TINY, 2, 1.0)) for _ in range(2))
    np.testing.assert_array_equal(first.values, again.values)
    assert first.values.shape == (5, 2) and first.best.shape == (2,)
    if kind == "regression":
        assert first.best == pytest.approx([NOISE, NOISE]) and (first.values > NOISE).all()
    else:
        assert (first.values < first.best).all() and (first.values > 0.2).all()


def test_training_goes_to_the_bayes_value_where_it_can():
    torch.set_default_dtype(torch.float32)
    size = dataclasses.replace(TINY, seeds=1, steps=300, batch=32, held_out=128, lr=3e-2)
    found = finished(measure("regression", size, 2, 1.0))
    mha, rowsum, _, bilinear, _ = found.values[:, 0]
    assert mha < 2 * NOISE and bilinear < 2 * NOISE < rowsum


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_heads": 2}, "2 heads of d_model=12"),
        ({"d_model": 13}, "3 heads of d_model=13"),
        ({"widths": (2, 5)}, "entangled width 5 does not fit a head of 4 channels"),
        ({"levels": (0.5, 1.5)}, "entanglement 1.5 is not between 0 and 1"),
        ({"seeds": 0}, "0 seeds"),
    ],
)
def test_sizes_that_make_no_task_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(TINY, **change)
