"""Theorems that the geometry of a metric must obey, on random metrics.

Entries are multiples of 1/8, so that float64 keeps them exactly; bounds carry a rounding margin.
"""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from damcha.analysis.geometry import describe, head_metrics

N_HEADS = 3
D_HEAD = 2
D_MODEL = N_HEADS * D_HEAD
MARGIN = 1e-9


def matrices(side=D_MODEL):
    return arrays(np.float64, (side, side), elements=st.integers(-64, 64).map(lambda n: n / 8))


def metrics():
    return matrices().filter(np.any)


def orthogonal(side, seed):
    """A random orthogonal matrix (QR of a Gaussian one)."""
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(side, side)))[0]


seeds = st.integers(0, 2**32 - 1)
fixed = settings(max_examples=60, deadline=None, derandomize=True)


def same_spectrum(left, right, scale):
    """Compare eigenvalues through the power sums Σλᵏ = tr Mᵏ, which need no matching.

    Single eigenvalues of a defective matrix move by ε^(1/d) under rounding; their power sums
    do not.
    """
    for power in range(1, D_MODEL + 1):
        assert abs((left**power).sum() - (right**power).sum()) <= 1e-7 * max(scale, 1.0) ** power


@fixed
@given(metrics())
def test_shares_sum_to_one(metric):
    # Blocks partition the entries; and ⟨S, A⟩ = 0 for symmetric S and antisymmetric A, so that
    # ‖S + A‖² = ‖S‖² + ‖A‖² (Pythagoras in the Frobenius inner product).
    geometry = describe(metric, N_HEADS)
    assert geometry.diagonal_share + geometry.off_diagonal_share == pytest.approx(1)
    assert geometry.symmetric_share + geometry.antisymmetric_share == pytest.approx(1)
    assert (geometry.block_coupling**2).sum() == pytest.approx(geometry.norm**2)


@fixed
@given(metrics(), seeds)
def test_orthogonal_conjugation_changes_no_invariant(metric, seed):
    # Q M Qᵀ is a similarity and a unitary equivalence: eigenvalues and singular values stay
    # (Horn & Johnson, Matrix Analysis, 1.3.3 and 2.6), and (Q M Qᵀ)ᵀ = Q Mᵀ Qᵀ keeps the parts.
    turn = orthogonal(D_MODEL, seed)
    plain, turned = describe(metric, N_HEADS), describe(turn @ metric @ turn.T, N_HEADS)
    assert turned.norm == pytest.approx(plain.norm)
    assert turned.symmetric_share == pytest.approx(plain.symmetric_share, abs=MARGIN)
    np.testing.assert_allclose(
        turned.singular_values, plain.singular_values, atol=MARGIN * plain.norm
    )
    assert turned.stable_rank == pytest.approx(plain.stable_rank)
    # x ln x has an infinite slope at 0: rounding of a zero singular value shows as ε ln ε.
    assert turned.effective_rank == pytest.approx(plain.effective_rank, rel=1e-6)
    same_spectrum(turned.eigenvalues, plain.eigenvalues, plain.norm)


@fixed
@given(metrics(), seeds)
def test_a_turn_within_each_head_keeps_the_coupling(metric, seed):
    # ‖Q_a M_ab Q_bᵀ‖ = ‖M_ab‖: the Frobenius norm is unitarily invariant.
    turn = np.zeros((D_MODEL, D_MODEL))
    for a in range(N_HEADS):
        here = slice(a * D_HEAD, (a + 1) * D_HEAD)
        turn[here, here] = orthogonal(D_HEAD, seed + a)
    plain, turned = describe(metric, N_HEADS), describe(turn @ metric @ turn.T, N_HEADS)
    np.testing.assert_allclose(
        turned.block_coupling, plain.block_coupling, atol=MARGIN * plain.norm
    )
    assert turned.diagonal_share == pytest.approx(plain.diagonal_share, abs=MARGIN)


@fixed
@given(metrics(), st.permutations(range(N_HEADS)))
def test_permuting_heads_permutes_the_coupling(metric, order):
    # R_a = Σ_b M_ab: the sum does not care for the order of b, so that R moves with a alone.
    channels = np.concatenate([np.arange(D_HEAD) + D_HEAD * a for a in order])
    plain, moved = describe(metric, N_HEADS), describe(metric[np.ix_(channels, channels)], N_HEADS)
    np.testing.assert_allclose(
        moved.block_coupling, plain.block_coupling[np.ix_(order, order)], atol=MARGIN
    )
    np.testing.assert_allclose(
        head_metrics(metric[np.ix_(channels, channels)], N_HEADS),
        head_metrics(metric, N_HEADS)[order],
    )
    assert moved.head_signatures == tuple(plain.head_signatures[a] for a in order)


@fixed
@given(metrics(), seeds)
def test_inertia_is_kept_by_congruence(metric, seed):
    # Sylvester's law of inertia: S → Aᵀ S A with A invertible keeps the signature.
    symmetric = np.linalg.eigvalsh((metric + metric.T) / 2)
    largest = np.abs(symmetric).max()
    # Rounding decides the sign of an eigenvalue within it of zero: keep those apart.
    assume(not np.any(np.abs(symmetric) < 1e-6 * largest))
    stretch = orthogonal(D_MODEL, seed) @ np.diag(np.linspace(0.5, 2, D_MODEL))
    assert (
        describe(stretch.T @ metric @ stretch, N_HEADS).signature
        == describe(metric, N_HEADS).signature
    )


@fixed
@given(metrics())
def test_a_metric_built_as_a_mahalanobis_form_has_no_negative_direction(factor):
    # xᵀ A Aᵀ x = ‖Aᵀx‖² ≥ 0.
    geometry = describe(factor @ factor.T, N_HEADS)
    assert geometry.signature[2] == 0
    assert geometry.symmetric_share == pytest.approx(1)
    assert not geometry.eigenvalues.imag.any()


@fixed
@given(metrics())
def test_ranks_are_ordered(metric):
    # 1 ≤ stable rank ≤ effective rank ≤ rank ≤ d. With p ∝ σ and its escort q ∝ σ²:
    # ln(stable) = H_∞(q) ≤ H_1(q) ≤ H_1(p) ≤ H_0(p) = ln(rank); Rényi entropies fall with their
    # order, and the entropy of an escort falls with its exponent (Beck & Schlögl 1993, ch. 9).
    geometry = describe(metric, N_HEADS)
    rank = np.linalg.matrix_rank(metric)
    assert 1 - MARGIN <= geometry.stable_rank
    assert geometry.stable_rank <= geometry.effective_rank + MARGIN
    # A zero singular value comes out as about ε and adds −ε ln ε to the entropy.
    assert geometry.effective_rank <= rank * (1 + 1e-9) <= D_MODEL * (1 + 1e-9)
    assert geometry.condition_number >= 1


@fixed
@given(metrics())
def test_eigenvalues_obey_the_classical_bounds(metric):
    geometry = describe(metric, N_HEADS)
    sizes, margin = np.abs(geometry.eigenvalues), MARGIN * geometry.norm
    # Schur's inequality: Σ|λ|² ≤ ‖M‖². Weyl (1949): the largest |λ| is at most σ_1.
    assert (sizes**2).sum() <= geometry.norm**2 * (1 + MARGIN)
    assert sizes[0] <= geometry.singular_values[0] + margin
    # Bendixson (1902): real parts lie between the extreme eigenvalues of the symmetric part.
    symmetric = np.linalg.eigvalsh((metric + metric.T) / 2)
    assert np.all(geometry.eigenvalues.real >= symmetric[0] - margin)
    assert np.all(geometry.eigenvalues.real <= symmetric[-1] + margin)
    # Their sum is the trace, their product's size the product of singular values, |det M|.
    assert geometry.eigenvalues.sum() == pytest.approx(np.trace(metric), abs=margin)
    assert np.prod(sizes) == pytest.approx(
        np.prod(geometry.singular_values), abs=1e-6 * geometry.norm**D_MODEL
    )


@fixed
@given(metrics(), st.sampled_from([0.125, 0.5, 3.0, 1e6]))
def test_scaling_changes_the_norm_only(metric, factor):
    # Homogeneity: every share, rank and condition number is of degree 0, the norm of degree 1.
    plain, scaled = describe(metric, N_HEADS), describe(metric * factor, N_HEADS)
    assert scaled.norm == pytest.approx(factor * plain.norm)
    assert scaled.diagonal_share == pytest.approx(plain.diagonal_share)
    assert scaled.symmetric_share == pytest.approx(plain.symmetric_share)
    assert scaled.effective_rank == pytest.approx(plain.effective_rank, rel=1e-6)
    assert scaled.stable_rank == pytest.approx(plain.stable_rank)


@fixed
@given(metrics())
def test_transposing_swaps_query_and_key_heads(metric):
    # M and Mᵀ have equal characteristic polynomials and singular values.
    plain, turned = describe(metric, N_HEADS), describe(metric.T, N_HEADS)
    np.testing.assert_allclose(turned.block_coupling, plain.block_coupling.T)
    assert turned.signature == plain.signature
    np.testing.assert_allclose(
        turned.singular_values, plain.singular_values, atol=MARGIN * plain.norm
    )
    same_spectrum(turned.eigenvalues, plain.eigenvalues, plain.norm)
