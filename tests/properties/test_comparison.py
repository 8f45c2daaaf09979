"""Theorems that distances and angles of metrics must obey, on random matrices.

Positive definite ones are A Aᵀ/8 + I with entries of A that are multiples of 1/8: far enough from
the edge of the cone that rounding decides nothing.
"""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pyriemann.geometry import distance as pyriemann

from damcha.analysis.comparison import (
    affine_invariant,
    bures_wasserstein,
    definite_part,
    distances,
    measured,
    nearest_semidefinite,
    principal_angles,
)

D = 4
N_HEADS = 2
OF_DEFINITE = ("affine_invariant", "log_euclidean", "bures_wasserstein")

fixed = settings(max_examples=40, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
close = {"rel": 1e-7, "abs": 1e-6}


def matrices(side=D):
    return arrays(np.float64, (side, side), elements=st.integers(-16, 16).map(lambda n: n / 8))


def definite(side=D):
    return matrices(side).map(lambda a: a @ a.T / 8 + np.eye(side))


def orthogonal(seed, side=D):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(side, side)))[0]


@fixed
@given(definite(), definite())
def test_they_are_pyriemanns(p, q):
    found = distances(p, q)
    assert found.affine_invariant == pytest.approx(float(pyriemann.distance_riemann(p, q)), **close)
    assert found.log_euclidean == pytest.approx(float(pyriemann.distance_logeuclid(p, q)), **close)
    # Its formula subtracts traces: half of the digits are gone where P and Q are near.
    wasserstein = float(pyriemann.distance_wasserstein(p, q))
    assert found.bures_wasserstein == pytest.approx(wasserstein, abs=1e-5)


@fixed
@given(definite(), definite(), definite())
def test_axioms_of_a_metric(p, q, r):
    # Frobenius is a norm; the affine-invariant distance is a Riemannian one (Bhatia 2007, ch. 6);
    # the log-Euclidean one is Frobenius after a bijection (Arsigny et al. 2006); Bures-Wasserstein
    # is a quotient of Frobenius by the orthogonal group (Bhatia, Jain & Lim 2019).
    pq, qp, pr, rq = (distances(*pair) for pair in ((p, q), (q, p), (p, r), (r, q)))
    for name in (*OF_DEFINITE, "frobenius"):
        found = getattr(pq, name)
        assert found == pytest.approx(getattr(qp, name), **close), name
        assert found <= getattr(pr, name) + getattr(rq, name) + 1e-8, name
        assert (found > 1e-7) == (not np.allclose(p, q, rtol=0, atol=1e-7)), name
        assert getattr(distances(p, p), name) == 0


@fixed
@given(definite(), definite(), seeds)
def test_orthogonal_conjugation_changes_no_distance(p, q, seed):
    # P → U P Uᵀ is an isometry of all of them (Bhatia, Jain & Lim 2019; Arsigny et al. 2006).
    u = orthogonal(seed)
    before, after = distances(p, q), distances(u @ p @ u.T, u @ q @ u.T)
    for name in (*OF_DEFINITE, "frobenius", "relative", "cosine"):
        assert getattr(after, name) == pytest.approx(getattr(before, name), **close), name


@fixed
@given(definite(), definite(), matrices())
def test_congruence_and_inversion_keep_the_affine_invariant_distance(p, q, w):
    # d(W P Wᵀ, W Q Wᵀ) = d(P, Q) = d(P⁻¹, Q⁻¹) (Pennec, Fillard & Ayache 2006).
    w = w + 3 * np.eye(D)
    assume(np.linalg.cond(w) < 50)
    before = affine_invariant(p, q)
    assert affine_invariant(w @ p @ w.T, w @ q @ w.T) == pytest.approx(before, **close)
    assert affine_invariant(np.linalg.inv(p), np.linalg.inv(q)) == pytest.approx(before, **close)


@fixed
@given(definite(), definite(), st.floats(0.1, 10))
def test_inversion_and_scale_keep_the_log_euclidean_distance(p, q, s):
    # log(sP) = log P + (log s) I, log P⁻¹ = −log P (Arsigny et al. 2006).
    before = distances(p, q).log_euclidean
    assert distances(s * p, s * q).log_euclidean == pytest.approx(before, **close)
    inverse = distances(np.linalg.inv(p), np.linalg.inv(q)).log_euclidean
    assert inverse == pytest.approx(before, **close)


@fixed
@given(definite(), definite())
def test_log_euclidean_is_at_most_affine_invariant(p, q):
    # The exponential metric increasing property: ‖log P − log Q‖ ≤ d(P, Q) (Bhatia 2007, ch. 6);
    # equal where P and Q commute.
    found = distances(p, q)
    assert found.log_euclidean <= found.affine_invariant + 1e-8
    squares = distances(p, p @ p)
    assert squares.log_euclidean == pytest.approx(squares.affine_invariant, **close)


@fixed
@given(definite(), definite())
def test_bures_wasserstein_is_the_formula_of_traces(p, q):
    # Bhatia, Jain & Lim 2019, theorem 1: min ‖P^½ − Q^½ U‖² is this.
    values, vectors = np.linalg.eigh(p)
    root = (vectors * np.sqrt(values)) @ vectors.T
    cross = np.sqrt(np.linalg.eigvalsh(root @ q @ root)).sum()
    squared = np.trace(p) + np.trace(q) - 2 * cross
    assert bures_wasserstein(p, q) ** 2 == pytest.approx(squared, abs=1e-8)


@fixed
@given(matrices(), definite())
def test_no_semidefinite_matrix_is_nearer(metric, other):
    # Higham 1988, theorem 2.1.
    nearest = nearest_semidefinite(metric)
    assert np.linalg.eigvalsh(nearest).min() >= -1e-9
    assert np.linalg.norm(metric - nearest) <= np.linalg.norm(metric - other) + 1e-9
    np.testing.assert_allclose(nearest_semidefinite(other), other, atol=1e-12)


@fixed
@given(matrices())
def test_what_stands_in_is_definite(metric):
    symmetric = (metric + metric.T) / 2
    left = definite_part(metric, "leave_out")
    assert left is None or np.array_equal(left, symmetric)
    for how in ("raise", "absolute"):
        part = definite_part(metric, how)
        if part is not None:
            assert np.linalg.eigvalsh(part).min() > 0
    part = definite_part(metric, "absolute")
    if part is not None:  # |S|² = S²
        np.testing.assert_allclose(part @ part, symmetric @ symmetric, atol=1e-9)


@fixed
@given(matrices(), matrices(), seeds, st.integers(1, D // N_HEADS))
def test_principal_angles(a, b, seed, rank):
    found = principal_angles(a, b, N_HEADS, rank)
    assert found.shape == (N_HEADS, N_HEADS, rank)
    known = found[np.isfinite(found)]
    assert ((known >= 0) & (known <= np.pi / 2 + 1e-12)).all()
    # Symmetric in the two subspaces: U_iᵀ V_j and its transpose have the same singular values
    # (Björck & Golub 1973).
    swapped = principal_angles(b, a, N_HEADS, rank)
    np.testing.assert_allclose(swapped, np.swapaxes(found, 0, 1), atol=1e-6)
    # Turning every head's channels turns both subspaces alike.
    turn = np.kron(np.eye(N_HEADS), orthogonal(seed, D // N_HEADS))
    turned = principal_angles(turn @ a, turn @ b, N_HEADS, rank)
    assume((np.isfinite(turned) == np.isfinite(found)).all())
    np.testing.assert_allclose(turned, found, atol=1e-6)
    overlap = measured(found, "overlap")
    shown = overlap[np.isfinite(overlap)]
    assert ((shown >= 0) & (shown <= 1 + 1e-12)).all()
