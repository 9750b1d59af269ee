// A stacked chart of rates as SVG, with the same figures as a table for those who do not see it.

const NS = "http://www.w3.org/2000/svg";
const HEIGHT = 210, TOP = 18, BOTTOM = 22, LEFT = 68;
const LABEL_GAP = 15;
const NARROW = 520;

export function rate(bits) {
  if (bits === null || bits === undefined) return "–";
  if (bits <= 0) return "0";
  for (const [size, unit] of [[1e12, "Tbit/s"], [1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"]]) {
    if (bits >= size * 0.9995) return `${Number((bits / size).toPrecision(3))}\u00a0${unit}`;
  }
  return `${Math.round(bits)}\u00a0bit/s`;
}

export function svg(name, attributes = {}, text = null) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

// One pattern a class, beside its colour: for paper, and for eyes that see no colours.
const PATTERNS = {
  control: "M0 0L8 8M8 0L0 8", compute: "M-2 2L2 -2M0 8L8 0M6 10L10 6", storage: "M0 4H8", other: "M4 4h.01", total: "M4 0V8",
};

export function patterns() {
  const holder = svg("svg", { width: 0, height: 0, "aria-hidden": "true", class: "patterns" });
  const made = holder.appendChild(svg("defs"));
  for (const [name, path] of Object.entries(PATTERNS)) {
    const pattern = made.appendChild(svg("pattern", {
      id: `pattern-${name}`, width: 8, height: 8, patternUnits: "userSpaceOnUse", class: name,
    }));
    pattern.append(
      svg("rect", { width: 8, height: 8, class: "base" }),
      svg("path", { d: path, class: "mark", "stroke-width": name === "other" ? 3 : 1.4, "stroke-linecap": "round", fill: "none" }),
    );
  }
  return holder;
}

function stepsUpTo(most) {
  const raw = most / 4, size = 10 ** Math.floor(Math.log10(raw));
  const step = size * ([1, 2, 2.5, 5, 10].find((one) => one * size >= raw) ?? 10);
  const found = [];
  for (let at = 0; at <= most * 1.0001; at += step) found.push(at);
  return found;
}

function span(seconds) {
  if (seconds % 60) return `${seconds} s`;
  return seconds % 3600 ? `${seconds / 60} min` : `${seconds / 3600} h`;
}

// Only as far back as something was recorded, in a few fixed widths: a fresh history is not a sliver at the edge.
const WIDTHS = { 1: [120, 600], 60: [120, 1440] };

export function widthOf(capacity, stepS) {
  const first = capacity.findIndex((one) => one !== null), known = first < 0 ? 0 : capacity.length - first;
  return WIDTHS[stepS].find((one) => one >= known) ?? capacity.length;
}

// A chart in its own element: `draw` shows new figures. Of `layers` each has `name`, its
// class or "total", `label` where it is shown otherwise, and `values`, the oldest first.
export class Chart {
  constructor(title) {
    this.title = title;
    this.element = document.createElement("div");
    this.element.className = "chart";
    this.picture = this.element.appendChild(svg("svg", { role: "img", tabindex: 0 }));
    this.readout = this.element.appendChild(document.createElement("p"));
    this.readout.className = "readout";
    this.at = null;
    const move = (event) => {
      const box = this.picture.getBoundingClientRect();
      const part = (event.clientX - box.left - LEFT) / (box.width - LEFT - this.right);
      this.point(Math.round(part * (this.count - 1)));
    };
    this.picture.addEventListener("pointermove", move);
    this.picture.addEventListener("pointerdown", move);
    this.picture.addEventListener("pointerleave", () => this.point(null));
    this.picture.addEventListener("blur", () => this.point(null));
    this.picture.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30 }[event.key];
      if (event.key === "Escape") this.point(null);
      if (by === undefined) return;
      event.preventDefault();
      this.point((this.at ?? this.count - 1) + by);
    });
  }

  draw({ layers, capacity, stepS, endedS }) {
    this.shown = { layers, capacity, stepS, endedS };
    const width = Math.max(this.element.clientWidth, 240), count = capacity.length;
    Object.assign(this, { width, count, right: width < NARROW ? 4 : 86 });
    const sums = capacity.map((_, at) => layers.reduce((sum, one) => sum + (one.values[at] ?? 0), 0));
    const peak = Math.max(0, ...sums), room = Math.max(0, ...capacity.map((one) => one ?? 0));
    // A link that is hardly used would be a flat line: then the chart ends above what is sent, not at the capacity.
    const most = peak > room / 4 ? Math.max(peak, room) * 1.04 : Math.max(peak * 1.25, room / 50, 1e3);
    this.x = (at) => LEFT + (width - LEFT - this.right) * at / (count - 1);
    this.y = (bits) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - Math.min(bits, most) / most);
    const parts = [];
    for (const bits of stepsUpTo(most)) {
      parts.push(svg("line", { x1: LEFT, x2: width - this.right, y1: this.y(bits), y2: this.y(bits), class: "grid" }));
      parts.push(svg("text", { x: LEFT - 6, y: this.y(bits) + 4, "text-anchor": "end" }, rate(bits)));
    }
    parts.push(...this.times(), ...this.areas(layers, count), ...this.capacity(capacity, room, most));
    this.cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    this.picture.replaceChildren(...parts, this.cursor);
    this.picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.picture.setAttribute("height", HEIGHT);
    const now = layers.map((one) => `${one.label ?? one.name} ${rate(one.values[count - 1])}`).join(", ");
    this.picture.setAttribute("aria-label", `${this.title}. Now: ${now}. Arrow keys read earlier figures.`);
    this.point(this.at, false);
  }

  times() {
    const last = this.count - 1, every = this.count / (this.width < NARROW ? 2 : 4), parts = [];
    for (let back = 0; back <= this.count; back += every) {
      const ago = back ? `${span(back * this.shown.stepS)} ago` : "now";
      const anchor = back === 0 ? "end" : back === this.count ? "start" : "middle";
      parts.push(svg("text", { x: this.x(Math.max(0, last - back)), y: HEIGHT - 5, "text-anchor": anchor }, ago));
    }
    return parts;
  }

  areas(layers, count) {
    const parts = [], below = new Array(count).fill(0), labels = [];
    for (const { name, label, values } of layers) {
      const thick = (at) => (values[at] ?? 0) > 0;
      const known = (at) => thick(at) || (values[at] === 0 && (thick(at - 1) || thick(at + 1)));
      const top = below.map((sum, at) => sum + (values[at] ?? 0));
      for (let at = 0; at < count; at += 1) {
        if (!known(at)) continue;
        const begin = at;
        while (at + 1 < count && known(at + 1)) at += 1;
        const upper = [], lower = [];
        for (let k = begin; k <= at; k += 1) {
          upper.push(`${this.x(k).toFixed(1)} ${this.y(top[k]).toFixed(1)}`);
          lower.push(`${this.x(k).toFixed(1)} ${this.y(below[k]).toFixed(1)}`);
        }
        const edge = `M${upper.join("L")}`;
        parts.push(svg("path", { d: `${edge}L${lower.reverse().join("L")}Z`, fill: `url(#pattern-${name})` }));
        parts.push(svg("path", { d: edge, class: `edge ${name}` }));
      }
      const height = this.y(below[count - 1]) - this.y(top[count - 1]);
      if (height >= 3) labels.push({ name: label ?? name, y: (this.y(below[count - 1]) + this.y(top[count - 1])) / 2 + 4 });
      top.forEach((sum, at) => { below[at] = sum; });
    }
    if (this.right > 10) {
      let floor = HEIGHT - BOTTOM + 4;
      for (const one of labels) {
        one.y = Math.min(one.y, floor);
        floor = one.y - LABEL_GAP;
        parts.push(svg("text", { x: this.width - this.right + 8, y: one.y, class: "label" }, one.name));
      }
    }
    return parts;
  }

  capacity(values, room, most) {
    if (!room) return [];
    if (room > most) {
      const text = `link: ${rate(values.at(-1) ?? room)}, above this chart`;
      return [svg("text", { x: this.width - this.right, y: TOP - 6, "text-anchor": "end" }, text)];
    }
    let path = "", pen = false;
    values.forEach((value, at) => {
      if (value !== null) path += `${pen ? "L" : "M"}${this.x(at).toFixed(1)} ${this.y(value).toFixed(1)}`;
      pen = value !== null;
    });
    const now = values.at(-1) ?? room, first = values.findIndex((one) => one !== null), late = first > values.length / 2;
    const at = late ? { x: this.x(values.length - 1), "text-anchor": "end" } : { x: this.x(first) + 4 };
    return [
      svg("path", { d: path, class: "cap" }),
      svg("text", { ...at, y: this.y(now) - 5, class: "capacity" }, `link: ${rate(now)}`),
    ];
  }

  point(at, again = true) {
    this.at = at === null ? null : Math.min(Math.max(at, 0), this.count - 1);
    if (this.at === null) {
      this.cursor?.setAttribute("visibility", "hidden");
      if (again) this.readout.textContent = "";
      return;
    }
    const x = this.x(this.at);
    for (const [key, value] of [["x1", x], ["x2", x], ["visibility", "visible"]]) this.cursor.setAttribute(key, value);
    this.readout.textContent = `${this.when(this.at)}: ${this.line(this.at)}`;
  }

  when(at) {
    const { stepS, endedS } = this.shown, back = this.count - 1 - at;
    if (stepS === 1) return back ? (back < 60 ? `${back} s ago` : `${Math.floor(back / 60)} min ${back % 60} s ago`) : "now";
    const time = new Date(Date.now() - 1000 * (endedS + (back - 1) * stepS + stepS));
    return time.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  }

  line(at) {
    const { layers, capacity } = this.shown;
    if (capacity[at] === null) return "not recorded";
    return [...layers.map((one) => `${one.label ?? one.name} ${rate(one.values[at])}`), `link ${rate(capacity[at])}`].join(", ");
  }
}

// A small chart without axes.
export function spark(values, name) {
  const width = 112, height = 24, most = Math.max(1, ...values.map((one) => one ?? 0));
  const points = values.map((one, at) =>
    `${(width * at / (values.length - 1)).toFixed(1)} ${(height - (height - 2) * (one ?? 0) / most).toFixed(1)}`);
  const made = svg("svg", { class: `spark ${name}`, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  made.append(svg("path", { d: `M0 ${height}L${points.join("L")}L${width} ${height}Z` }));
  return made;
}
