// Incidents, each of them to be opened: cause, cost, who waits for whom, the last lines of the log.
const made = new Map(); // number -> the element, and the JSON that it was made from

function drawIncidentList() {
  const { incidents, folded, job } = state.data;
  const wanted = [...incidents].reverse().map((one) => {
    const before = made.get(one.number), known = before && before.begin === state.data.begin;
    if (known && JSON.stringify(before.one) === JSON.stringify(one)) return before.element;
    const element = before ? before.element : el("details", { class: "incident", id: `incident-${one.number}` }, el("summary"));
    element.querySelector("summary").replaceChildren(...head(one));
    for (const old of [...element.children].slice(1)) old.remove();
    element.dataset.drawn = "";
    element.ontoggle = () => { if (element.open) body(element, one); };
    if (element.open) body(element, one);
    made.set(one.number, { one, begin: state.data.begin, element });
    return element;
  });
  const list = $("incident-list"), keep = new Set(wanted);
  for (const [number, { element }] of made) if (!keep.has(element)) { element.remove(); made.delete(number); }
  wanted.forEach((element, at) => { if (list.children[at] !== element) list.insertBefore(element, list.children[at] || null); });
  $("no-incidents").textContent = job.incidents ? "" : "There was none.";
  $("open-all").parentElement.hidden = !job.incidents;
  $("folded").hidden = !folded.length;
  rows($("folded"), folded.map((row) => [[row.kind], [row.count.toLocaleString("en"), "n"], [duration(row.seconds), "n"], [row.steps.toLocaleString("en"), "n"]]));
}

const head = (one) => [
  el("span", { class: "head" }, `${one.number}. ${one.kind || "incident"}${one.rank >= 0 ? `, rank ${one.rank}` : ""}`),
  ` ${clock(one.at)}, attempt ${one.attempt}, cost ${duration(one.cost)}`,
  el("span", { class: "what" }, one.sentence),
];

function facts(pairs) {
  return el("dl", {}, ...pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

// The body is made when it is first opened: a page of many incidents is there at once.
function body(element, one) {
  if (element.dataset.drawn) { drawGraph(element, one); return; }
  element.dataset.drawn = "yes";
  const since = (seconds) => (seconds === null ? null : duration(seconds));
  const lost = one.steps_lost === null ? null : count(one.steps_lost, "step");
  element.append(facts([
    ["Cause", one.sentence.startsWith(one.cause) ? "" : one.cause], ["Decided", [one.verdict, one.action && one.action !== one.verdict && `(${one.action})`, one.delay ? `after ${duration(one.delay)}` : ""].filter(Boolean).join(" ")],
    one.kind === "hang" ? ["Restarts after hangs left", one.hang_restarts_left] : ["Restarts left", one.restarts_left], ["Step", one.step], ["Seen", one.seen_after === null ? null : `${duration(one.seen_after)} after the last completed step`],
    ["Resumed", one.resumed_after === null ? null : `at step ${one.resumed_step} from ${one.source || "nothing"}, after ${since(one.resumed_after)}`],
    ["First new step", one.recovered_after === null ? null : `after ${since(one.recovered_after)}`],
    ["Steps made again", lost], ["Proof", one.proof], ["Cost", `${duration(one.cost)}: until the first new step, and the steps made again`],
  ]));
  if (one.phases.length) phasesOf(element, one);
  if (one.autopsy) autopsyOf(element, one);
  if (one.trace.length) element.append(el("h3", {}, one.autopsy ? "Where it stood" : "Its last words"), el("pre", { tabindex: 0 }, one.trace.join("\n")));
  if (one.log) {
    element.append(el("h3", {}, `End of the log of rank ${one.rank}`), el("p", { class: "quiet" }, one.log.path));
    element.append(one.log.lines.length ? el("pre", { tabindex: 0 }, one.log.lines.join("\n")) : el("p", { class: "quiet" }, one.log.note));
  }
  for (const text of element.querySelectorAll("pre")) text.scrollTop = text.scrollHeight; // the last lines matter most
}

// The restart in its phases, each as long as it took, with the figures.
function phasesOf(element, one) {
  const total = one.phases.reduce((sum, [, seconds]) => sum + seconds, 0), bar = svg("svg", { viewBox: "0 0 1000 14", height: 14, preserveAspectRatio: "none", role: "img", "aria-label": "The phases of the restart; the list below tells the same" });
  let x = 0;
  for (const [name, seconds] of one.phases) {
    const part = total > 0 ? (1000 * seconds) / total : 0;
    bar.append(svg("rect", { class: `p${PHASES.indexOf(name)}`, x, y: 0, width: part, height: 14 }));
    x += part;
  }
  element.append(el("h3", {}, "The restart in its phases"), bar, el("ul", { class: "legend" }, ...one.phases.map(([name, seconds]) => key(`p${PHASES.indexOf(name)}`, `${name} ${duration(seconds)}`))));
}

function autopsyOf(element, one) {
  const { autopsy } = one;
  element.append(el("h3", {}, "Autopsy: who waits for whom"));
  if (autopsy.verdict) element.append(el("p", {}, autopsy.verdict));
  element.append(el("div", { class: "graph" }));
  const lines = autopsy.groups.map((group, at) => {
    const edge = autopsy.edges.find(([from]) => from === at);
    return `${ranks(group.ranks)} ${edge ? `waits ${edge[2]} for ${ranks(autopsy.groups[edge[1]].ranks)}` : group.doing}`.replace(/^(ranks .*?) waits /, "$1 wait ");
  });
  if (lines.length) element.append(el("ul", {}, ...lines.map((line) => el("li", {}, line))));
  for (const text of [autopsy.note, autopsy.network ? "All have entered the same collective, and none gets out." : "", autopsy.path]) if (text) element.append(el("p", { class: "quiet" }, text));
  drawGraph(element, one);
}

function wrap(text, letters, most) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const last = lines[lines.length - 1];
    if (last && last.length + word.length + 1 > letters) lines.push(word.slice(0, letters));
    else lines[lines.length - 1] = (last ? `${last} ${word}` : word).slice(0, letters);
  }
  return lines.length > most ? [...lines.slice(0, most - 1), `${lines[most - 1].slice(0, letters - 1)}…`] : lines;
}

function drawGraph(element, one) {
  const place = element.querySelector(".graph");
  if (!place || !one.autopsy.groups.length) return;
  const { groups, edges } = one.autopsy, wide = Math.max(Math.min(place.clientWidth || 700, 900), 260);
  const box = Math.floor(wide * 0.42), letters = Math.floor(box / 7), others = groups.slice(1);
  const texts = groups.map((group) => [wrap(ranks(group.ranks), letters, 2), wrap(group.doing, letters, 4)]);
  const heights = texts.map(([a, b]) => 16 * (a.length + b.length) + 14);
  const tall = Math.max(others.reduce((sum, _, at) => sum + heights[at + 1] + 12, 0), heights[0]) + 8;
  const graph = svg("svg", { viewBox: `0 0 ${wide} ${tall}`, height: tall, width: wide, role: "img", "aria-label": "Who waits for whom; the list below tells the same" });
  const spots = [];
  let y = 4;
  groups.forEach((group, at) => {
    const culprit = at === 0;
    spots[at] = { x: culprit && others.length ? wide - box - 2 : 2, y: culprit ? Math.max((tall - heights[0]) / 2, 2) : y, height: heights[at] };
    if (!culprit) y += heights[at] + 12;
    graph.append(svg("rect", { class: culprit ? "box culprit" : "box", x: spots[at].x, y: spots[at].y, width: box, height: heights[at], rx: 5 }));
    [...texts[at][0], ...texts[at][1]].forEach((line, number) => graph.append(svg("text", { class: number < texts[at][0].length ? "strong" : "", x: spots[at].x + 8, y: spots[at].y + 18 + 16 * number }, line)));
  });
  for (const [from, to] of edges) {
    const [a, b] = [spots[from], spots[to]], forward = to === 0, shift = forward ? 0 : 14;
    const x1 = forward ? a.x + box : a.x, x2 = forward ? b.x - 7 : b.x + box + 7, y1 = a.y + a.height / 2 + shift, y2 = b.y + b.height / 2 + shift;
    graph.append(svg("path", { class: "arrow", d: `M${x1} ${y1}C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}` }));
    graph.append(svg("path", { class: "tip", d: forward ? `M${x2 + 7} ${y2}l-9 -5v10z` : `M${x2 - 7} ${y2}l9 -5v10z` }));
  }
  place.replaceChildren(graph);
}

function openIncident(number) {
  const found = made.get(number);
  if (!found) return;
  found.element.open = true;
  found.element.scrollIntoView({ block: "start" });
  found.element.querySelector("summary").focus({ preventScroll: true });
}

function openAll(open) {
  for (const { element } of made.values()) element.open = open;
}
