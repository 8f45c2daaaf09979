"""Small elements that Streamlit lacks: a canvas for figures, a gallery, pasting, a camera.

All are a few lines of our own script in the page; no package, no host outside. Data reaches them
as JSON and is put into the page as text or as an image source, never as HTML.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

_GALLERY_CSS = """
.grid { display: grid; grid-template-columns: repeat(4, 1fr); gap: 6px; }
button { all: unset; cursor: pointer; border-radius: 6px; padding: 3px; position: relative;
  border: 1px solid color-mix(in srgb, var(--st-text-color) 18%, transparent); }
button img { width: 100%; aspect-ratio: 1; display: block; border-radius: 3px;
  image-rendering: auto; }
button:hover { border-color: var(--st-primary-color); }
button:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 2px; }
button[aria-checked="true"] { border-color: var(--st-primary-color);
  box-shadow: 0 0 0 1px var(--st-primary-color); }
button[aria-checked="true"]::after { content: "✓"; position: absolute; right: 1px; bottom: 1px;
  font: 600 11px/15px var(--st-font); width: 15px; text-align: center; border-radius: 4px;
  color: var(--st-background-color); background: var(--st-primary-color); }
"""

_GALLERY_JS = """
export default function ({ parentElement, data: sent, setTriggerValue }) {
  const data = JSON.parse(new TextDecoder().decode(sent));
  const grid = parentElement.querySelector(".grid");
  const shown = JSON.stringify(data.items.map((item) => item.name));
  if (grid.dataset.shown !== shown) {
    grid.replaceChildren(...data.items.map((item) => {
      const button = document.createElement("button");
      const image = document.createElement("img");
      image.src = item.source;
      image.alt = "";
      button.type = "button";
      button.title = item.label;
      button.dataset.name = item.name;
      button.setAttribute("role", "radio");
      button.setAttribute("aria-label", item.label);
      button.append(image);
      return button;
    }));
    grid.dataset.shown = shown;
  }
  const buttons = [...grid.children];
  const mark = (name) => buttons.forEach((button) => {
    const chosen = button.dataset.name === name;
    button.setAttribute("aria-checked", chosen);
    button.tabIndex = chosen ? 0 : -1;
  });
  mark(data.chosen);
  if (!buttons.some((button) => button.tabIndex === 0) && buttons[0]) buttons[0].tabIndex = 0;
  const choose = (button) => {
    mark(button.dataset.name);
    setTriggerValue("chosen", button.dataset.name);
  };
  buttons.forEach((button, k) => {
    button.onclick = () => choose(button);
    button.onkeydown = (event) => {
      const step = { ArrowRight: 1, ArrowDown: 4, ArrowLeft: -1, ArrowUp: -4 }[event.key];
      if (step) {
        const next = buttons[k + step];
        if (next) { next.focus(); choose(next); }
        event.preventDefault();
      } else if (event.key === " " || event.key === "Enter") {
        choose(button);
        event.preventDefault();
      }
    };
  });
}
"""

_PASTE_CSS = """
button { font: inherit; font-size: 14px; width: 100%; min-height: 38px; cursor: pointer;
  border-radius: 6px; color: var(--st-text-color); background: transparent;
  border: 1px solid color-mix(in srgb, var(--st-text-color) 22%, transparent); }
button:hover { border-color: var(--st-primary-color); color: var(--st-primary-color); }
button:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 2px; }
p { font: 13px/1.35 var(--st-font); margin: 4px 0 0; color: var(--st-text-color); }
p:empty { display: none; }
"""

_PASTE_JS = """
export default function ({ parentElement, data: sent, setTriggerValue }) {
  const data = JSON.parse(new TextDecoder().decode(sent));
  const button = parentElement.querySelector("button");
  const words = parentElement.querySelector("p");
  const send = (blob) => {
    if (blob.size > data.most) {
      words.textContent = `That picture has more than ${data.most / 1e6} MB.`;
      return;
    }
    const reader = new FileReader();
    reader.onload = () => {
      words.textContent = "";
      setTriggerValue("picture", reader.result.split(",")[1] ?? "");
    };
    reader.readAsDataURL(blob);
  };
  const onPaste = (event) => {
    const item = [...(event.clipboardData?.items ?? [])].find(
      (item) => item.kind === "file" && item.type.startsWith("image/"));
    if (!item) return;
    event.preventDefault();
    send(item.getAsFile());
  };
  document.addEventListener("paste", onPaste);
  button.onclick = async () => {
    try {
      for (const item of await navigator.clipboard.read()) {
        const type = item.types.find((type) => type.startsWith("image/"));
        if (type) return send(await item.getType(type));
      }
      words.textContent = "There is no picture on the clipboard.";
    } catch {
      words.textContent = "The browser keeps the clipboard closed; press Ctrl+V or ⌘V instead.";
    }
  };
  return () => document.removeEventListener("paste", onPaste);
}
"""

_CAMERA_JS = """
export default function ({ data: sent, setTriggerValue }) {
  const { chart } = JSON.parse(new TextDecoder().decode(sent));
  const watch = () => {
    const plot = document.querySelector(`.st-key-${chart} .js-plotly-plot`);
    if (!plot?.on || plot.dataset.watched) return;  // each new figure is a new element
    plot.dataset.watched = "true";
    plot.on("plotly_relayout", (change) => {
      const name = Object.keys(change).find((name) => /^scene\\d*\\.camera$/.test(name));
      if (!name) return;
      const { x, y, z } = change[name].eye;
      const degrees = (angle) => Math.round((angle * 180) / Math.PI);
      const angles = [Math.atan2(y, x), Math.atan2(z, Math.hypot(x, y))];
      setTriggerValue("turned", angles.map(degrees));
    });
  };
  watch();
  const observer = new MutationObserver(watch);
  observer.observe(document.body, { childList: true, subtree: true });
  return () => observer.disconnect();
}
"""

MAX_PASTED = 20_000_000

_FIGURE_HTML = """
<div class="figure">
  <canvas tabindex="0" role="img"></canvas>
  <div class="frames" hidden>
    <button type="button" aria-label="Play">▶</button>
    <input type="range" min="0" step="1" />
    <output></output>
  </div>
  <div class="tip" hidden></div>
  <div class="reader" aria-live="polite"></div>
</div>
"""
_FIGURE_CSS = """
.figure { position: relative; width: 100%; }
canvas { display: block; touch-action: pan-y; }
canvas:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 2px; }
.tip { position: absolute; pointer-events: none; z-index: 5; padding: 4px 8px; max-width: 18rem;
  font: 13px/1.35 var(--st-font); color: var(--st-text-color); border-radius: 4px;
  background: var(--st-background-color); box-shadow: 0 1px 6px rgb(0 0 0 / 30%); }
.frames { display: flex; align-items: center; gap: 10px; margin-top: 6px;
  font: 14px var(--st-font); color: var(--st-text-color); }
.frames[hidden], .tip[hidden] { display: none; }
.frames input { flex: 1; accent-color: var(--st-primary-color); }
.frames button { font: inherit; width: 34px; height: 30px; cursor: pointer; border-radius: 6px;
  color: inherit; background: transparent;
  border: 1px solid color-mix(in srgb, var(--st-text-color) 22%, transparent); }
.reader { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
"""

_figure = st.components.v2.component(
    "damcha_figure",
    html=_FIGURE_HTML,
    css=_FIGURE_CSS,
    js=(Path(__file__).parent / "elements" / "figure.js").read_text(),
)
_gallery = st.components.v2.component(
    "damcha_gallery",
    html='<div class="grid" role="radiogroup" aria-label="Samples"></div>',
    css=_GALLERY_CSS,
    js=_GALLERY_JS,
)
_paste = st.components.v2.component(
    "damcha_paste",
    html='<button type="button">Paste a picture</button><p role="status"></p>',
    css=_PASTE_CSS,
    js=_PASTE_JS,
)
_camera = st.components.v2.component("damcha_camera", js=_CAMERA_JS)


def figure(content: bytes, key: str, on_click: Callable[[], None] | None = None) -> None:
    """Draw what :mod:`damcha.figures.canvas` wrote; a click leaves [panel, row, column]."""
    _figure(data=content, key=key, on_cell_change=on_click or _nothing)


def gallery(
    items: Sequence[tuple[str, str, str]], chosen: str, key: str, on_choose: Callable[[], None]
) -> None:
    """Show thumbnails (name, label, data URL); a click leaves the name under ``chosen``.

    `on_choose` runs before the page does, so that the page is drawn once, with the new choice.
    """
    data: dict[str, Any] = {
        "items": [{"name": n, "label": label, "source": source} for n, label, source in items],
        "chosen": chosen,
    }
    _gallery(data=_bytes(data), key=key, on_chosen_change=on_choose)


def paste(key: str) -> bytes | None:
    """Show a paste button, listen for Ctrl+V; return the file of a picture just pasted."""
    sent = _paste(data=_bytes({"most": MAX_PASTED}), key=key, on_picture_change=_nothing).picture
    if not isinstance(sent, str) or len(sent) > 2 * MAX_PASTED:
        return None
    try:
        return base64.b64decode(sent, validate=True)
    except binascii.Error:
        return None


def camera(chart: str, key: str, on_turn: Callable[[], None]) -> None:
    """Watch the 3D scenes of a plotly chart; turning one leaves [azimuth, elevation] in degrees.

    plotly forgets the camera when its data change, so the page keeps it.
    """
    _camera(data=_bytes({"chart": chart}), key=key, on_turned_change=on_turn)


def _bytes(data: dict[str, Any]) -> bytes:
    """JSON as bytes: of a dict, Streamlit would ask pandas whether it is a table, and import it."""
    return json.dumps(data).encode()


def _nothing() -> None:
    """Only so that Streamlit knows the trigger's name."""
