// The tables that tell what the drawings show. One that is closed is filled when it is opened.
const MOST_ROWS = 1000, MOST_TIMES = 100;

function ranksTable() {
  const { loss, step_seconds: took } = state.data.steps, known = new Map();
  loss.newest.forEach(([rank, value]) => known.set(rank, [value, null]));
  took.newest.forEach(([rank, value]) => known.set(rank, [known.has(rank) ? known.get(rank)[0] : null, value]));
  return [...known].sort((a, b) => a[0] - b[0]).map(([rank, [value, seconds]]) => [[`${rank}`], [short(value), "n"], [duration(seconds), "n"]]);
}

const TABLES = {
  "times-table": timesTable,
  "attempts-table": () => state.data.attempts.map(([from, to, number, first, last]) => [[number > 1 ? `${first} to ${last} (${number})` : `${first}`], [clock(from), "t"], [duration(to - from), "n"]]),
  "checkpoints-table": () => state.data.checkpoints.map(([from, to, number, first, last, grade, why]) => [[number > 1 ? `${first} to ${last} (${number})` : `${first}`, "t"], [clock(to), "t"], [number > 1 ? "" : duration(to - from), "n"], [`${GRADES[grade]}${why ? ` (${why})` : ""}`]]),
  "nodes-table": () => state.data.nodes.rows.flatMap((row) => row.stays.map(([from, to, place]) => [[row.host], [clock(from), "t"], [clock(to), "t"], [place < 0 ? "stands by" : `${place}`]])),
  "loss-table": () => linesTable("loss", short),
  "step-table": () => linesTable("step_seconds", duration),
  "ranks-table": ranksTable,
};

function fillTable(id) {
  const details = $(id), all = TABLES[id](), shown = all.slice(-MOST_ROWS);
  rows(details, shown);
  details.querySelector(".cut").textContent = shown.length < all.length ? `The newest ${count(shown.length, "row")} of ${all.length.toLocaleString("en")}.` : "";
  details.dataset.filled = "yes";
}

function drawTables() {
  const { data } = state, known = { "nodes-table": data.nodes.rows.length, "loss-table": linesOf("loss").length, "step-table": linesOf("step_seconds").length, "ranks-table": linesOf("loss").length + linesOf("step_seconds").length };
  for (const id of Object.keys(TABLES)) {
    const details = $(id);
    details.hidden = known[id] === 0;
    details.dataset.filled = "";
    details.ontoggle = () => { if (details.open && !details.dataset.filled) fillTable(id); };
    if (details.open) fillTable(id);
  }
  rows($("history"), data.history.rows.map(([at, attempt, what]) => [[clock(at), "t"], [`${attempt}`], [what]]));
  $("history-cut").textContent = data.history.left_out ? `${count(data.history.left_out, "entry").replace("entrys", "entries")} between the first and the newest are left out.` : "";
}

function titles(details, names) {
  details.querySelector("thead").replaceChildren(el("tr", {}, ...names.map(([name, kind]) => el("th", { scope: "col", class: kind }, name))));
}

// Of the whole time: what each stretch of it was, in shares. The same is seen in the lane "time", and as share of the time that trained.
function timesTable() {
  const kinds = CLASSES.map((_, kind) => kind).filter((kind) => state.data.ledger[kind].seconds > 0);
  titles($("times-table"), [["From"], ["To"], ...kinds.map((kind) => [CLASSES[kind], "n"])]);
  return mergedColumns(0, state.data.columns.seconds.length, MOST_TIMES).map(({ from, to, seconds }) => {
    const total = seconds.reduce((sum, part) => sum + part, 0);
    return [[clock(from), "t"], [clock(to), "t"], ...kinds.map((kind) => [seconds[kind] ? share(seconds[kind], total) : "", "n"])];
  });
}

// Of the whole time: the lowest and the highest value of each line in each stretch of it.
function linesTable(name, told) {
  const lines = linesOf(name), each = end() / MOST_TIMES, found = new Map();
  titles($(name === "loss" ? "loss-table" : "step-table"), [["When"], ["Step", "n"], ...lines.map(([line]) => [line, "n"])]);
  lines.forEach(([, points], column) => {
    for (const [at, step, low, high] of points) {
      const bin = Math.min(Math.floor(at / each), MOST_TIMES - 1);
      if (!found.has(bin)) found.set(bin, { at, step, values: lines.map(() => null) });
      const row = found.get(bin), before = row.values[column];
      row.step = Math.max(row.step, step);
      row.values[column] = before ? [Math.min(before[0], low), Math.max(before[1], high)] : [low, high];
    }
  });
  return [...found].sort((a, b) => a[0] - b[0]).map(([, { at, step, values }]) => [[clock(at), "t"], [`${step}`, "n"],
    ...values.map((pair) => [pair ? (pair[0] === pair[1] ? told(pair[0]) : `${told(pair[0])} to ${told(pair[1])}`) : "", "n"])]);
}
