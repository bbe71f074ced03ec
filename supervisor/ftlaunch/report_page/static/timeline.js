// The job's life in lanes: what the time was, attempts, incidents, checkpoints, nodes.
const LANE = 22, GAP = 8;
const SEVERITY = [0, 5, 6, 7, 3, 2, 4, 1]; // of classes: which one is drawn where several share a pixel
const GRADES = ["saved", "saved, marked abnormal", "could not be saved", "refused"];

function lane(drawing, y, name, height = LANE) {
  drawing.append(svg("text", { x: 0, y: y + height / 2 + 4 }, name));
  drawing.append(svg("rect", { class: "lane", x: margin(), y, width: width() - margin() - 6, height }));
}

// Stretches of time as boxes; those narrower than a pixel share a column, where the worst is seen.
function boxes(drawing, items, y, height, told) {
  const x = scale(), left = margin(), right = width() - 6, columns = new Map();
  for (const item of items) {
    if (item.to < view.from || item.from > view.to) continue;
    const a = Math.max(x(item.from), left), b = Math.min(x(item.to), right);
    if (b - a >= 1) {
      const box = svg("rect", { class: item.kind, x: a, y, width: b - a, height });
      box.addEventListener("pointermove", (event) => tip(event, told(item)));
      drawing.append(box);
    } else {
      const column = Math.min(Math.floor(a), right - 2), before = columns.get(column);
      if (!before || before.worst < item.worst) columns.set(column, { ...item, number: (before ? before.number : 0) + 1 });
      else before.number += 1;
    }
  }
  for (const [column, item] of columns) {
    const box = svg("rect", { class: item.kind, x: column, y, width: 2, height });
    const more = item.number > 1 ? `\n(one of ${item.number} here: zoom in)` : "";
    box.addEventListener("pointermove", (event) => tip(event, told(item) + more));
    drawing.append(box);
  }
}

function spans() {
  const { data } = state;
  if (data.spans) return data.spans.map(([kind, from, to]) => ({ kind: `c${kind}`, from, to, worst: SEVERITY[kind], name: CLASSES[kind] }));
  return columnsShown().flatMap(({ from, seconds }) => {
    let at = from;
    const parts = seconds.map((part, kind) => ({ kind: `c${kind}`, from: at, to: (at += part), worst: SEVERITY[kind], name: CLASSES[kind] }));
    return parts.filter((one) => one.to > one.from);
  });
}

function drawIncidents(drawing, y) {
  const x = scale(), { data } = state, step = data.columns.width;
  if (data.folded.length) data.columns.incidents.forEach((number, column) => {
    const from = column * step;
    if (!number || from + step < view.from || from > view.to) return;
    const a = Math.max(x(from), margin()), b = Math.min(x(from + step), width() - 6);
    const box = svg("rect", { class: "count", x: a, y: y + LANE - 5, width: Math.max(b - a, 1.5), height: 5 });
    box.addEventListener("pointermove", (event) => tip(event, `${count(number, "incident")} within ${duration(step)} from ${clock(from)}`));
    drawing.append(box);
  });
  let last = -9;
  for (const one of data.incidents) {
    const at = x(one.at);
    if (one.at < view.from || one.at > view.to || at - last < 3) continue;
    last = at;
    const mark = svg("path", { class: "mark", d: `M${at} ${y + 1}l6 14h-12z` });
    mark.addEventListener("pointermove", (event) => tip(event, `incident ${one.number}, ${clock(one.at)}\n${one.sentence}`));
    mark.addEventListener("click", () => openIncident(one.number));
    drawing.append(mark);
  }
}

function drawNodes(drawing, top) {
  let y = top;
  for (const row of state.data.nodes.rows) {
    lane(drawing, y, row.host.length > 12 ? `${row.host.slice(0, 11)}…` : row.host, 12);
    const stays = row.stays.map(([from, to, place]) => ({ from, to, place, kind: place < 0 ? "standby" : "placed", worst: place < 0 ? 0 : 1 }));
    boxes(drawing, stays, y, 12, (one) => `${row.host}: ${one.place < 0 ? "stands by" : `node ${one.place}`}\n${clock(one.from)} to ${clock(one.to)}`);
    y += 15;
  }
}

drawers.push(function drawTimeline() {
  const { data } = state, nodes = data.nodes.rows.length;
  const lanes = 4 * (LANE + GAP), height = lanes + (nodes ? nodes * 15 + GAP : 0) + 18;
  const label = `Timeline of ${count(data.job.attempts, "attempt")}, ${count(data.job.incidents, "incident")} and ${count(data.job.checkpoints, "checkpoint")}; the tables below tell the same`;
  const one = drawing("timeline", height, label);
  const y = [0, 1, 2, 3].map((number) => number * (LANE + GAP));
  ["time", "attempts", "incidents", "checkpoints"].forEach((name, number) => lane(one, y[number], width() < 520 ? name.slice(0, 9) : name));
  axis(one, 0, height - 18, true);
  boxes(one, spans(), y[0], LANE, (item) => `${item.name}: ${duration(item.to - item.from)}\n${clock(item.from)} to ${clock(item.to)}`);
  const attempts = data.attempts.map(([from, to, number, first, last], at) => ({ from, to, number, first, last, worst: 1, kind: at % 2 ? "attempt odd" : "attempt" }));
  boxes(one, attempts, y[1], LANE, (item) => `${item.number > 1 ? `${item.number} attempts, ${item.first} to ${item.last}` : `attempt ${item.first}`}: ${duration(item.to - item.from)}\n${clock(item.from)} to ${clock(item.to)}`);
  drawIncidents(one, y[2]);
  const saved = data.checkpoints.map(([from, to, number, first, last, grade, why]) => ({ from, to, number, first, last, grade, why, worst: grade, kind: `k${grade}` }));
  boxes(one, saved, y[3], LANE, (item) => `${item.number > 1 ? `${item.number} checkpoints, steps ${item.first} to ${item.last}` : `step ${item.first} ${GRADES[item.grade]}${item.why ? ` (${item.why})` : ""}`}\n${clock(item.to)}`);
  drawNodes(one, lanes);
});
