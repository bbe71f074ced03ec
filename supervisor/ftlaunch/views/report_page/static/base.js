// What all drawings use: elements made of text only, and how times and numbers are written.
const CLASSES = ["useful", "lost", "detecting", "restarting", "starting", "stopping", "down", "unknown"];
const STACKED = [0, 1, 2, 3, 4, 5, 7, 6]; // the classes, from the bottom of a stack to its top
const SVG = "http://www.w3.org/2000/svg";
const state = { data: null };
const $ = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// A string among the children becomes text: nothing that a job has said is ever read as HTML.
const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const two = (number) => String(number).padStart(2, "0");

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "not known";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 120) return `${whole} s`;
  if (whole < 7200) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

function clock(seconds, parts = "full") {
  const at = new Date((state.data.begin + seconds) * 1000);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const hour = `${two(at.getHours())}:${two(at.getMinutes())}`;
  if (parts === "day") return day.slice(5);
  if (parts === "hour") return hour;
  const exact = `${hour}:${two(at.getSeconds())}`;
  return parts === "exact" ? exact : `${day} ${exact}`;
}

// Of that moment: a job of the summer is told in the summer's time, whenever it is read.
const zone = (seconds) => new Date((state.data.begin + seconds) * 1000).toLocaleTimeString("en", { timeZoneName: "short" }).split(" ").pop();
const percent = (part) => `${(100 * part).toFixed(2)} %`;
const share = (part, whole) => percent(whole > 0 ? part / whole : 0);
const short = (value) => (value === null || value === undefined ? "not known" : String(Number(value.toPrecision(4))));
const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

function ranges(numbers) {
  const found = [];
  for (const number of numbers) {
    const last = found[found.length - 1];
    if (last && last[1] === number - 1) last[1] = number;
    else found.push([number, number]);
  }
  return found.map(([from, to]) => (from === to ? `${from}` : to === from + 1 ? `${from}, ${to}` : `${from}-${to}`)).join(", ");
}

const ranks = (numbers) => (numbers.length === 1 ? `rank ${numbers[0]}` : `ranks ${ranges(numbers)}`);

function rows(table, cells) {
  const body = table.querySelector("tbody");
  body.replaceChildren(...cells.map((row) => el("tr", {}, ...row.map(([text, kind]) => el("td", { class: kind }, text)))));
}

// --- the one tip, beside the pointer ---------------------------------------------------------------------------
function tip(event, text) {
  const box = $("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - width - 4))}px`;
  box.style.top = `${event.clientY + height + 24 > innerHeight ? event.clientY - height - 12 : event.clientY + 16}px`;
}
