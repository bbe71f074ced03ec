// Keeps the page of a job live: takes news from the dashboard that has served it, and asks the job to save, drain or stop.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const shown = JSON.parse($("data").textContent);
  const FINE = ["done", "stopped", "running"];
  const STANDS_STILL = { gone: "The run dir is gone", unreadable: "The journal cannot be read now", empty: "The journal was emptied" };
  const AGAIN = 2000; // milliseconds until a connection that was refused is tried again
  let live = { state: "", sentence: "", newest: null, nodes: false, listed: false };
  let source = null;
  let ahead = 0; // milliseconds that the server's clock is ahead of this one
  let lostSince = null;

  function el(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  // --- the bar ------------------------------------------------------------------------------------------------
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(`
    .live-bar { position: sticky; top: 0; z-index: 4; display: flex; flex-wrap: wrap; gap: 0.4rem 0.8rem; align-items: center;
      margin: 0 0 1rem; padding: 0.5rem 0.8rem; background: var(--card); border: 1px solid var(--rule); border-radius: 0.5rem; }
    .live-bar .grow { flex: 1 1 14rem; } .live-bar.lost { border-color: var(--bad); } .live-bar p { margin: 0; }
    .live-bar button:disabled { color: var(--quiet); cursor: not-allowed; }
    .live-bar .answer:empty { display: none; } .live-bar .answer { flex: 1 1 100%; } .live-bar .answer.bad { color: var(--bad); }
    dialog.ask { max-width: 34rem; background: var(--card); color: var(--ink); border: 1px solid var(--rule); border-radius: 0.6rem; padding: 1rem 1.2rem; }
    dialog.ask::backdrop { background: rgb(0 0 0 / 0.45); } dialog.ask h2 { margin: 0 0 0.5rem; }
    dialog.ask select { font: inherit; min-height: 2.2rem; background: var(--card); color: var(--ink); border: 1px solid var(--quiet); border-radius: 0.4rem; }
    dialog.ask .tools { justify-content: flex-end; margin-top: 1rem; }
    button.strong { background: var(--bad); border-color: var(--bad); color: var(--card); font-weight: 600; }
    @media print { .live-bar { display: none; } }`);
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];

  const state = el("span", { class: "state" });
  const connection = el("span", { role: "status" });
  const age = el("span", { class: "quiet" });
  const answer = el("p", { class: "answer", role: "status" });
  const buttons = { save: el("button", { type: "button" }, "Save now"), drain: el("button", { type: "button" }, "Drain a node"), stop: el("button", { type: "button" }, "Stop the job") };
  const all = el("a", { href: "../../" }, "All jobs");
  const bar = el("aside", { class: "live-bar", "aria-label": "The job now" },
    all, el("p", { class: "grow" }, state, " ", connection, " ", age), buttons.save, buttons.drain, buttons.stop, answer);
  document.body.querySelector("header").before(bar);

  function draw() {
    const open = ["running", "stopping"].includes(live.state);
    state.textContent = live.state;
    state.className = `state ${FINE.includes(live.state) ? "fine" : open ? "" : "bad"}`;
    if (live.state) {
      $("state").textContent = live.state;
      $("state").className = state.className;
      $("ending").textContent = window.ftlaunch.afterState(live.state, live.sentence);
    }
    $("made").textContent = `Kept up to date by ftctl dashboard from ${shown.job.run_dir}.`;
    bar.classList.toggle("lost", lostSince !== null || live.state in STANDS_STILL);
    all.hidden = !live.listed;
    buttons.drain.hidden = !live.nodes;
    for (const button of Object.values(buttons)) button.disabled = !open || lostSince !== null;
    const still = live.state in STANDS_STILL ? `${STANDS_STILL[live.state]}: this is the last state that was seen.` : "";
    const lost = lostSince ? `No connection to the dashboard since ${lostSince.toLocaleTimeString()}: this is the last state.` : "";
    const said = lost || still || "live";
    if (connection.textContent !== said) connection.textContent = said;
    drawAge();
  }

  function drawAge() {
    const seconds = Math.max((Date.now() + ahead - Date.parse(live.newest)) / 1000, 0);
    const hidden = Number.isNaN(seconds) || lostSince !== null;
    const [number, unit] = seconds < 120 ? [seconds, "s"] : seconds < 7200 ? [seconds / 60, "min"] : [seconds / 3600, "h"];
    age.textContent = hidden ? "" : `newest line of the journal: ${Math.floor(number)} ${unit} ago`;
  }

  // --- news ---------------------------------------------------------------------------------------------------
  function take(message) {
    const { now, live: told, ...parts } = JSON.parse(message.data);
    ahead = now * 1000 - Date.now();
    lostSince = null;
    if (told) live = told;
    if (Object.keys(parts).length) {
      Object.assign(shown, parts);
      window.ftlaunch.update(shown);
    }
    draw();
  }

  function connect() {
    if (source !== null || document.hidden) return;
    source = new EventSource("news");
    const mine = source;
    mine.onmessage = take;
    mine.onopen = () => { lostSince = null; draw(); };
    mine.onerror = () => {
      lostSince = lostSince || new Date();
      draw();
      if (mine.readyState === EventSource.CLOSED && source === mine) {
        source = null;
        setTimeout(connect, AGAIN);
      }
    };
  }

  // Browsers hold few connections to one host: a page that nobody sees gives its own back.
  function onVisibility() {
    if (document.hidden && source !== null) {
      source.close();
      source = null;
    }
    connect();
  }

  // --- commands -----------------------------------------------------------------------------------------------
  const ASKS = {
    stop: ["Stop this job?", "All ranks stop at one of the next steps. That step is saved, and the job ends with exit code 75. The same command goes on from there.", "Stop the job"],
    save: ["Save a checkpoint now?", "One of the next steps is saved as a checkpoint while the job trains on. It counts like any other: an older one may be deleted for it, as --keep says.", "Save now"],
    drain: ["Let a node leave?", "All ranks stop at one step, which is saved. Then the node leaves, and its agent ends with exit code 75. Another node takes its place, or the job goes on with fewer where it may.", "Drain this node"],
  };

  async function call(path, options) {
    const response = await fetch(path, options);
    const text = await response.text();
    if (response.headers.get("content-type") !== "application/json") throw new Error(text.trim());
    const told = JSON.parse(text);
    if (told.error) throw new Error(told.error);
    return told;
  }

  function say(text, bad) {
    answer.textContent = text;
    answer.classList.toggle("bad", bad);
  }

  async function nodes() {
    const { nodes: found } = await call("nodes");
    const chosen = el("select", { id: "drained" });
    for (const { place, host } of found) {
      chosen.append(el("option", { value: place === null ? host : `${place}` }, place === null ? `${host} (stands by)` : `${place}: ${host}`));
    }
    return chosen;
  }

  async function ask(what) {
    const [title, text, word] = ASKS[what];
    say("", false);
    let chosen = null;
    try {
      chosen = what === "drain" ? await nodes() : null;
    } catch (error) {
      say(error.message, true);
      return;
    }
    const no = el("button", { type: "button", autofocus: "" }, "Do nothing");
    const yes = el("button", { type: "button", class: what === "save" ? "" : "strong" }, word);
    const pick = chosen ? [el("p", {}, el("label", { for: "drained" }, "Node "), chosen)] : [];
    const dialog = el("dialog", { class: "ask", "aria-labelledby": "ask-title", "aria-describedby": "ask-text" },
      el("h2", { id: "ask-title" }, title), el("p", { id: "ask-text" }, text), ...pick,
      el("p", { class: "quiet" }, "The journal notes who has asked."), el("div", { class: "tools" }, no, yes));
    no.onclick = () => dialog.close();
    yes.onclick = () => { dialog.close(); order({ do: what, ...(chosen ? { node: chosen.value } : {}) }); };
    dialog.onclose = () => { dialog.remove(); buttons[what].focus(); };
    document.body.append(dialog);
    dialog.showModal();
  }

  async function order(command) {
    try {
      const { done } = await call("do", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(command) });
      say(done, false);
    } catch (error) {
      say(error.message, true);
    }
  }

  for (const [what, button] of Object.entries(buttons)) button.onclick = () => ask(what);
  document.addEventListener("visibilitychange", onVisibility);
  setInterval(drawAge, 1000);
  draw();
  connect();
})();
