// The rows of all jobs, as the dashboard tells them.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const FINE = ["done", "stopped", "running"];
  const BAD = ["failed", "killed", "unreadable"];
  const AGAIN = 2000; // milliseconds until a connection that was refused is tried again
  const HEADS = [...document.querySelectorAll("#jobs th")].map((head) => head.textContent);
  let source = null;
  let told = { rows: [], trouble: "" };
  let ahead = 0; // seconds that the server's clock is ahead of this one

  // A string among the children becomes text: nothing that a job has said is ever read as HTML.
  function el(tag, kind, ...children) {
    const element = document.createElement(tag);
    if (kind) element.className = kind;
    element.append(...children);
    return element;
  }

  function ago(wall) {
    if (!wall) return "";
    const seconds = Math.max(Date.now() / 1000 + ahead - wall, 0);
    if (seconds < 120) return `${Math.floor(seconds)} s ago`;
    if (seconds < 7200) return `${Math.floor(seconds / 60)} min ago`;
    return seconds < 172800 ? `${Math.floor(seconds / 3600)} h ago` : `${Math.floor(seconds / 86400)} d ago`;
  }

  function cells(row) {
    const link = el("a", "", row.name);
    link.href = row.link;
    const kind = FINE.includes(row.state) ? "state fine" : BAD.includes(row.state) ? "state bad" : "state";
    const job = row.job_id && row.job_id !== row.name ? [el("div", "quiet", `job ${row.job_id}`)] : [];
    const said = row.sentence ? [el("div", "quiet", row.sentence)] : [];
    const known = (value) => (value === null || value === undefined ? "not known" : value.toLocaleString("en"));
    const share = row.goodput === null || row.goodput === undefined ? "not known" : `${(100 * row.goodput).toFixed(2)} %`;
    const shown = [["name", link, ...job], ["", el("span", kind, row.state), ...said], ["n", known(row.step)], ["n", share], ["n", known(row.ranks)],
      ["n", known(row.incidents)], ["what", row.incident || ""], ["n quiet", ago(row.newest)]];
    const line = el("tr", "", ...shown.map(([look, ...content], number) => cell(HEADS[number], look, content)));
    line.setAttribute("role", "row");
    return line;
  }

  // On a narrow screen the cells stand below each other, each with its head before it; the roles keep them a table there.
  function cell(head, kind, content) {
    const made = el("td", kind, el("div", "", ...content));
    made.dataset.head = head;
    made.setAttribute("role", "cell");
    return made;
  }

  function draw() {
    const focused = document.activeElement && document.activeElement.getAttribute("href");
    $("jobs").querySelector("tbody").replaceChildren(...told.rows.map(cells));
    if (focused) [...document.querySelectorAll("#jobs a")].find((link) => link.getAttribute("href") === focused)?.focus();
    $("none").hidden = told.rows.length > 0;
  }

  function say(text, bad) {
    if ($("connection").textContent !== text) $("connection").textContent = text;
    $("connection").className = bad ? "bad" : "fine";
  }

  function connect() {
    if (source !== null || document.hidden) return;
    source = new EventSource("news");
    const mine = source;
    mine.onmessage = (message) => {
      const { now, ...parts } = JSON.parse(message.data);
      ahead = now - Date.now() / 1000;
      Object.assign(told, parts);
      draw();
      say(told.trouble || "live", told.trouble !== "");
    };
    mine.onerror = () => {
      say(`No connection to the dashboard: this is the last state, of ${new Date().toLocaleTimeString()} at the latest.`, true);
      if (mine.readyState === EventSource.CLOSED && source === mine) {
        source = null;
        setTimeout(connect, AGAIN);
      }
    };
  }

  // Browsers hold few connections to one host: a page that nobody sees gives its own back.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && source !== null) {
      source.close();
      source = null;
    }
    connect();
  });
  setInterval(() => { if (told.rows.length && !document.hidden) draw(); }, 10000);
  connect();
})();
