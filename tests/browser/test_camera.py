"""A 3D scene turned by the mouse stays turned: the next epoch and the export have its camera."""

import re

import numpy as np
import pytest

EYE = """() => {
  const scene = document.querySelector(".st-key-surface .js-plotly-plot")?._fullLayout?.scene;
  if (!scene?._scene?.glplot) return null;
  const { x, y, z } = scene._scene.getCamera().eye;
  return [x, y, z];
}"""
SLIDERS = ("epochs_azimuth", "epochs_elevation")


def angles(page):
    """What the address says of the camera."""
    return [float(re.search(rf"{name}=(-?\d+)", page.url)[1]) for name in SLIDERS]


def turn(page, dx, dy):
    """Turn the first scene, and wait until the page has taken that up."""
    box = page.locator(".st-key-surface .js-plotly-plot").bounding_box()
    x, y = box["x"] + 0.25 * box["width"], box["y"] + 0.5 * box["height"]
    before = page.url
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + dx, y + dy, steps=6)
    page.mouse.up()
    page.wait_for_function("(before) => location.href !== before", arg=before)
    page.wait_for_function(f"() => ({EYE})() !== null")
    page.wait_for_timeout(1500)  # the scene fades in


def test_a_turned_scene_stays_turned(visit):
    page = visit()
    if not page.evaluate("() => !!document.createElement('canvas').getContext('webgl')"):
        pytest.skip("this browser has no WebGL, and so draws no 3D scene")
    page.get_by_role("link", name="Epochs").click()
    page.get_by_text("3D", exact=True).click()
    page.wait_for_function(f"() => ({EYE})() !== null")
    page.wait_for_timeout(1500)
    turn(page, 60, 20)
    once = angles(page)
    turn(page, -25, 10)
    assert angles(page) != once
    azimuth, elevation = np.radians(angles(page))
    flat = np.cos(elevation)
    told = [flat * np.cos(azimuth), flat * np.sin(azimuth), np.sin(elevation)]
    page.get_by_role("slider", name="Epoch shown").focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_url(re.compile("epochs_at="))
    page.wait_for_timeout(1500)
    page.wait_for_function(f"() => ({EYE})() !== null")
    eye = np.array(page.evaluate(EYE))
    np.testing.assert_allclose(eye / np.linalg.norm(eye), told, atol=1e-3)
