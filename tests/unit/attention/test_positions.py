import math

import pytest
import torch

from damcha.attention.positions import Positions, rotary_angles, rotate, sinusoidal

EXACT = {"rtol": 0, "atol": 1e-12}
LIKE = torch.zeros(1, dtype=torch.float64)


def test_sinusoidal_is_the_formula():
    table = sinusoidal(5, 6, offset=3, like=LIKE)
    for row, place in enumerate(range(3, 8)):
        for pair in range(3):
            angle = place / 10000 ** (2 * pair / 6)
            assert table[row, 2 * pair].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[row, 2 * pair + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


def test_rotation_is_the_formula(normal):
    x = normal(1, 1, 3, 4)
    turned = rotate(x, rotary_angles(3, 4, offset=2, like=x))
    for place in range(3):
        for i in range(2):
            angle = (place + 2) * 10000 ** (-2 * i / 4)
            pair = complex(x[0, 0, place, i], x[0, 0, place, i + 2])
            pair *= complex(math.cos(angle), math.sin(angle))
            assert turned[0, 0, place, i].item() == pytest.approx(pair.real, abs=1e-12)
            assert turned[0, 0, place, i + 2].item() == pytest.approx(pair.imag, abs=1e-12)


def test_products_of_rotated_vectors_depend_on_the_distance_only(normal):
    q, k = normal(1, 1, 1, 8).expand(1, 1, 6, 8), normal(1, 1, 1, 8, seed=1).expand(1, 1, 6, 8)
    products = []
    for offset in (0, 11):
        angles = rotary_angles(6, 8, offset, like=q)
        products.append(rotate(q, angles) @ rotate(k, angles).mT)
    torch.testing.assert_close(*products, rtol=0, atol=1e-12)
    for shift in range(-5, 6):
        diagonal = products[0][0, 0].diagonal(shift)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), **EXACT)


def test_head_slices_side_by_side_turn_like_heads(normal):
    heads = normal(2, 3, 5, 4)
    angles = rotary_angles(5, 4, like=heads)
    wide = heads.transpose(1, 2).flatten(2)[:, None]  # [B, 1, L, 3·4]
    expected = rotate(heads, angles).transpose(1, 2).flatten(2)[:, None]
    assert torch.equal(rotate(wide, angles), expected)


def test_rotation_keeps_lengths(normal):
    x = normal(1, 2, 7, 6)
    turned = rotate(x, rotary_angles(7, 6, like=x))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), **EXACT)


@pytest.mark.parametrize("kind", ["learned", "sinusoidal", "rotary", "none"])
def test_positions_in_pieces_are_the_positions_at_once(kind, normal):
    positions = Positions(kind, 9, 4).double()
    x = normal(2, 9, 4)
    pieces = [positions(x[:, :4]), positions(x[:, 4:], offset=4)]
    torch.testing.assert_close(torch.cat(pieces, 1), positions(x), **EXACT)
    assert torch.equal(positions(x), x) == (kind in ("rotary", "none"))
    assert bool(list(positions.parameters())) == (kind == "learned")
