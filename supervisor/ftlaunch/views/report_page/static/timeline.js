// The job's life in lanes: what the time was, attempts, incidents and their restarts, checkpoints, nodes.
const LANE = 22, GAP = 8, MARKS = 32, NODE = 12;
const GRADES = ["saved", "saved, marked abnormal", "could not be saved", "refused"];
const PHASES = ["detecting", "killing", "planning", "spawning", "loading", "first step"];
const WIDE = 16; // pixels: a restart that is narrower is drawn without its phases
const CLOSE = 13; // pixels: marks nearer to each other than that are one, which says how many it stands for

function lane(drawing, y, name, height = LANE) {
  drawing.append(svg("text", { x: 0, y: y + height / 2 + 4 }, name));
  drawing.append(svg("rect", { class: "lane", x: margin(), y, width: room(), height }));
}

// Stretches of time as boxes, a path for each kind; those narrower than a pixel share a column, where the worst is seen.
function boxes(drawing, items, y, height, told) {
  const x = scale(), left = margin(), right = width() - 6, columns = new Map(), drawn = [], paths = new Map();
  for (const item of items) {
    if (item.to < view.from || item.from > view.to) continue;
    const a = Math.max(x(item.from), left), b = Math.min(x(item.to), right);
    if (b - a >= 1) { drawn.push({ item, at: a, wide: b - a, number: 1 }); continue; }
    const column = Math.min(Math.floor(a), right - 2), before = columns.get(column);
    if (!before || before.item.worst < item.worst) columns.set(column, { item, at: column, wide: 2, number: (before ? before.number : 0) + 1 });
    else before.number += 1;
  }
  drawn.push(...columns.values());
  for (const { item, at, wide } of drawn) paths.set(item.kind, `${paths.get(item.kind) || ""}M${at.toFixed(2)} ${y}h${wide.toFixed(2)}v${height}h-${wide.toFixed(2)}z`);
  for (const [kind, d] of paths) drawing.append(svg("path", { class: kind, d }));
  over(drawing, y, height, (_, at) => {
    const found = drawn.findLast((one) => one.at <= at && at <= one.at + one.wide);
    return found ? told(found.item) + (found.number > 1 ? `\n(one of ${found.number} here: zoom in)` : "") : "";
  });
}

// One place of a lane that hears the pointer: what is told of the moment, and of the pixel, beneath it.
function over(drawing, y, height, told) {
  const place = svg("rect", { class: "over", x: margin(), y, width: room(), height });
  place.addEventListener("pointermove", (event) => {
    const at = event.clientX - drawing.getBoundingClientRect().left;
    tip(event, told(timeAt(at), at));
  });
  drawing.append(place);
}

// --- what the time was -----------------------------------------------------------------------------------------
// A cell for each pixel, with the seconds of each class within it: no class hides another.
function pixels() {
  const { spans } = state.data;
  if (!spans) return columnsShown();
  const number = Math.max(Math.floor(room()), 1), each = (view.to - view.from) / number;
  const cells = Array.from({ length: number }, (_, n) => ({ from: view.from + n * each, to: view.from + (n + 1) * each, seconds: new Array(CLASSES.length).fill(0) }));
  for (const [kind, begin, until] of spans) {
    const a = Math.max(begin, view.from) - view.from, b = Math.min(until, view.to) - view.from;
    for (let n = Math.floor(a / each); n < number && n * each < b; n += 1) cells[n].seconds[kind] += Math.max(Math.min(b, (n + 1) * each) - Math.max(a, n * each), 0);
  }
  return cells;
}

// Cells as stacks of their classes: one path for each class, and one place that hears the pointer.
function drawMix(drawing, cells, y, height, told) {
  const x = scale(), paths = CLASSES.map(() => "");
  for (const { from, to, seconds } of cells) {
    const total = seconds.reduce((sum, part) => sum + part, 0);
    if (total <= 0) continue;
    const a = Math.max(x(from), margin()), wide = Math.max(Math.min(x(to), width() - 6) - a, 0.6);
    let bottom = y + height;
    for (const kind of STACKED) {
      const high = (seconds[kind] / total) * height;
      if (high <= 0) continue;
      bottom -= high;
      paths[kind] += `M${a.toFixed(2)} ${bottom.toFixed(2)}h${(wide + 0.05).toFixed(2)}v${high.toFixed(2)}h-${(wide + 0.05).toFixed(2)}z`;
    }
  }
  paths.forEach((d, kind) => { if (d) drawing.append(svg("path", { class: `c${kind}`, d })); });
  over(drawing, y, height, (at) => {
    const cell = cells.find((one) => one.to > at);
    return cell ? told(cell, at) : "";
  });
}

function mixOf({ from, to, seconds }) {
  const total = seconds.reduce((sum, part) => sum + part, 0);
  const parts = CLASSES.map((name, kind) => [name, seconds[kind]]).filter(([, part]) => part > 0);
  return [...parts.map(([name, part]) => `${name}: ${share(part, total)}`), `${clock(from)} to ${clock(to)}`].join("\n");
}

// A pixel of one class tells of the whole stretch to which it belongs.
function stretchOf(cell, at) {
  const one = cell.seconds.filter((part) => part > 0).length === 1 && state.data.spans && state.data.spans.find(([, from, to]) => from <= at && at <= to);
  return one ? `${CLASSES[one[0]]}: ${duration(one[2] - one[1])}\n${clock(one[1])} to ${clock(one[2])}` : mixOf(cell);
}

// --- incidents -------------------------------------------------------------------------------------------------
function drawCounts(drawing, y) {
  const x = scale(), { columns, folded } = state.data, step = columns.width;
  if (folded.length) columns.incidents.forEach((number, column) => {
    const from = column * step;
    if (!number || from + step < view.from || from > view.to) return;
    const a = Math.max(x(from), margin()), b = Math.min(x(from + step), width() - 6);
    const box = svg("rect", { class: "count", x: a, y: y + MARKS - 5, width: Math.max(b - a, 1.5), height: 5 });
    box.addEventListener("pointermove", (event) => tip(event, `${count(number, "incident")} within ${duration(step)} from ${clock(from)}`));
    drawing.append(box);
  });
}

// A mark is a link to its incident; of several that are one mark it leads to the most costly.
function drawMarks(drawing, y) {
  const x = scale(), marks = [];
  for (const one of state.data.incidents) {
    if (one.at < view.from || one.at > view.to) continue;
    const last = marks[marks.length - 1];
    if (last && x(one.at) - last.at < CLOSE) last.all.push(one);
    else marks.push({ at: x(one.at), all: [one] });
  }
  for (const { at, all } of marks) {
    const worst = all.reduce((most, one) => (one.cost > most.cost ? one : most));
    const text = all.length === 1 ? "" : `${all.length} incidents here, zoom in to part them; the most costly: `;
    const link = svg("a", { class: "mark", href: `#incident-${worst.number}`, draggable: "false", "aria-label": `${text}incident ${worst.number}, ${clock(worst.at)}: ${worst.sentence}` },
      svg("path", { d: `M${at} ${y + 1}l6 14h-12z` }), all.length > 1 ? svg("text", { x: at, y: y + 26, "text-anchor": "middle" }, `${all.length}`) : null);
    link.addEventListener("pointermove", (event) => tip(event, `${text}incident ${worst.number}, ${clock(worst.at)}\n${worst.sentence}`));
    link.addEventListener("click", (event) => { event.preventDefault(); openIncident(worst.number); });
    drawing.append(link);
  }
}

// The restart after each incident that is told in full: one box, or where that is wide enough its phases.
function restarts() {
  const x = scale();
  return state.data.incidents.filter((one) => one.phases.length).flatMap((one) => {
    let at = one.at - one.phases[0][1]; // the phases begin with the last completed step
    const parts = one.phases.map(([name, seconds]) => ({ name, number: one.number, from: at, to: (at += seconds), kind: `p${PHASES.indexOf(name)}`, worst: 0 })).filter((part) => part.to > part.from);
    if (!parts.length || x(at) - x(parts[0].from) >= WIDE) return parts;
    return [{ name: "restart", number: one.number, from: parts[0].from, to: at, kind: "c3", worst: 0 }];
  });
}

// --- all lanes -------------------------------------------------------------------------------------------------
function drawNodes(drawing, top) {
  let y = top;
  for (const row of state.data.nodes.rows) {
    lane(drawing, y, row.host.length > 12 ? `${row.host.slice(0, 11)}…` : row.host, NODE);
    const stays = row.stays.map(([from, to, place]) => ({ from, to, place, kind: place < 0 ? "standby" : "placed", worst: place < 0 ? 0 : 1 }));
    boxes(drawing, stays, y, NODE, (one) => `${row.host}: ${one.place < 0 ? "stands by" : `node ${one.place}`}\n${clock(one.from)} to ${clock(one.to)}`);
    y += NODE + 3;
  }
}

const LANES = [
  ["time", LANE, (one, y) => drawMix(one, pixels(), y, LANE, stretchOf)],
  ["attempts", LANE, (one, y) => boxes(one, state.data.attempts.map(([from, to, number, first, last], at) => ({ from, to, number, first, last, worst: 1, kind: at % 2 ? "attempt odd" : "attempt" })), y, LANE,
    (item) => `${item.number > 1 ? `${item.number} attempts, ${item.first} to ${item.last}` : `attempt ${item.first}`}: ${duration(item.to - item.from)}\n${clock(item.from)} to ${clock(item.to)}`)],
  ["incidents", MARKS, (one, y) => { drawCounts(one, y); drawMarks(one, y); }],
  ["restarts", NODE, (one, y) => boxes(one, restarts(), y, NODE, (part) => `incident ${part.number}, ${part.name}: ${duration(part.to - part.from)}`)],
  ["checkpoints", LANE, (one, y) => boxes(one, state.data.checkpoints.map(([from, to, number, first, last, grade, why]) => ({ from, to, number, first, last, grade, why, worst: grade, kind: `k${grade}` })), y, LANE,
    (item) => `${item.number > 1 ? `${item.number} checkpoints, steps ${item.first} to ${item.last}` : `step ${item.first} ${GRADES[item.grade]}${item.why ? ` (${item.why})` : ""}`}\n${clock(item.to)}`)],
];

drawers.push(function drawTimeline() {
  const { data } = state, nodes = data.nodes.rows.length, focused = document.activeElement && document.activeElement.getAttribute("href");
  const lanes = LANES.reduce((sum, [, high]) => sum + high + GAP, 0), height = lanes + (nodes ? nodes * (NODE + 3) + GAP : 0) + 18;
  const label = `Timeline of ${count(data.job.attempts, "attempt")}, ${count(data.job.incidents, "incident")} and ${count(data.job.checkpoints, "checkpoint")}; the tables below tell the same`;
  const one = drawing("timeline", height, label, "group");
  let y = 0;
  for (const [name, high] of LANES) { lane(one, y, name, high); y += high + GAP; }
  axis(one, 0, height - 18, true);
  y = 0;
  for (const [, high, draw] of LANES) { draw(one, y); y += high + GAP; }
  drawNodes(one, y);
  drawLegend();
  if (focused) for (const mark of one.querySelectorAll("a")) if (mark.getAttribute("href") === focused) mark.focus({ preventScroll: true });
});

const key = (kind, text) => el("li", {}, svg("svg", { viewBox: "0 0 14 7", "aria-hidden": "true" }, svg("rect", { class: kind, width: 14, height: 7 })), text);

function drawLegend() {
  const { data } = state, grades = new Set(data.checkpoints.map((bar) => bar[5])), items = [];
  data.ledger.forEach((row, kind) => { if (row.seconds > 0) items.push(key(`c${kind}`, row.name)); });
  if (data.attempts.length > 1) items.push(key("attempt", "attempt"), key("attempt odd", "the next attempt"));
  const parts = new Set(restarts().filter((part) => part.to >= view.from && part.from <= view.to).map((part) => part.name));
  PHASES.forEach((name, at) => { if (parts.has(name)) items.push(key(`p${at}`, `restart: ${name}`)); });
  if (parts.has("restart")) items.push(key("c3", `restart${data.folded.length ? ", of incidents told in full" : ""}: zoom in for its phases`));
  GRADES.forEach((name, grade) => { if (grades.has(grade)) items.push(key(`k${grade}`, `checkpoint ${name}`)); });
  const stays = data.nodes.rows.flatMap((row) => row.stays);
  if (stays.some(([, , place]) => place >= 0)) items.push(key("placed", "node with a place"));
  if (stays.some(([, , place]) => place < 0)) items.push(key("standby", "node that stands by"));
  $("timeline").append(el("ul", { class: "legend" }, ...items));
}
