// A figure of cells, pictures, tokens and bars on one canvas: app/components.py sends what
// damcha/figures/canvas.py wrote. The element keeps its node, its zoom and its frame when new data come.

const FONT = '"Source Sans", "Source Sans 3", system-ui, -apple-system, "Segoe UI", sans-serif';
const BAR = 12; // pixels across a colour bar

export default function ({ parentElement, data, setTriggerValue }) {
  const root = parentElement.querySelector(".figure");
  const view = (root.view ??= new View(root));
  view.choose = (cell) => setTriggerValue("cell", cell);
  view.show(data);
}

class View {
  constructor(root) {
    this.root = root;
    this.canvas = root.querySelector("canvas");
    this.tip = root.querySelector(".tip");
    this.reader = root.querySelector(".reader");
    this.slider = root.querySelector("input");
    this.player = root.querySelector("button");
    this.label = root.querySelector("output");
    this.zooms = new Map();
    this.frame = 0;
    const canvas = this.canvas;
    canvas.onpointermove = (event) => this.point(event);
    canvas.onpointerleave = () => this.leave();
    canvas.onpointerdown = (event) => this.press(event);
    canvas.onpointerup = (event) => this.release(event);
    canvas.ondblclick = () => this.reset();
    canvas.onkeydown = (event) => this.key(event);
    canvas.onblur = () => this.leave();
    this.slider.oninput = () => this.go(Number(this.slider.value));
    this.player.onclick = () => this.play();
    new ResizeObserver(() => this.head && this.draw()).observe(root);
  }

  // Figures of other pages need plotly: load it while nobody waits. A preloaded link is not enough:
  // running its 4.7 MB (0.9 s) takes longer than fetching them.
  prefetch(address) {
    if (!address) return;
    const url = new URL(address, document.baseURI).href;
    setTimeout(() => requestIdleCallback(() => import(url).catch(() => {})), 3000);
  }

  show(data) {
    const bytes = data instanceof Uint8Array ? data : new Uint8Array(data);
    const size = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
    const text = new TextDecoder().decode(bytes.subarray(4, 4 + size));
    this.body = bytes.slice(4 + size).buffer; // a copy: typed arrays need its alignment
    if (text !== this.text) {
      const head = JSON.parse(text);
      if (this.head && JSON.stringify(shape(head)) !== JSON.stringify(shape(this.head))) {
        this.zooms.clear();
        this.at = null;
      }
      this.head = head;
      this.text = text;
      this.luts = head.scales.map((scale) => lut(scale.stops));
    }
    const n = this.head.frames.length;
    this.frame = Math.min(this.frame, n - 1);
    this.root.querySelector(".frames").hidden = n < 2;
    this.slider.max = n - 1;
    this.slider.value = this.frame;
    this.slider.setAttribute("aria-label", this.head.framesLabel || "Frame");
    this.canvas.setAttribute("aria-label", this.head.caption);
    this.root.style.maxWidth = `${this.head.room}px`;
    this.draw();
    this.prefetch(this.head.later);
  }

  go(frame) {
    this.frame = frame;
    this.slider.value = frame;
    this.draw();
  }

  play() {
    if (this.timer) {
      clearInterval(this.timer);
      this.timer = null;
    } else {
      const n = this.head.frames.length;
      if (this.frame === n - 1) this.go(0);
      this.timer = setInterval(() => {
        if (this.frame < n - 1 && this.root.isConnected) this.go(this.frame + 1);
        else this.play();
      }, Math.max(60, Math.min(700, 6000 / n)));
    }
    this.player.textContent = this.timer ? "⏸" : "▶";
    this.player.setAttribute("aria-label", this.timer ? "Pause" : "Play");
  }

  // The numbers of a panel of cells in the frame that is shown, row by row.
  values(panel) {
    const at = panel.at[Math.min(this.frame, panel.at.length - 1)];
    const n = panel.rows * panel.columns;
    if (!panel.codes) return new Float32Array(this.body, at, n);
    const [low, high] = this.head.scales[panel.scale].limits;
    return Float32Array.from(new Uint8Array(this.body, at, n),
      (code) => (code === 255 ? NaN : low + (code / 254) * (high - low)));
  }

  // ------------------------------------------------------------------------------ drawing

  draw() {
    const { head, canvas } = this;
    const width = Math.min(head.room, this.root.clientWidth || head.room);
    const pen = canvas.getContext("2d");
    const plan = layout(head, width, pen);
    const ratio = window.devicePixelRatio || 1;
    canvas.style.height = `${plan.height}px`;
    canvas.style.width = `${width}px`;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(plan.height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(plan.height * ratio);
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, plan.height);
    this.plan = plan;
    const theme = head.theme;
    const frame = head.frames[this.frame];
    if (head.title) write(pen, head.title, 2, 15, { size: 15, colour: theme.text, room: width });
    head.panels.forEach((panel, k) => this.panel(pen, panel, k, plan.boxes[k], theme));
    head.scales.forEach((scale, k) => this.bar(pen, scale, plan.bars[k], theme, k));
    this.label.value = frame ?? "";
    if (this.at) this.cursor(pen);
    this.drawn = performance.now(); // read by tests
  }

  panel(pen, panel, k, box, theme) {
    const titles = titleLines(pen, panel, box.width);
    titles.forEach((line, i) => write(pen, line, box.x + box.width / 2,
      box.y - 7 - 15 * (titles.length - 1 - i), { colour: theme.muted, align: "center", room: box.width + 12 }));
    if (panel.rowTitle) {
      write(pen, panel.rowTitle, 10, box.y + box.height / 2,
        { colour: theme.text, align: "center", turn: true, room: box.height });
    }
    if (panel.mark === "sentence") {
      const lines = wrap(pen, panel.text, box.width - 24);
      lines.forEach((line, i) => write(pen, line, box.x + box.width / 2,
        box.y + box.height / 2 + (i - (lines.length - 1) / 2) * 19 + 5,
        { size: 14, colour: theme.muted, align: "center" }));
      return;
    }
    if (panel.mark === "bars") return this.bars(pen, panel, box, theme);
    if (panel.mark === "picture") {
      const at = panel.at[Math.min(this.frame, panel.at.length - 1)];
      const pixels = new Uint8ClampedArray(this.body, at, panel.rows * panel.columns * 4);
      blit(pen, pixels, panel, box, [0, 0, panel.columns, panel.rows]);
      return;
    }
    const zoom = this.zooms.get(k) ?? [0, 0, panel.columns, panel.rows];
    const values = this.values(panel);
    const { limits } = this.head.scales[panel.scale];
    blit(pen, coloured(values, limits, this.luts[panel.scale], theme.blank), panel, box, zoom);
    const [x0, y0, x1, y1] = zoom;
    const sx = box.width / (x1 - x0), sy = box.height / (y1 - y0);
    pen.save();
    pen.beginPath();
    pen.rect(box.x, box.y, box.width, box.height);
    pen.clip();
    pen.strokeStyle = theme.rule;
    pen.globalAlpha = 0.55;
    pen.lineWidth = 0.8;
    pen.beginPath();
    for (const at of panel.columnLines) {
      const x = box.x + (at + 0.5 - x0) * sx;
      pen.moveTo(x, box.y);
      pen.lineTo(x, box.y + box.height);
    }
    for (const at of panel.rowLines) {
      const y = box.y + (at + 0.5 - y0) * sy;
      pen.moveTo(box.x, y);
      pen.lineTo(box.x + box.width, y);
    }
    pen.stroke();
    pen.globalAlpha = 1;
    if (panel.texts || (panel.write && sx >= 28)) {
      for (let r = Math.floor(y0); r < y1; r++) for (let c = Math.floor(x0); c < x1; c++) {
        const value = values[r * panel.columns + c];
        const text = panel.texts ? panel.texts[r * panel.columns + c] : number(value, 3);
        if (!text) continue;
        write(pen, text, box.x + (c + 0.5 - x0) * sx, box.y + (r + 0.5 - y0) * sy + 4,
          { size: 12, align: "center", room: sx,
            colour: ink(value, limits, this.luts[panel.scale], theme) });
      }
    }
    pen.restore();
    if (!panel.texts) {
      pen.strokeStyle = theme.muted;
      pen.lineWidth = 1;
      pen.strokeRect(box.x - 0.5, box.y - 0.5, box.width + 1, box.height + 1);
      ticks(pen, panel, box, zoom, theme);
    }
    if (this.band && this.band.panel === k) {
      const { x, y, width, height } = this.band;
      pen.fillStyle = theme.accent + "33";
      pen.strokeStyle = theme.accent;
      pen.fillRect(x, y, width, height);
      pen.strokeRect(x, y, width, height);
    }
  }

  bars(pen, panel, box, theme) {
    const most = Math.max(...panel.values, 1e-30) * 1.15;
    const step = box.height / panel.values.length;
    panel.values.forEach((value, i) => {
      const y = box.y + i * step, length = (value / most) * box.width;
      pen.fillStyle = theme.accent;
      pen.fillRect(box.x, y + step * 0.14, length, step * 0.72);
      write(pen, panel.labels[i], box.x - 6, y + step / 2 + 4,
        { size: 12, align: "right", colour: theme.text });
      write(pen, number(value, 3), box.x + length + 5, y + step / 2 + 4,
        { size: 12, colour: theme.text });
    });
    if (panel.xLabel) {
      write(pen, panel.xLabel, box.x + box.width / 2, box.y + box.height + 18,
        { align: "center", colour: theme.text });
    }
  }

  bar(pen, scale, box, theme, k) {
    const strip = new Uint8ClampedArray(256 * 4);
    for (let i = 0; i < 256; i++) strip.set([...this.luts[k].subarray((255 - i) * 3, (255 - i) * 3 + 3), 255], i * 4);
    blit(pen, strip, { rows: 256, columns: 1 }, { ...box, width: BAR }, [0, 0, 1, 256], true);
    pen.strokeStyle = theme.muted;
    pen.lineWidth = 1;
    pen.strokeRect(box.x, box.y, BAR, box.height);
    for (const at of box.ticks) {
      const y = box.y + box.height * (1 - (at - scale.limits[0]) / (scale.limits[1] - scale.limits[0]));
      write(pen, number(at, 4), box.x + BAR + 5, y + 4, { size: 12, colour: theme.text });
    }
    if (scale.label && box.height > 60) {
      write(pen, scale.label, box.x + box.width - 7, box.y + box.height / 2,
        { size: 12, colour: theme.muted, align: "center", turn: true });
    }
  }

  // ------------------------------------------------------------------------------ pointing

  cellAt(event) {
    const { offsetX: x, offsetY: y } = event;
    for (let k = 0; k < this.head.panels.length; k++) {
      const panel = this.head.panels[k], box = this.plan.boxes[k];
      if (x < box.x || y < box.y || x >= box.x + box.width || y >= box.y + box.height) continue;
      if (panel.mark !== "cells") return null;
      const [x0, y0, x1, y1] = this.zooms.get(k) ?? [0, 0, panel.columns, panel.rows];
      const column = Math.floor(x0 + ((x - box.x) / box.width) * (x1 - x0));
      const row = Math.floor(y0 + ((y - box.y) / box.height) * (y1 - y0));
      return { panel: k, row, column };
    }
    return null;
  }

  point(event) {
    if (this.pressed) {
      const k = this.pressed.panel, box = this.plan.boxes[k];
      const clip = (v, low, high) => Math.min(Math.max(v, low), high);
      const x = clip(event.offsetX, box.x, box.x + box.width);
      const y = clip(event.offsetY, box.y, box.y + box.height);
      this.band = { panel: k, x: Math.min(x, this.pressed.x), y: Math.min(y, this.pressed.y),
        width: Math.abs(x - this.pressed.x), height: Math.abs(y - this.pressed.y) };
      this.draw();
      return;
    }
    const cell = this.cellAt(event);
    const clickable = cell && this.head.panels[cell.panel].clickable;
    this.canvas.style.cursor = clickable ? "pointer" : cell ? "crosshair" : "default";
    this.at = cell;
    this.tell(event.offsetX, event.offsetY);
  }

  press(event) {
    const cell = event.button === 0 ? this.cellAt(event) : null;
    if (!cell || this.head.panels[cell.panel].texts) return;
    this.pressed = { ...cell, x: event.offsetX, y: event.offsetY };
    this.canvas.setPointerCapture(event.pointerId);
  }

  release(event) {
    const { pressed, band } = this;
    this.pressed = this.band = null;
    if (!pressed) return;
    const panel = this.head.panels[pressed.panel], box = this.plan.boxes[pressed.panel];
    if (band && band.width > 8 && band.height > 8) {
      const [x0, y0, x1, y1] = this.zooms.get(pressed.panel) ?? [0, 0, panel.columns, panel.rows];
      const sx = (x1 - x0) / box.width, sy = (y1 - y0) / box.height;
      const zoom = [x0 + (band.x - box.x) * sx, y0 + (band.y - box.y) * sy,
        x0 + (band.x + band.width - box.x) * sx, y0 + (band.y + band.height - box.y) * sy];
      const whole = [Math.floor(zoom[0]), Math.floor(zoom[1]), Math.ceil(zoom[2]), Math.ceil(zoom[3])];
      // Panels of one shape are compared: they zoom together.
      this.head.panels.forEach((other, k) => {
        if (other.mark === "cells" && other.rows === panel.rows && other.columns === panel.columns)
          this.zooms.set(k, whole);
      });
    } else if (panel.clickable) {
      this.choose([pressed.panel, pressed.row, pressed.column]);
    }
    this.draw();
  }

  reset() {
    this.zooms.clear();
    this.draw();
  }

  leave() {
    this.at = null;
    this.tip.hidden = true;
    if (this.head) this.draw();
  }

  key(event) {
    const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    const first = this.head.panels.findIndex((panel) => panel.mark === "cells");
    if (first < 0) return;
    if (event.key === "Escape") return this.reset();
    if (event.key === "Enter" || event.key === " ") {
      if (this.at && this.head.panels[this.at.panel].clickable)
        this.choose([this.at.panel, this.at.row, this.at.column]);
      event.preventDefault();
      return;
    }
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const at = this.at ?? { panel: first, row: 0, column: 0 };
    const panel = this.head.panels[at.panel];
    const [x0, y0, x1, y1] = this.zooms.get(at.panel) ?? [0, 0, panel.columns, panel.rows];
    const row = Math.min(Math.max(at.row + (this.at ? step[0] : 0), y0), y1 - 1);
    const column = Math.min(Math.max(at.column + (this.at ? step[1] : 0), x0), x1 - 1);
    this.at = { panel: at.panel, row, column };
    const box = this.plan.boxes[at.panel];
    this.draw();
    this.tell(box.x + ((column + 0.5 - x0) / (x1 - x0)) * box.width,
      box.y + ((row + 0.5 - y0) / (y1 - y0)) * box.height);
    this.reader.textContent = this.tip.innerText.replaceAll("\n", ", ");
  }

  cursor(pen) {
    if (document.activeElement && this.canvas.matches(":focus-visible")) {
      const { panel: k, row, column } = this.at;
      const panel = this.head.panels[k], box = this.plan.boxes[k];
      const [x0, y0, x1, y1] = this.zooms.get(k) ?? [0, 0, panel.columns, panel.rows];
      const sx = box.width / (x1 - x0), sy = box.height / (y1 - y0);
      pen.strokeStyle = this.head.theme.text;
      pen.lineWidth = 2;
      pen.strokeRect(box.x + (column - x0) * sx - 1, box.y + (row - y0) * sy - 1, sx + 2, sy + 2);
    }
  }

  // Say which cell it is and its value, beside the pointer.
  tell(x, y) {
    const { at, tip } = this;
    tip.hidden = !at;
    if (!at) return;
    const panel = this.head.panels[at.panel];
    const k = at.row * panel.columns + at.column;
    const value = this.values(panel)[k];
    const lines = panel.texts
      ? [panel.hover[k] ?? ""]
      : [panel.rowLabels[at.row], panel.columnLabels[at.column]];
    tip.replaceChildren(...lines.filter(Boolean).map((line) => {
      const div = document.createElement("div");
      div.textContent = line;
      return div;
    }));
    const strong = document.createElement("b");
    strong.textContent = (panel.codes ? "≈ " : "") + (Number.isNaN(value) ? "no value" : number(value, 4));
    tip.append(strong);
    if (panel.clickable) {
      const hint = document.createElement("div");
      hint.textContent = "click to open";
      tip.append(hint);
    }
    if (panel.texts && !panel.hover[k]) tip.hidden = true;
    const right = x > this.plan.width / 2;
    tip.style.left = right ? "" : `${x + 14}px`;
    tip.style.right = right ? `${this.root.clientWidth - x + 14}px` : "";
    tip.style.top = `${Math.max(0, y - 16)}px`;
  }
}

// What decides whether zoom and pointer still make sense.
function shape(head) {
  return head.panels.map((panel) => [panel.mark, panel.rows, panel.columns]);
}

function layout(head, width, pen) {
  const measure = (text, size = 12) => {
    pen.font = `${size}px ${FONT}`;
    return pen.measureText(text).width;
  };
  const { panels } = head;
  const columns = Math.min(head.columns, panels.length);
  const bars = head.scales.map((scale) => {
    const places = nice(...scale.limits, 6);
    const texts = Math.max(...places.map((at) => measure(number(at, 4))));
    return { width: BAR + 5 + texts + (scale.label ? 20 : 0), ticks: places };
  });
  const right = bars.reduce((sum, bar) => sum + bar.width + 12, 4);
  const rowTitle = panels.some((panel) => panel.rowTitle) ? 22 : 0;
  const margins = Array.from({ length: columns }, (_, c) => Math.max(...panels
    .filter((_, k) => k % columns === c)
    .map((panel) => {
      const names = panel.mark === "bars" ? panel.labels : (panel.yTicks ?? []).map(([, text]) => text);
      const text = names.length && !panel.texts ? Math.max(...names.map((name) => measure(name))) + 8 : 1;
      return text + (panel.yLabel ? 20 : 0);
    })));
  margins[0] += rowTitle;
  const gap = 14;
  const room = (width - right - margins.reduce((a, b) => a + b, 0) - gap * (columns - 1)) / columns;
  const boxes = [];
  let top = head.title ? 30 : 6;
  for (let first = 0; first < panels.length; first += columns) {
    const row = panels.slice(first, first + columns);
    const lines = Math.max(...row.map((panel) => titleLines(pen, panel, room).length));
    top += lines ? 7 + 15 * lines : 0;
    const heights = row.map((panel) => tall(panel, room));
    const height = Math.max(...heights);
    let left = 0;
    row.forEach((panel, c) => {
      left += margins[c];
      let own = heights[c], across = room;
      if (panel.aspect && own < tall(panel, room, Infinity)) { // a tall matrix keeps its cells' shape
        across = own / (panel.aspect * panel.rows / panel.columns);
      }
      boxes.push({ x: left, y: top, width: across, height: own });
      left += room + gap;
    });
    const below = Math.max(...row.map((panel) => (panel.xTicks?.length ? 18 : 0) + (panel.xLabel ? 20 : 0)));
    top += height + below + (first + columns < panels.length ? 10 : 4);
  }
  const last = boxes[boxes.length - 1];
  let x = Math.max(...boxes.map((box) => box.x + box.width)) + 12;
  for (const bar of bars) {
    Object.assign(bar, { x, y: boxes[0].y, height: last.y + last.height - boxes[0].y });
    const most = Math.max(2, Math.floor(bar.height / 34));
    if (bar.ticks.length > most) bar.ticks = nice(bar.ticks[0], bar.ticks[bar.ticks.length - 1], most);
    x += bar.width + 12;
  }
  return { width, height: Math.ceil(top), boxes, bars };
}

function tall(panel, width, most = 640) {
  if (panel.mark === "sentence") return 110;
  if (panel.mark === "bars") return 26 * panel.values.length + 4;
  if (panel.texts) return 30 * panel.rows;
  if (!panel.aspect) return Math.min(Math.max(width * 0.62, 180), 360);
  return Math.min(Math.max(width * panel.aspect * panel.rows / panel.columns, 24), most);
}

function ticks(pen, panel, box, [x0, y0, x1, y1], theme) {
  const sx = box.width / (x1 - x0), sy = box.height / (y1 - y0);
  const style = { size: 12, colour: theme.text };
  const across = (panel.xTicks ?? []).map(([at, text]) => [box.x + (at + 0.5 - x0) * sx, text])
    .filter(([x]) => x >= box.x && x <= box.x + box.width);
  pen.font = `12px ${FONT}`;
  const widest = Math.max(1, ...across.map(([, text]) => pen.measureText(text).width));
  thin(across, box.width / (widest + 8)).forEach(([x, text]) =>
    write(pen, text, x, box.y + box.height + 15, { ...style, align: "center" }));
  const down = (panel.yTicks ?? []).map(([at, text]) => [box.y + (at + 0.5 - y0) * sy, text])
    .filter(([y]) => y >= box.y && y <= box.y + box.height);
  thin(down, box.height / 15).forEach(([y, text]) =>
    write(pen, text, box.x - 6, y + 4, { ...style, align: "right" }));
  const xRoom = across.length ? 18 : 0;
  if (panel.xLabel) {
    write(pen, panel.xLabel, box.x + box.width / 2, box.y + box.height + xRoom + 16,
      { colour: theme.text, align: "center" });
  }
  if (panel.yLabel) {
    const widestY = Math.max(0, ...down.map(([, text]) => pen.measureText(text).width));
    write(pen, panel.yLabel, box.x - widestY - 20, box.y + box.height / 2,
      { colour: theme.text, align: "center", turn: true });
  }
}

function thin(list, room) {
  const step = Math.max(1, Math.ceil(list.length / Math.max(1, Math.floor(room))));
  return list.filter((_, k) => k % step === 0);
}

function write(pen, text, x, y, { size = 13, colour, align = "left", turn = false, room } = {}) {
  pen.font = `${size}px ${FONT}`;
  pen.fillStyle = colour;
  pen.textAlign = align;
  if (room && pen.measureText(text).width > room) {
    let n = text.length;
    while (n > 1 && pen.measureText(text.slice(0, n) + "…").width > room) n--;
    text = text.slice(0, n) + "…";
  }
  if (!turn) return pen.fillText(text, x, y);
  pen.save();
  pen.translate(x + size / 3, y);
  pen.rotate(-Math.PI / 2);
  pen.fillText(text, 0, 0);
  pen.restore();
}

function titleLines(pen, panel, room) {
  return panel.title ? wrap(pen, panel.title, room + 10, 13).slice(0, 4) : [];
}

function wrap(pen, text, room, size = 14) {
  pen.font = `${size}px ${FONT}`;
  const lines = [""];
  for (const word of text.split(" ")) {
    const longer = lines[lines.length - 1] ? `${lines[lines.length - 1]} ${word}` : word;
    if (pen.measureText(longer).width > room && lines[lines.length - 1]) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines;
}

// Cells one by one, never blurred, except a colour bar.
function blit(pen, rgba, { rows, columns }, box, [x0, y0, x1, y1], smooth = false) {
  const sheet = document.createElement("canvas");
  sheet.width = columns;
  sheet.height = rows;
  sheet.getContext("2d").putImageData(new ImageData(rgba, columns, rows), 0, 0);
  pen.imageSmoothingEnabled = smooth;
  pen.drawImage(sheet, x0, y0, x1 - x0, y1 - y0, box.x, box.y, box.width, box.height);
}

function coloured(values, [low, high], table, blank) {
  const out = new Uint8ClampedArray(values.length * 4);
  const factor = 255 / (high - low), none = rgb(blank);
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    let r, g, b;
    if (value === value) {
      const k = Math.max(0, Math.min(255, Math.round((value - low) * factor))) * 3;
      r = table[k]; g = table[k + 1]; b = table[k + 2];
    } else [r, g, b] = none;
    out[4 * i] = r; out[4 * i + 1] = g; out[4 * i + 2] = b; out[4 * i + 3] = 255;
  }
  return out;
}

// 256 colours between evenly spaced stops.
function lut(stops) {
  const colours = stops.map(rgb), table = new Uint8ClampedArray(256 * 3);
  for (let i = 0; i < 256; i++) {
    const place = (i / 255) * (colours.length - 1), k = Math.min(Math.floor(place), colours.length - 2);
    for (let c = 0; c < 3; c++)
      table[3 * i + c] = colours[k][c] + (place - k) * (colours[k + 1][c] - colours[k][c]);
  }
  return table;
}

function rgb(hex) {
  return [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
}

function ink(value, [low, high], table, theme) {
  if (Number.isNaN(value)) return theme.text;
  const k = Math.max(0, Math.min(255, Math.round(((value - low) / (high - low)) * 255))) * 3;
  const linear = [0, 1, 2].map((c) => {
    const part = table[k + c] / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  const light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return light < 0.18 ? "#ffffff" : "#1f2328"; // where black and white give equal contrast
}

function nice(low, high, most) {
  const raw = (high - low) / most, base = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * base).find((s) => (high - low) / s <= most);
  const places = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) places.push(k * step);
  return places;
}

// Significant digits, with a real minus; as damcha.figures.style.number.
function number(value, digits) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e-4 && size < 10 ** digits
    ? String(Number(value.toPrecision(digits)))
    : value.toExponential(digits - 1).replace(/\.?0+e/, "e");
  return text.replace(/^-/, "−").replace("e-", "e−");
}
