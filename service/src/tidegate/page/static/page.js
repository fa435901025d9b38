// This script keeps the page up to date. The server renders all markup, and escapes all values. Without this script, the
// page shows the state at load time.
"use strict";

const body = document.body;
// Processing time of the coordinator, because the clock of this machine may be wrong.
let serverMs = Number(body.dataset.now), receivedMs = performance.now();
const now = () => serverMs + performance.now() - receivedMs;

// -- times and durations

const UNITS = [["y", 31536000], ["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

function formatDuration(ms) {
  let seconds = Math.floor(Math.max(ms, 0) / 1000);
  if (seconds < 1) return `${Math.max(Math.round(ms), 0)} ms`;
  const parts = [];
  for (const [unit, size] of UNITS) {
    const number = Math.floor(seconds / size);
    seconds %= size;
    if (number || parts.length) parts.push(`${number} ${unit}`);
  }
  return parts.slice(0, 2).filter((part) => !part.startsWith("0 ")).join(" ");
}

function updateDurations() {
  for (const one of document.querySelectorAll("[data-since]")) one.textContent = formatDuration(now() - one.dataset.since);
  for (const one of document.querySelectorAll("[data-until]")) one.textContent = formatDuration(one.dataset.until - now());
}

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const two = (number) => String(number).padStart(2, "0");
let local = localStorage.getItem("tidegate.times") === "local";

// The same parts and names as in render.py.
const FORMS = { full: [0], date: [0, 10], minute: [11, 16], second: [11, 19] };
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

function formatTime(ms, form = "full") {
  const at = new Date(ms);
  let text = at.toISOString().replace("T", " ").replace(/\.\d+Z$/, "Z");
  if (local) {
    const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    text = `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  }
  if (form === "day") return `${Number(text.slice(8, 10))} ${MONTHS[Number(text.slice(5, 7)) - 1]}`;
  return text.slice(...FORMS[form]);
}

function showTimes(within) {
  for (const one of within.querySelectorAll("[data-ms]")) {
    one.textContent = formatTime(Number(one.dataset.ms), one.dataset.form);
  }
}

const times = document.getElementById("times");
if (times) {
  times.hidden = false;
  const name = () => { times.textContent = local ? zone : "UTC"; };
  times.addEventListener("click", () => {
    local = !local;
    localStorage.setItem("tidegate.times", local ? "local" : "utc");
    name();
    showTimes(document);
  });
  name();
}
if (local) showTimes(document);
setInterval(updateDurations, 1000);

// -- charts

const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;
tip.setAttribute("role", "tooltip");
body.append(tip);

function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const left = Math.min(Math.max(x - tip.offsetWidth / 2, 8), innerWidth - tip.offsetWidth - 8);
  tip.style.left = `${left + scrollX}px`;
  tip.style.top = `${Math.max(y - tip.offsetHeight - 12, 4) + scrollY}px`;
}

function tipOf(target) {
  const one = target instanceof Element && target.closest("[data-tip]");
  if (!one) return false;
  const box = one.getBoundingClientRect();
  showTip(one.dataset.tip, box.left + box.width / 2, box.top);
  return true;
}

// The parsed points of each chart. An update replaces the chart.
const pointsOf = new WeakMap();

function lagPoints(chart) {
  if (!pointsOf.has(chart)) pointsOf.set(chart, JSON.parse(chart.dataset.points));
  return pointsOf.get(chart);
}

// Shows the lag and the holder at the pointer. A point is [time, watermark, holder]; the last one is the current state.
// Between two points, the lag is on a straight line, as in the chart.
function hoverLag(chart, event) {
  const box = chart.getBoundingClientRect(), { from, to } = chart.dataset;
  const at = Number(from) + ((event.clientX - box.left) / box.width) * (to - from);
  const points = lagPoints(chart), place = points.findLastIndex(([start]) => start <= at);
  const line = chart.querySelector(".hover");
  line.setAttribute("visibility", place < 0 ? "hidden" : "visible");
  if (place < 0) return;
  for (const end of ["x1", "x2"]) line.firstElementChild.setAttribute(end, event.clientX - box.left);
  const [start, watermark, holder] = points[place], [until, following] = points[place + 1] ?? points[place];
  const isLag = !("replayed" in chart.dataset), share = until > start ? (at - start) / (until - start) : 0;
  const value = (time, mark) => isLag ? time - mark : mark;
  const between = value(start, watermark) + share * (value(until, following ?? watermark) - value(start, watermark));
  const text = watermark === null ? "no watermark" : isLag ? `lag ${formatDuration(between)}` : formatTime(Math.round(between));
  showTip(`${formatTime(Math.round(at)).slice(11)} ${text}${holder ? `, held by ${holder}` : ""}`, event.clientX, box.top + 8);
}

function hideTip() {
  tip.hidden = true;
  for (const line of document.querySelectorAll(".hover")) line.setAttribute("visibility", "hidden");
}

document.addEventListener("pointermove", (event) => {
  const chart = event.target instanceof Element && event.target.closest("svg[data-points]");
  if (tipOf(event.target)) return;
  if (chart) hoverLag(chart, event);
  else hideTip();
});
document.addEventListener("focusin", (event) => { if (!tipOf(event.target)) hideTip(); });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

const still = matchMedia("(prefers-reduced-motion: reduce)");

function positions(section) {
  return new Map([...section.querySelectorAll("[data-key]")].map((one) => [one.dataset.key, Number(one.dataset.x)]));
}

// Moves the marks of a chart from their previous positions, which are in percent, to the current ones.
function move(section, before) {
  if (still.matches || !before.size) return;
  for (const one of section.querySelectorAll("[data-key]")) {
    const from = before.get(one.dataset.key) - one.dataset.x;
    if (!from) continue;
    const pixels = from / 100 * one.ownerSVGElement.getBoundingClientRect().width;
    one.animate([{ transform: `translateX(${pixels}px)` }, { transform: "none" }], { duration: 500, easing: "ease-out" });
  }
}

// -- menus

function closeMenus(except) {
  for (const menu of document.querySelectorAll(".menu[open]")) if (!menu.contains(except)) menu.open = false;
}

for (const event of ["click", "focusin"]) document.addEventListener(event, ({ target }) => closeMenus(target));
document.addEventListener("keydown", (event) => {
  const menu = event.key === "Escape" && document.querySelector(".menu[open]");
  if (!menu) return;
  menu.open = false;
  menu.querySelector("summary").focus();
});

// -- the event stream

const trouble = document.getElementById("trouble"), connection = document.getElementById("connection");
let pending = {};

function showTrouble(text) {
  trouble.hidden = !text;
  if (trouble.textContent !== text) trouble.textContent = text;
  body.classList.toggle("cut", Boolean(text));
  connection.textContent = text ? "" : "live";
  connection.classList.toggle("on", !text);
}

// A section does not change while the user selects text in it, presses a button, fills in a form, or opens a menu.
let pressed = false;

function busy(section) {
  const selection = getSelection(), focus = document.activeElement;
  return pressed
    || section.querySelector(".menu[open]") !== null
    || (selection.type === "Range" && section.contains(selection.anchorNode))
    || (section.contains(focus) && ["INPUT", "SELECT"].includes(focus.tagName));
}

// Returns the values of fields that the user has changed and not yet sent.
function changedFields(section) {
  const first = (field) => [...field.options].find((option) => option.defaultSelected) || field.options[0];
  const before = (field) => field.tagName === "SELECT" ? first(field).value : field.defaultValue;
  const fields = [...section.querySelectorAll("input[name], select[name]")];
  return fields.filter((field) => field.value !== before(field)).map((field) => [field.name, field.value]);
}

function replace(id, markup) {
  const section = document.getElementById(id);
  if (!section) return true;
  if (busy(section)) return false;
  const focus = document.activeElement, focused = section.contains(focus) && focus;
  const place = focused && sameControls(section, focused).indexOf(focused), hadTip = !tip.hidden;
  const fields = changedFields(section), before = positions(section);
  section.innerHTML = markup;
  move(section, before);
  for (const [name, value] of fields) {
    const field = section.querySelector(`[name="${CSS.escape(name)}"]`);
    if (field) field.value = value;
  }
  if (local) showTimes(section);
  if (focused) {
    sameControls(section, focused).at(place)?.focus({ preventScroll: true });
    if (!hadTip) hideTip();
  }
  return true;
}

// Returns the links with the address of a link, or the menus or buttons with the label of a menu or button.
function sameControls(section, control) {
  const key = (one) => one.getAttribute("href") ?? one.getAttribute("aria-label") ?? one.textContent;
  return [...section.querySelectorAll(control.localName)].filter((one) => key(one) === key(control));
}

// Screen readers read a change of health. They would read the whole headline each second, because it shows durations.
function announceHealth() {
  const badge = document.querySelector("#headline .badge"), health = document.getElementById("health");
  if (!health || !badge || badge.className === health.dataset.last) return;
  if (health.dataset.last) health.textContent = badge.parentElement.textContent.trim();
  health.dataset.last = badge.className;
}

function replaceAll() {
  for (const [id, markup] of Object.entries(pending)) if (replace(id, markup)) delete pending[id];
  announceHealth();
}

if (body.dataset.live) {
  const stream = new EventSource(body.dataset.live);
  const disconnected = "Not connected to the coordinator. The page shows the last known state. Connecting again.";
  stream.addEventListener("page", (event) => {
    const update = JSON.parse(event.data);
    serverMs = update.now;
    receivedMs = performance.now();
    pending = { ...pending, ...update.sections };
    showTrouble("");
    replaceAll();
    updateDurations();
  });
  stream.addEventListener("down", () => showTrouble("Redis does not answer. The page shows the last known state. Trying again."));
  stream.addEventListener("gone", () => { stream.close(); location.reload(); });
  stream.addEventListener("error", () => {
    showTrouble(stream.readyState === EventSource.CLOSED ? "Updates have stopped: load the page again." : disconnected);
  });
  document.addEventListener("focusout", () => setTimeout(replaceAll, 0));
  document.addEventListener("pointerdown", () => { pressed = true; });
  for (const end of ["pointerup", "pointercancel"]) {
    // The timeout runs after the click event of the same gesture.
    document.addEventListener(end, () => setTimeout(() => { pressed = false; replaceAll(); }, 0));
  }
  // The event of a menu does not bubble.
  document.addEventListener("toggle", replaceAll, true);
  document.addEventListener("selectionchange", () => setTimeout(replaceAll, 0));
}

// -- errors that may pass

// Loads the page again when its address answers with another status. A reload would send a form again.
async function loadIfChanged() {
  const answer = await fetch(location.href, { cache: "no-store" }).catch(() => null);
  if (answer && String(answer.status) !== body.dataset.retry) location.assign(location.pathname + location.search);
}

if (body.dataset.retry) setInterval(loadIfChanged, 5000);
