// Asks the broker once a second and shows what it says. Everything from outside is put in as text, never as markup.

import { Chart, patterns, rate, spark, svg, widthOf } from "./chart.js";

const SIZES = { 1: 600, 60: 1440 };
const EVERY_MS = 1000, TIMEOUT_MS = 4000, STALE_MS = 4000;
const CLASSES = ["control", "compute", "storage", "other"];
const TABLE_ROWS = 12;
const $ = (id) => document.getElementById(id);

const state = { stepS: 1, started: null, histories: {}, charts: new Map(), answeredMs: null, upS: null, movedMs: null, open: new Set() };

function make(name, { text = null, ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  if (text !== null) made.textContent = text;
  made.append(...children.filter((one) => one !== null));
  return made;
}

// --- what has been -------------------------------------------------------------------------------------------------

const keyOf = (one) => JSON.stringify([one.interface, one.direction, one.kind, one.traffic_class, one.name]);

function merge(span) {
  const size = SIZES[span.step_s], head = span.first + span.count - 1;
  const history = state.histories[span.step_s] ??= { head, series: new Map() };
  const shift = Math.min(Math.max(head - history.head, 0), size);
  for (const one of history.series.values()) {
    one.values.splice(0, shift);
    while (one.values.length < size) one.values.push(null);
  }
  history.head = head;
  history.endedS = span.ended_s;
  for (const { bits_per_s: values, ...about } of span.series) {
    const key = keyOf(about);
    if (!history.series.has(key)) history.series.set(key, { ...about, values: new Array(size).fill(null) });
    const kept = history.series.get(key).values;
    values.forEach((value, at) => { kept[size - values.length + at] = value; });
  }
}

function history(wanted) {
  const empty = new Array(SIZES[state.stepS]).fill(null);
  const key = keyOf({ traffic_class: "", name: "", ...wanted });
  return state.histories[state.stepS]?.series.get(key)?.values ?? empty;
}

// --- what is -------------------------------------------------------------------------------------------------------

function showAlarms(alarms) {
  const shown = alarms.map((one) => make("li", { className: "alarm" },
    make("b", { text: `${one.subject}: ` }), one.text, " ", make("code", { text: one.code })));
  const found = shown.length ? make("ul", { className: "alarms" }, ...shown) : make("p", { className: "fine", text: "No alarms." });
  if (found.textContent !== $("alarms").textContent) $("alarms").replaceChildren(found);
}

function swatch(name) {
  const made = svg("svg", { class: `swatch ${name}`, "aria-hidden": "true" });
  made.append(svg("rect", { width: "100%", height: "100%", fill: `url(#pattern-${name})` }));
  return made;
}

function bar(one, capacity) {
  const made = make("span", { className: `bar ${one.name}` });
  made.setAttribute("aria-hidden", "true");
  const part = (bits) => `${Math.min(100, 100 * bits / Math.max(capacity, 1)).toFixed(2)}%`;
  const [sent, guarantee, limit] = ["sent", "guarantee", "limit"].map((name) => made.appendChild(make("i", { className: name })));
  sent.style.width = part(one.throughput_bits_per_s ?? 0);
  guarantee.style.left = part(one.guarantee_bits_per_s);
  limit.style.left = `min(${part(one.usable_bits_per_s ?? one.ceil_bits_per_s)}, calc(100% - 2px))`;
  return made;
}

const LIMITS = { idle: "sends nothing", itself: "by itself", hold: "held back", burst: "yields to a burst", ceiling: "its ceiling",
  link: "the link", class: "its class", processor: "the processors", peer: "the other end" };
const PROMISES = { kept: "kept", missed: "missed", owed: "being repaid", "not-claimed": "not claimed", "not-measured": "" };

function why(limit, ...more) {
  const first = make("span", { text: LIMITS[limit.code] ?? limit.code });
  const lines = [limit.text, ...more].filter((text) => text).map((text) => make("span", { className: "soft", text }));
  const made = make("td", { className: "why" }, first, ...lines);
  made.dataset.title = "limited by";
  return made;
}

function cell(title, text, className = "rate") {
  const made = make("td", { className, text });
  made.dataset.title = title;
  return made;
}

function classTable(link) {
  const rows = link.classes.map((one) => {
    const outbound = one.promise !== undefined;
    const idle = outbound && one.limited_by.code === "idle", promise = outbound && !idle ? one.promise : { code: "", text: "" };
    return make("tr", {},
      make("th", { scope: "row" }, swatch(one.name), one.name),
      cell(outbound ? "sends" : "arrives", rate(one.throughput_bits_per_s)),
      make("td", { className: "meter" }, bar(one, link.capacity_bits_per_s)),
      cell(outbound ? "may send" : "may arrive", rate(one.usable_bits_per_s ?? one.ceil_bits_per_s)),
      cell("guaranteed", rate(one.guarantee_bits_per_s)),
      outbound
        ? make("td", { className: "why promise" }, make("span", { className: promise.code, text: PROMISES[promise.code] ?? promise.code }),
          make("span", { className: "soft", text: promise.text.replace(/^promise (kept|missed): /, "") }))
        : null,
      outbound ? why(one.limited_by, one.lending, one.limited_by.text === one.held ? "" : one.held) : make("td", { className: "why", text: one.reason.text }));
  });
  const titles = link.direction === "egress"
    ? ["Class", "Sends", "", "May send", "Guaranteed", "Promise", "Limited by"]
    : ["Class", "Arrives", "", "May arrive", "Guaranteed", "Why"];
  const heads = titles.map((text) => make("th", { scope: "col", text, className: /ends|rrives|May|Guar/.test(text) ? "rate" : "" }));
  return make("table", { className: "rows" }, make("caption", { text: `Classes of ${link.name} now` }),
    make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
}

function lends(link) {
  const found = link.classes.flatMap((one) => Object.entries(one.lends_bits_per_s ?? {}).map(([to, bits]) =>
    make("li", { text: `${one.name} lends ${rate(bits)} to ${to}` })));
  return found.length ? make("ul", { className: "lends" }, ...found) : null;
}

function figuresTable(chart, key) {
  const made = make("details", { open: state.open.has(key) }, make("summary", { text: "Figures of this chart" }));
  made.addEventListener("toggle", () => {
    state.open[made.open ? "add" : "delete"](key);
    if (made.open) fill();
  });
  function fill() {
    const { layers, capacity } = chart.shown, count = capacity.length, step = count / TABLE_ROWS;
    const rows = [];
    for (let row = 0; row < TABLE_ROWS; row += 1) {
      const at = Math.round(count - 1 - row * step);
      rows.push(make("tr", {}, make("th", { scope: "row", text: chart.when(at) }),
        ...[...layers.map((one) => one.values[at]), capacity[at]].map((bits) => make("td", { className: "rate", text: rate(bits) }))));
    }
    const heads = ["When", ...layers.map((one) => one.label ?? one.name), "link"].map((text, at) =>
      make("th", { scope: "col", text, className: at ? "rate" : "" }));
    made.querySelector(".scroll")?.remove();
    made.append(make("div", { className: "scroll" }, make("table", {}, make("caption", { text: chart.title }),
      make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows))));
  }
  return { made, fill };
}

function linkCard(link) {
  const key = `${link.name} ${link.direction}`;
  if (!state.charts.has(key)) {
    const way = link.direction === "egress" ? "outbound" : "inbound";
    const chart = new Chart(`${link.name} ${way}`);
    const head = make("div", { className: "head" }), now = make("div");
    const { made: details, fill } = figuresTable(chart, key);
    const key_ = make("p", { className: "key" });
    const mark = (name) => { const one = make("span", { className: "bar" }); const inner = one.appendChild(make("i", { className: name })); inner.style.left = "50%"; return one; };
    key_.append("Bars: the link's capacity.", mark("guarantee"), "guarantee", mark("limit"), "what it may send now");
    const card = make("section", { className: "card" }, head, chart.element, details, now, key_);
    card.setAttribute("aria-label", `${link.name} ${way}`);
    state.charts.set(key, { chart, card, head, now, details, fill });
  }
  const kept = state.charts.get(key);
  const way = link.direction === "egress" ? "outbound" : "inbound";
  const source = { configured: "as configured", link: "the driver's rate", fallback: "a guess", measured: "measured" }[link.capacity_source] ?? link.capacity_source;
  kept.head.replaceChildren(
    make("h2", { text: `${link.name} ${way} ` }, make("small", { text: `${rate(link.capacity_bits_per_s)}, ${source}` })),
    make("p", { className: "soft", text: link.direction === "egress" && !link.shaped ? "not shaped now" : link.capacity_reason.text.replace(/^[\d.]+ \w+\/s: /, "") }));
  const reading = document.getSelection()?.isCollapsed === false && kept.now.contains(document.getSelection().anchorNode);
  if (!reading) kept.now.replaceChildren(...[classTable(link), lends(link)].filter((one) => one !== null));
  return kept;
}

function drawLink(link) {
  const kept = state.charts.get(`${link.name} ${link.direction}`), about = { interface: link.name, direction: link.direction };
  const whole = history({ ...about, kind: "capacity" }), width = widthOf(whole, state.stepS), capacity = whole.slice(-width);
  const rates = (what) => history({ ...about, ...what }).slice(-width);
  let layers = CLASSES.map((name) => ({ name, values: rates({ kind: "class", traffic_class: name }) }));
  if (link.direction === "ingress") {
    layers = layers.filter((one) => one.values.some((value) => value !== null));
    // Of classes only connections are measured, and of all what arrives: they are never shown as more than that.
    const rest = rates({ kind: "total" });
    for (const one of layers) {
      one.values = one.values.map((value, at) => rest[at] === null ? null : Math.min(value ?? 0, rest[at]));
      one.values.forEach((value, at) => { if (value !== null) rest[at] -= value; });
    }
    layers.push({ name: "total", label: layers.length ? "all else" : "all", values: rest });
  }
  kept.chart.draw({ layers, capacity, stepS: state.stepS, endedS: state.histories[state.stepS]?.endedS ?? 0 });
  state.width = width;
  if (kept.details.open) kept.fill();
}

function showLinks(links) {
  const cards = links.map(linkCard), wanted = cards.map((one) => one.card);
  const names = new Set(links.map((one) => `${one.name} ${one.direction}`));
  for (const key of state.charts.keys()) if (!names.has(key)) state.charts.delete(key);
  const there = [...$("links").children];
  if (there.length !== wanted.length || there.some((one, at) => one !== wanted[at])) $("links").replaceChildren(...wanted);
  links.forEach(drawLink);
}

function showJobs(jobs) {
  jobs.sort((one, other) => one.job.localeCompare(other.job));
  const rows = jobs.flatMap((job) => job.shares.map((share) => make("tr", {},
    make("th", { scope: "row", text: job.job }),
    make("td", {}, swatch(share.class), share.class, make("span", { className: "soft", text: ` ${share.interface}` })),
    cell("sends", rate(share.throughput_bits_per_s)),
    cell("share", rate(share.share_bits_per_s)),
    make("td", {}, spark(history({ interface: share.interface, direction: "egress", kind: "job", traffic_class: share.class, name: job.job }).slice(-(state.width ?? 0)), share.class)),
    why(share.limited_by))));
  if (!rows.length) {
    $("jobs").replaceChildren(make("div", { className: "card" }, make("h2", { text: "Jobs" }), make("p", { className: "soft", text: "No program has named a job." })));
    return;
  }
  const heads = ["Job", "Class, link", "Sends", "Its share", "As above", "Limited by"]
    .map((text) => make("th", { scope: "col", text, className: /ends|share/.test(text) ? "rate" : "" }));
  $("jobs").replaceChildren(make("div", { className: "card" }, make("h2", { text: "Jobs" }),
    make("table", { className: "rows jobs" }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows))));
}

function showHosts({ holds, leases, schedules }) {
  const lines = [
    ...leases.map((one) => `${one.peer} (${one.address}) asks this host to send it at most ${rate(one.rate_bits_per_s)} of ${one.class}`
      + (one.granted === null ? "." : one.granted ? `: held to ${rate(one.granted_bits_per_s)}.` : `: refused, ${one.verdict?.text ?? ""}.`)),
    ...holds.map((one) => `This host asks ${one.address} to send at most ${rate(one.rate_bits_per_s)} of ${one.class}`
      + (one.granted === null ? ": no answer yet." : one.granted ? `: it holds to ${rate(one.granted_bits_per_s)}.` : `: refused, ${one.verdict?.text ?? ""}.`)),
    ...schedules.map((one) => `Schedule in force: ${one.name}${one.until ? `, until ${one.until.replace("T", " ")} (${one.timezone})` : ""}.`),
  ];
  $("hosts").replaceChildren(...(lines.length ? [make("div", { className: "card" }, make("h2", { text: "Between hosts, and schedules" }),
    ...lines.map((text) => make("p", { text })))] : []));
}

function show() {
  const { view } = state;
  document.title = `${view.alarms.length ? `(${view.alarms.length}) ` : ""}${view.host} – hive-qos`;
  $("host").textContent = view.host;
  showAlarms(view.alarms);
  showLinks(view.interfaces);
  showJobs(view.jobs);
  showHosts(view);
  $("footer").textContent = `hive-qos ${view.version}, up ${duration(view.up_s)}. Read-only; figures also at /metrics.`;
}

function duration(seconds) {
  const hours = Math.floor(seconds / 3600);
  if (hours >= 48) return `${Math.floor(hours / 24)} days`;
  return hours ? `${hours} h ${Math.floor(seconds % 3600 / 60)} min` : `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
}

// --- asking --------------------------------------------------------------------------------------------------------

function showState() {
  const nowMs = performance.now(), silentMs = nowMs - (state.answeredMs ?? 0), stuckMs = nowMs - (state.movedMs ?? 0);
  let text = "live", stale = false;
  if (state.answeredMs === null) text = "asking the broker";
  else if (silentMs > STALE_MS) [text, stale] = [`no answer for ${Math.round(silentMs / 1000)} s: what you see is old`, true];
  else if (stuckMs > STALE_MS) [text, stale] = [`no new figures for ${Math.round(stuckMs / 1000)} s: the broker hangs`, true];
  if ($("state").textContent !== text) $("state").textContent = text;
  $("state").className = stale ? "stale" : state.answeredMs === null ? "" : "live";
  document.body.classList.toggle("stale", stale);
}

async function ask() {
  const stepS = state.stepS, since = state.histories[stepS]?.head ?? 0;
  const answer = await fetch(`/figures.json?step_s=${stepS}&since=${since}`, { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store" });
  if (!answer.ok) throw new Error(answer.statusText);
  const { started, view, span } = await answer.json();
  state.answeredMs = performance.now();
  if (started !== state.started) { // the broker began anew, and its steps with it
    const first = state.started === null;
    Object.assign(state, { started, histories: {}, upS: null });
    if (!first) return ask();
  }
  if (view.up_s !== state.upS) [state.upS, state.movedMs] = [view.up_s, state.answeredMs];
  merge(span);
  state.view = view;
  if (stepS === state.stepS) show();
}

async function round() {
  if (document.visibilityState === "visible") {
    try {
      await ask();
    } catch (problem) {
      if (!(problem instanceof TypeError || problem instanceof DOMException)) console.error(problem);
    }
    showState();
  }
}

async function forever() {
  for (;;) {
    const beganMs = performance.now();
    await round();
    await new Promise((done) => { state.wake = done; setTimeout(done, Math.max(100, EVERY_MS - (performance.now() - beganMs))); });
  }
}

for (const button of document.querySelectorAll(".spans button")) {
  button.addEventListener("click", () => {
    state.stepS = Number(button.dataset.step);
    for (const one of document.querySelectorAll(".spans button")) one.setAttribute("aria-pressed", String(one === button));
    state.wake?.();
  });
}
document.addEventListener("visibilitychange", () => state.wake?.());
addEventListener("resize", () => { if (state.view) state.view.interfaces.forEach(drawLink); });
document.body.prepend(patterns());
setInterval(showState, 1000);
forever();
