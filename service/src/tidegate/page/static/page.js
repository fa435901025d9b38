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

function formatTime(ms) {
  const at = new Date(ms);
  if (!local) return at.toISOString().replace("T", " ").replace(/\.\d+Z$/, "Z");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

function showTimes(within) {
  for (const one of within.querySelectorAll("[data-ms]")) one.textContent = formatTime(Number(one.dataset.ms));
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

// A section does not change while the user selects text in it, presses a button, or fills in a form.
let pressed = false;

function busy(section) {
  const selection = getSelection(), focus = document.activeElement;
  return pressed
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
  const focus = document.activeElement, inside = section.contains(focus);
  const address = inside && focus.getAttribute("href"), fields = changedFields(section);
  section.innerHTML = markup;
  for (const [name, value] of fields) {
    const field = section.querySelector(`[name="${CSS.escape(name)}"]`);
    if (field) field.value = value;
  }
  if (local) showTimes(section);
  if (address) {
    const again = [...section.querySelectorAll("a")].find((one) => one.getAttribute("href") === address);
    if (again) again.focus();
  }
  return true;
}

function replaceAll() {
  for (const [id, markup] of Object.entries(pending)) if (replace(id, markup)) delete pending[id];
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
  document.addEventListener("selectionchange", () => setTimeout(replaceAll, 0));
}
