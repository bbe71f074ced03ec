// The part of the time that is shown: one for all drawings. `view.all` follows the end of a job that runs.
const view = { from: 0, to: 1, all: true };
const LEAST_SHOWN = 0.05; // seconds
const MARGIN = 84; // pixels left of the drawings, for their names
const drawers = [];

const end = () => Math.max(state.data.end, LEAST_SHOWN);
const width = () => Math.max($("drawings").clientWidth - 20, 240);
const margin = () => (width() < 520 ? 76 : MARGIN);
const room = () => width() - margin() - 6; // pixels of a drawing that are time
const scale = () => {
  const left = margin();
  const each = room() / (view.to - view.from);
  return (seconds) => left + (seconds - view.from) * each;
};
const timeAt = (x) => view.from + ((x - margin()) / room()) * (view.to - view.from);

function show(from, to) {
  const whole = end();
  let length = Math.min(Math.max(to - from, LEAST_SHOWN), whole);
  view.all = length >= whole * 0.999;
  if (view.all) length = whole;
  view.from = Math.min(Math.max(from, 0), whole - length);
  view.to = view.from + length;
  redraw();
}

function zoom(factor, around = (view.from + view.to) / 2) {
  show(around - (around - view.from) * factor, around + (view.to - around) * factor);
}

const pan = (part) => {
  const by = (view.to - view.from) * part;
  const length = view.to - view.from;
  const from = Math.min(Math.max(view.from + by, 0), end() - length);
  show(from, from + length);
};
const showAll = () => show(0, end());

let awaited = 0;
function redraw() {
  if (!awaited) awaited = requestAnimationFrame(() => { awaited = 0; drawNow(); });
}

function drawNow() {
  if (!state.data) return;
  if (view.all) [view.from, view.to] = [0, end()];
  for (const draw of drawers) draw();
  const part = view.all ? "all of it: " : "";
  $("window").textContent = `${part}${clock(view.from)} to ${clock(view.to)}, ${duration(view.to - view.from)}`;
}

// Round moments within what is shown, for the axis.
function ticks(most) {
  const steps = [0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600, 28800, 43200, 86400, 172800, 604800];
  const length = view.to - view.from;
  const step = steps.find((one) => length / one <= most) || 604800 * Math.ceil(length / 604800 / most);
  const found = [];
  const shift = step >= 3600 ? (state.data.begin - new Date(state.data.begin * 1000).getTimezoneOffset() * 60) % step : state.data.begin % step;
  for (let at = Math.ceil((view.from + shift) / step) * step - shift; at <= view.to; at += step) found.push(at);
  const parts = step >= 86400 ? "day" : step >= 60 ? "hour" : "exact";
  const label = (at) => {
    if (step < 1) return `${clock(at, "exact")}.${String(Math.round(((state.data.begin + at) % 1) * 1000) % 1000).padStart(3, "0").slice(0, 2)}`;
    return parts === "hour" && clock(at, "hour") === "00:00" ? clock(at, "day") : clock(at, parts);
  };
  return found.map((at) => [at, label(at)]);
}

function axis(drawing, top, bottom, labels) {
  const x = scale();
  for (const [at, text] of ticks(Math.max(2, Math.floor(room() / (width() < 520 ? 60 : 95))))) {
    drawing.append(svg("line", { class: "rule", x1: x(at), x2: x(at), y1: top, y2: bottom }));
    if (labels) drawing.append(svg("text", { x: x(at), y: bottom + 13, "text-anchor": x(at) > width() - 30 ? "end" : "middle" }, text));
  }
}

function drawing(place, height, label, role = "img") {
  const one = svg("svg", { viewBox: `0 0 ${width()} ${height}`, height, role, "aria-label": label });
  $(place).replaceChildren(one);
  return one;
}

function listen() {
  const area = $("drawings");
  const offset = (event) => event.clientX - area.getBoundingClientRect().left - 10;
  $("zoom-in").onclick = () => zoom(0.5);
  $("zoom-out").onclick = () => zoom(2);
  $("pan-left").onclick = () => pan(-0.4);
  $("pan-right").onclick = () => pan(0.4);
  $("zoom-all").onclick = showAll;
  area.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== area) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(offset(event)));
  }, { passive: false });
  area.addEventListener("keydown", (event) => {
    const keys = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), 0: showAll, Home: showAll };
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  let grip = null; // where the pointer went down, and what was shown then
  area.addEventListener("pointerdown", (event) => { if (event.button === 0) grip = { x: event.clientX, from: view.from, to: view.to }; });
  addEventListener("pointermove", (event) => {
    if (!grip) return;
    const by = ((event.clientX - grip.x) / (width() - margin())) * (grip.to - grip.from);
    if (Math.abs(event.clientX - grip.x) < 4) return;
    area.classList.add("moves");
    const from = Math.min(Math.max(grip.from - by, 0), end() - (grip.to - grip.from));
    show(from, from + grip.to - grip.from);
  });
  for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => { grip = null; area.classList.remove("moves"); });
  area.addEventListener("pointerleave", (event) => tip(event, ""));
  new ResizeObserver(redraw).observe(area);
}
