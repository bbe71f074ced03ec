// Puts the page together, and takes new data: window.ftlaunch.update(data).
const FINE = { finished: "done", stopped: "stopped" };

// A sentence that begins with the state which stands before it.
const afterState = (word, sentence) => (sentence.startsWith(`${word} `) ? sentence.slice(word.length + 1) : sentence);

function drawHeader() {
  const { job, notes, end: until, made: written } = state.data;
  document.title = `${job.id}: report of ftlaunch`;
  $("job-id").textContent = job.id || "a job without a name";
  const word = FINE[job.state] || (job.state === "open" ? "no end yet" : job.state);
  $("state").textContent = word;
  $("state").className = `state ${FINE[job.state] ? "fine" : job.state === "open" ? "" : "bad"}`;
  $("ending").textContent = afterState(word, job.ending);
  $("when").textContent = `${clock(0)} to ${clock(until)} (${zone(until)}), ${duration(until)}. ${job.command}`;
  $("notes").replaceChildren(...notes.map((note) => el("li", {}, note)));
  $("made").textContent = `Made by ftlaunch from ${job.run_dir} at ${clock(written - state.data.begin)} (${zone(written - state.data.begin)}). Nothing in this page is fetched from anywhere.`;
}

function drawFigures() {
  const { job, effective, end: until } = state.data;
  const figures = [
    ["Effective training time", effective === null ? "not known" : percent(effective)], ["Wall time", duration(until)],
    ["Ranks", job.ranks.toLocaleString("en")], ["Newest step noted", job.reached >= 0 ? job.reached.toLocaleString("en") : "not known"],
    ["Mean step time", job.step_seconds === null ? "not known" : duration(job.step_seconds)], ["Incidents", job.incidents.toLocaleString("en")],
    ["Steps made again", job.steps_lost.toLocaleString("en")], ["Attempts", job.attempts.toLocaleString("en")],
    ["Checkpoints", job.checkpoints.toLocaleString("en")], ["Runs of the supervisor", job.runs.toLocaleString("en")],
  ];
  $("figures").replaceChildren(...figures.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value.replaceAll(" ", "\u00a0")))));
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
  for (const id of Object.keys(TABLES)) fillTable(id);
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const one of closed) one.open = true;
  for (const one of state.data.incidents) body(made.get(one.number).element, one);
  drawNow();
});
addEventListener("afterprint", () => { for (const one of closed) one.open = false; });
addEventListener("hashchange", () => openIncident(Number(location.hash.replace("#incident-", ""))));
$("open-all").onclick = () => openAll(true);
$("close-all").onclick = () => openAll(false);
update(JSON.parse($("data").textContent));
listen();
if (location.hash.startsWith("#incident-")) openIncident(Number(location.hash.slice(10)));
window.ftlaunch = { update, afterState };
