import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from damcha.attention.fused import HeadQueries, RowSumLinear

B, P, S, H, E, W = 2, 3, 2, 2, 3, 4


@pytest.fixture
def queries(normal):
    return normal(B, P, S, H * E).requires_grad_(), normal(B, P, H, E, 5, seed=1).requires_grad_()


@pytest.fixture
def linear(normal):
    d = H * E
    shapes = (B, P, W), (d * d, W), (d * d,)
    return tuple(normal(*shape, seed=k).requires_grad_() for k, shape in enumerate(shapes))


def test_head_queries(queries):
    x, form = queries
    wanted = torch.einsum("bpshi,bphij->bpshj", x.unflatten(-1, (H, E)), form)
    torch.testing.assert_close(HeadQueries.apply(x, form), wanted, rtol=0, atol=1e-12)
    assert gradcheck(HeadQueries.apply, queries)
    assert gradgradcheck(HeadQueries.apply, queries)


@pytest.mark.parametrize("scales", [(1.0, 1.0), (2.0, 2.0), (1.0, 0.5)])
def test_row_sum_linear(linear, scales):
    hidden, weight, bias = linear
    on, off = scales
    scale = off + (on - off) * torch.eye(H, dtype=torch.float64)[:, None, :, None]
    metric = torch.nn.functional.linear(hidden, weight, bias).unflatten(-1, (H, E, H, E)) * scale
    wanted = metric.sum(-2).movedim(2, 0)

    def rows(*inputs):
        return RowSumLinear.apply(*inputs, H, on, off)

    torch.testing.assert_close(rows(*linear), wanted, rtol=0, atol=1e-12)
    assert gradcheck(rows, linear)
    assert gradgradcheck(rows, linear)


def test_gradients_of_some_inputs_only(queries, linear):
    (of_x,) = torch.autograd.grad(HeadQueries.apply(*queries).sum(), queries[:1])
    assert of_x.shape == queries[0].shape
    frozen = (linear[0], linear[1].detach(), linear[2].detach())
    rows = RowSumLinear.apply(*frozen, H, 1.0, 1.0)
    (of_hidden,) = torch.autograd.grad(rows.sum(), linear[:1], create_graph=True)
    assert of_hidden.shape == linear[0].shape


def test_functional_transforms(queries, linear):
    many = queries[0].detach().expand(4, *queries[0].shape)
    out = torch.vmap(HeadQueries.apply, (0, None))(many, queries[1].detach())
    torch.testing.assert_close(out[3], HeadQueries.apply(*queries).detach(), rtol=0, atol=0)
    weights = torch.stack([linear[1].detach()] * 2)
    out = torch.vmap(
        lambda w: RowSumLinear.apply(linear[0].detach(), w, linear[2].detach(), H, 1.0, 1.0)
    )(weights)
    assert out.shape == (2, H, B, P, E, E)
    grad = torch.func.grad(lambda x: HeadQueries.apply(x, queries[1].detach()).square().sum())
    (wanted,) = torch.autograd.grad(HeadQueries.apply(*queries).square().sum(), queries[:1])
    torch.testing.assert_close(grad(queries[0].detach()), wanted)


def test_half_precision_keeps_the_types(queries, linear):
    single = [x.detach().float().requires_grad_() for x in linear]
    with torch.autocast("cpu", torch.bfloat16):
        rows = RowSumLinear.apply(*single, H, 1.0, 0.5)
    grads = torch.autograd.grad(rows.float().sum(), single)
    exact = torch.autograd.grad(RowSumLinear.apply(*single, H, 1.0, 0.5).sum(), single)
    for rough, fine in zip(grads, exact, strict=True):
        assert rough.dtype == torch.float32
        torch.testing.assert_close(rough, fine, rtol=0.03, atol=0.1)
    x, form = (x.detach().float().requires_grad_() for x in queries)
    with torch.autocast("cpu", torch.bfloat16):
        out = HeadQueries.apply(x, form)
    assert out.dtype == torch.bfloat16
    assert [g.dtype for g in torch.autograd.grad(out.sum(), (x, form))] == [torch.float32] * 2
