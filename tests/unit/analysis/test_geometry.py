import dataclasses
import math

import numpy as np
import pytest

from damcha.analysis.geometry import DEFINITIONS, Geometry, blocks, describe, head_metrics
from damcha.errors import InputError


def test_every_number_has_a_one_line_definition():
    assert list(DEFINITIONS) == [field.name for field in dataclasses.fields(Geometry)]
    assert all("\n" not in line and line.endswith(".") for line in DEFINITIONS.values())


def test_blocks_are_cut_row_by_row():
    metric = np.arange(36.0).reshape(6, 6)
    cut = blocks(metric, 3)
    assert cut.shape == (3, 3, 2, 2)
    for a in range(3):
        for b in range(3):
            np.testing.assert_array_equal(cut[a, b], metric[2 * a : 2 * a + 2, 2 * b : 2 * b + 2])


def test_head_metrics_are_the_row_sums_of_blocks_for_every_position():
    metrics = np.random.default_rng(0).normal(size=(5, 6, 6))
    summed = head_metrics(metrics, 3)
    assert summed.shape == (5, 3, 2, 2)
    for a in range(3):
        expected = sum(metrics[:, 2 * a : 2 * a + 2, 2 * b : 2 * b + 2] for b in range(3))
        np.testing.assert_allclose(summed[:, a], expected)


def test_a_small_metric_by_hand():
    # Two heads of width 1: coupling is |M_ab|, R_a the row sum.
    metric = np.array([[3.0, 1.0], [-1.0, 2.0]])
    geometry = describe(metric, 2)
    np.testing.assert_allclose(geometry.block_coupling, [[3, 1], [1, 2]])
    assert geometry.norm == pytest.approx(math.sqrt(15))
    assert geometry.diagonal_share == pytest.approx(13 / 15)
    assert geometry.off_diagonal_share == pytest.approx(2 / 15)
    assert geometry.symmetric_share == pytest.approx(13 / 15)
    assert geometry.antisymmetric_share == pytest.approx(2 / 15)
    np.testing.assert_allclose(
        geometry.eigenvalues, [2.5 + 1j * math.sqrt(3) / 2, 2.5 - 1j * math.sqrt(3) / 2]
    )
    np.testing.assert_allclose(geometry.head_eigenvalues, [[4], [1]])
    assert geometry.signature == (2, 0, 0)
    assert geometry.head_signatures == ((1, 0, 0), (1, 0, 0))
    # σ² are the eigenvalues of M Mᵀ = [[10, -1], [-1, 5]].
    sigma = np.sqrt([7.5 + math.sqrt(29) / 2, 7.5 - math.sqrt(29) / 2])
    np.testing.assert_allclose(geometry.singular_values, sigma)
    assert geometry.stable_rank == pytest.approx(15 / sigma[0] ** 2)
    assert geometry.condition_number == pytest.approx(sigma[0] / sigma[1])
    share = sigma / sigma.sum()
    assert geometry.effective_rank == pytest.approx(np.prod(share**-share))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
def test_the_identity_is_a_true_metric_in_every_dtype(dtype):
    geometry = describe(np.eye(8, dtype=dtype), 4)
    assert geometry.signature == (8, 0, 0)
    assert geometry.symmetric_share == geometry.diagonal_share == 1
    assert geometry.antisymmetric_share == geometry.off_diagonal_share == 0
    assert geometry.effective_rank == pytest.approx(8)
    assert geometry.stable_rank == pytest.approx(8)
    assert geometry.condition_number == 1
    assert geometry.eigenvalues.dtype == np.complex128


def test_a_constant_metric_has_rank_one():
    geometry = describe(np.full((6, 6), -2.0, dtype=np.float32), 2)
    assert geometry.signature == (0, 5, 1)
    assert geometry.effective_rank == pytest.approx(1, abs=1e-6)
    assert geometry.stable_rank == pytest.approx(1)
    assert geometry.condition_number == math.inf
    assert not geometry.eigenvalues.imag.any()


def test_the_zero_metric_has_no_shares():
    geometry = describe(np.zeros((4, 4)), 2)
    assert geometry.norm == geometry.effective_rank == geometry.stable_rank == 0
    assert geometry.signature == (0, 4, 0)
    for name in ("diagonal_share", "off_diagonal_share", "symmetric_share", "condition_number"):
        assert math.isnan(getattr(geometry, name))


def test_one_by_one():
    geometry = describe(np.array([[-3.0]]), 1)
    assert (geometry.norm, geometry.condition_number, geometry.signature) == (3, 1, (0, 0, 1))


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_extreme_scales_neither_overflow_nor_vanish(size):
    metric = np.random.default_rng(0).normal(size=(4, 4))
    plain, scaled = describe(metric, 2), describe(metric * size, 2)
    assert scaled.norm == pytest.approx(plain.norm * size)
    assert scaled.diagonal_share == pytest.approx(plain.diagonal_share)
    assert scaled.signature == plain.signature
    np.testing.assert_allclose(scaled.block_coupling, plain.block_coupling * size)


def test_rounding_noise_of_the_dtype_does_not_count_as_a_direction():
    factor = np.random.default_rng(0).normal(size=(16, 3))
    geometry = describe((factor @ factor.T).astype(np.float32), 4)
    assert geometry.signature == (3, 13, 0)
    assert geometry.condition_number == math.inf


def test_a_rotation_by_a_right_angle_is_all_antisymmetric():
    geometry = describe(np.array([[0.0, -1.0], [1.0, 0.0]]), 1)
    assert geometry.antisymmetric_share == 1
    assert geometry.signature == (0, 2, 0)
    np.testing.assert_allclose(geometry.eigenvalues, [1j, -1j])


def test_arrays_are_read_only_and_the_input_is_untouched():
    metric = np.random.default_rng(0).normal(size=(4, 4))
    before = metric.copy()
    geometry = describe(metric, 2)
    np.testing.assert_array_equal(metric, before)
    assert metric.flags.writeable
    for name in ("block_coupling", "eigenvalues", "head_eigenvalues", "singular_values"):
        assert not getattr(geometry, name).flags.writeable


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_named_instead_of_reaching_a_solver(value):
    metric = np.eye(4)
    metric[1, 2] = value
    with pytest.raises(InputError, match="1 of the 16 values of the metric are NaN or infinite"):
        describe(metric, 2)


@pytest.mark.parametrize("shape", [(3, 4), (0, 0)])
def test_a_metric_that_is_not_square_is_refused(shape):
    with pytest.raises(InputError, match=r"a metric is a square matrix \[d, d\], not \["):
        blocks(np.zeros(shape), 1)


@pytest.mark.parametrize("metric", [np.zeros((2, 4, 4)), np.eye(4) * 1j, np.eye(4).astype(str)])
def test_what_is_no_real_matrix_is_refused(metric):
    with pytest.raises(InputError, match=r"a metric is a real matrix \[d, d\], not \["):
        describe(metric, 2)


def test_an_empty_metric_is_refused():
    with pytest.raises(InputError, match="a metric is a square matrix"):
        describe(np.zeros((0, 0)), 1)


@pytest.mark.parametrize("n_heads", [0, -2, 3, 5])
def test_heads_that_do_not_divide_the_width_are_refused(n_heads):
    with pytest.raises(InputError, match=rf"width 4 cannot be cut into {n_heads} heads"):
        describe(np.eye(4), n_heads)
