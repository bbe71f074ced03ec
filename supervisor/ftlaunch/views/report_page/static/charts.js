// The ledger as a bar, the share of the time that trained, and the lines of loss and step time.
function drawLedger() {
  const { ledger, effective } = state.data, total = ledger.reduce((sum, row) => sum + row.seconds, 0);
  const bar = svg("svg", { viewBox: "0 0 1000 34", height: 34, preserveAspectRatio: "none", role: "img", "aria-label": `Where ${duration(total)} went; the table below tells the same` });
  let x = 0;
  for (const row of ledger) {
    const part = 1000 * row.share;
    const box = svg("rect", { class: `c${CLASSES.indexOf(row.name)}`, x, y: 0, width: part, height: 34 });
    box.addEventListener("pointermove", (event) => tip(event, `${row.name}: ${duration(row.seconds)}, ${percent(row.share)}`));
    box.addEventListener("pointerleave", (event) => tip(event, ""));
    bar.append(box);
    x += part;
  }
  $("ledger-bar").replaceChildren(bar);
  const shown = ledger.filter((row) => row.seconds > 0 || row.name === "useful" || row.name === "lost");
  rows($("ledger"), shown.map((row) => [[label(row.name), "t"], [row.meaning], [duration(row.seconds), "n"], [percent(row.share), "n"]]));
  if (effective === null) $("ledger").querySelector("tbody").append(el("tr", {}, el("td", { colspan: 4 }, "The effective training time is not known: the ranks do not say their steps.")));
}

const label = (name) => el("span", {}, el("span", { class: `swatch c${CLASSES.indexOf(name)}`, "aria-hidden": "true" }), name);

// The columns from one to another, merged until they are no more than so many.
function mergedColumns(first, last, most) {
  const { seconds, width: each } = state.data.columns, merged = Math.max(1, Math.ceil((last - first) / most)), found = [];
  for (let at = first; at < last; at += merged) {
    const sums = new Array(CLASSES.length).fill(0), until = Math.min(at + merged, last);
    for (let column = at; column < until; column += 1) seconds[column].forEach((part, kind) => { sums[kind] += part; });
    found.push({ from: at * each, to: Math.min(until * each, end()), seconds: sums });
  }
  return found;
}

// Those within what is shown, of some pixels each.
function columnsShown() {
  const { seconds, width: each } = state.data.columns;
  return mergedColumns(Math.max(Math.floor(view.from / each), 0), Math.min(Math.ceil(view.to / each), seconds.length), Math.max(40, Math.floor(room() / 4)));
}

drawers.push(function drawGoodput() {
  const height = 130, bottom = height - 18, x = scale();
  const one = drawing("goodput", height, "Share of the time that trained, over time, and as a line the share since the beginning; the table of the time tells the same");
  for (const [part, text] of [[0, "0 %"], [0.5, "50 %"], [1, "100 %"]]) one.append(svg("text", { x: 0, y: Math.max(bottom - part * (bottom - 4), 10) }, text));
  axis(one, 4, bottom, true);
  drawMix(one, columnsShown(), 4, bottom - 4, mixOf);
  drawShare(one, x, bottom);
});

function drawShare(one, x, bottom) {
  const { seconds, width: each } = state.data.columns, points = [];
  let useful = 0, total = 0;
  seconds.forEach((row, column) => {
    useful += row[0];
    total += row.reduce((sum, part) => sum + part, 0);
    const at = Math.min((column + 1) * each, end());
    if (total > 0 && at >= view.from && at <= view.to) points.push(`${x(at).toFixed(1)},${(bottom - (useful / total) * (bottom - 4)).toFixed(1)}`);
  });
  if (points.length > 1) one.append(svg("polyline", { class: "sum", "pointer-events": "none", points: points.join(" ") }));
}

const NOT_RECORDED = {
  loss: "Loss was not recorded: the ranks said none (job.step_done(loss=...)), the job was over too soon, or its journal is of an older version.",
  step_seconds: "Step time was not recorded: the ranks do not say their steps, the job was over too soon, or its journal is of an older version.",
};
const COLOURS = ["--l0", "--l1", "--l2", "--l3", "--l4", "--l5", "--l6", "--l7"];

const linesOf = (name) => Object.entries(state.data.steps[name].lines);

function drawLines(place, name, told, fromZero) {
  const all = linesOf(name);
  $(`${place}-none`).textContent = all.length ? "" : NOT_RECORDED[name];
  if (!all.length) return $(place).replaceChildren();
  const shown = all.map(([key, points], number) => [key, points.filter(([at], n) => (points[n + 1] ? points[n + 1][0] : at) >= view.from && (n ? points[n - 1][0] : at) <= view.to), COLOURS[number % COLOURS.length]]);
  const values = shown.flatMap(([, points]) => points.flatMap(([, , low, high]) => [low, high]));
  const least = fromZero ? 0 : Math.min(...values), most = Math.max(...values), room = most - least || Math.abs(most) || 1;
  const height = 150, bottom = height - 18, x = scale(), y = (value) => bottom - 4 - ((value - least) / room) * (bottom - 14);
  const one = drawing(place, height, `${name === "loss" ? "Loss" : "Step time"} over time; the table of it below tells the same`);
  axis(one, 4, bottom, true);
  if (values.length) for (const value of [least, least + room / 2, least + room]) one.append(svg("text", { x: 0, y: y(value) + 4 }, told(value)));
  const inside = svg("svg", { x: margin(), y: 0, width: width() - margin() - 6, height: bottom });
  for (const [, points, colour] of shown) {
    const at = ([time, , value]) => `${(x(time) - margin()).toFixed(1)},${y(value).toFixed(1)}`;
    const high = points.map(([time, step, , value]) => at([time, step, value]));
    const low = points.map(at);
    if (points.some(([, , a, b]) => a !== b)) inside.append(svg("polygon", { class: "band", fill: `var(${colour})`, points: [...high, ...low.reverse()].join(" ") }));
    const middle = points.map(([time, step, a, b]) => at([time, step, (a + b) / 2]));
    inside.append(points.length > 1 ? svg("polyline", { class: "line", stroke: `var(${colour})`, points: middle.join(" ") }) : svg("circle", { r: 3, fill: `var(${colour})`, cx: (middle[0] || "-9,0").split(",")[0], cy: (middle[0] || "-9,0").split(",")[1] }));
  }
  one.append(inside);
  one.addEventListener("pointermove", (event) => tip(event, nearest(shown, timeAt(event.clientX - one.getBoundingClientRect().left), told)));
  $(place).append(el("ul", { class: "legend" }, ...shown.map(([key, , colour]) => el("li", {}, svg("svg", { viewBox: "0 0 14 7" }, svg("rect", { width: 14, height: 7, fill: `var(${colour})` })), key))));
}

function nearest(shown, at, told) {
  const found = shown.filter(([, points]) => points.length).map(([key, points]) => [key, points.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best))]);
  if (!found.length) return "";
  const [time, step] = found[0][1];
  return [`step ${step}, ${clock(time)}`, ...found.map(([key, [, , low, high]]) => `${key}: ${told(low)}${high === low ? "" : ` to ${told(high)}`}`)].join("\n");
}

drawers.push(() => drawLines("loss", "loss", short, false));
drawers.push(() => drawLines("step", "step_seconds", duration, true));
