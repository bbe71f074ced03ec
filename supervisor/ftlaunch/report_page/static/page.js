// Puts the page together, and takes new data: window.ftlaunch.update(data).
const FINE = { finished: "done", stopped: "stopped" };

function drawHeader() {
  const { job, notes, end: until, made: written } = state.data;
  document.title = `${job.id}: report of ftlaunch`;
  $("job-id").textContent = job.id || "a job without a name";
  $("state").textContent = FINE[job.state] || (job.state === "open" ? "no end yet" : job.state);
  $("state").className = `state ${FINE[job.state] ? "fine" : job.state === "open" ? "" : "bad"}`;
  $("ending").textContent = job.ending;
  $("when").textContent = `${clock(0)} to ${clock(until)} (${zone()}), ${duration(until)}. ${job.command}`;
  $("notes").replaceChildren(...notes.map((note) => el("li", {}, note)));
  $("made").textContent = `Made by ftlaunch from ${job.run_dir} at ${clock(written - state.data.begin)} (${zone()}). Nothing in this page is fetched from anywhere.`;
}

function drawFigures() {
  const { job, effective, end: until } = state.data;
  const figures = [
    ["Effective training time", effective === null ? "not known" : percent(effective)], ["Wall time", duration(until)],
    ["Ranks", job.ranks.toLocaleString("en")], ["Newest step noted", job.reached >= 0 ? job.reached.toLocaleString("en") : "not known"],
    ["Step", job.step_seconds === null ? "not known" : duration(job.step_seconds)], ["Incidents", job.incidents.toLocaleString("en")],
    ["Steps made again", job.steps_lost.toLocaleString("en")], ["Attempts", job.attempts.toLocaleString("en")],
    ["Checkpoints", job.checkpoints.toLocaleString("en")], ["Runs of the supervisor", job.runs.toLocaleString("en")],
  ];
  $("figures").replaceChildren(...figures.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function drawTables() {
  const { data } = state, many = 1000;
  const cut = (all) => all.slice(-many);
  rows($("attempts-table"), cut(data.attempts).map(([from, to, number, first, last]) => [[number > 1 ? `${first} to ${last} (${number})` : `${first}`], [clock(from), "t"], [duration(to - from), "n"]]));
  rows($("checkpoints-table"), cut(data.checkpoints).map(([from, to, number, first, last, grade, why]) => [[number > 1 ? `${first} to ${last} (${number})` : `${first}`, "t"], [clock(to), "t"], [number > 1 ? "" : duration(to - from), "n"], [`${GRADES[grade]}${why ? ` (${why})` : ""}`]]));
  const stays = data.nodes.rows.flatMap((row) => row.stays.map(([from, to, place]) => [[row.host], [clock(from), "t"], [clock(to), "t"], [place < 0 ? "stands by" : `${place}`]]));
  rows($("nodes-table"), cut(stays));
  $("nodes-table").hidden = !stays.length;
  const { loss, step_seconds: took } = data.steps, known = new Map();
  loss.newest.forEach(([rank, value]) => known.set(rank, [value, null]));
  took.newest.forEach(([rank, value]) => known.set(rank, [known.has(rank) ? known.get(rank)[0] : null, value]));
  rows($("ranks-table"), [...known].sort((a, b) => a[0] - b[0]).map(([rank, [value, seconds]]) => [[`${rank}`], [short(value), "n"], [duration(seconds), "n"]]));
  $("ranks-table").hidden = !known.size;
  rows($("history"), data.history.rows.map(([at, attempt, what]) => [[clock(at), "t"], [`${attempt}`], [what]]));
  $("history-cut").textContent = data.history.left_out ? `${count(data.history.left_out, "entry").replace("entrys", "entries")} between the first and the newest are left out.` : "";
}

function update(data) {
  state.data = data;
  drawHeader();
  drawFigures();
  drawLedger();
  drawTables();
  drawIncidentList();
  if (!view.all) view.to = Math.min(view.to, end());
  drawNow();
}

let closed = []; // what was closed when printing began
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const one of closed) one.open = true;
  for (const { incidents } of [state.data]) for (const one of incidents) body(made.get(one.number).element, one);
  drawNow();
});
addEventListener("afterprint", () => { for (const one of closed) one.open = false; });
addEventListener("hashchange", () => openIncident(Number(location.hash.replace("#incident-", ""))));
$("open-all").onclick = () => openAll(true);
$("close-all").onclick = () => openAll(false);
update(JSON.parse($("data").textContent));
listen();
if (location.hash.startsWith("#incident-")) openIncident(Number(location.hash.slice(10)));
window.ftlaunch = { update };
