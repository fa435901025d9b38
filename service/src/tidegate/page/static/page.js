// Keeps the page up to date. All markup comes from the server, where everything that is not its own is escaped; without
// this script the page is as it was when it was loaded.
"use strict";

const body = document.body;
// Of what is shown, by the coordinator's clock: this machine's own may be wrong.
let serverMs = Number(body.dataset.now), heardMs = performance.now();
const now = () => serverMs + performance.now() - heardMs;

// -- times: how long ago, until when, and in whose zone

const UNITS = [["y", 31536000], ["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

function forHowLong(ms) {
  let seconds = Math.floor(Math.max(ms, 0) / 1000);
  if (seconds < 1) return `${Math.max(Math.round(ms), 0)} ms`;
  const found = [];
  for (const [unit, size] of UNITS) {
    const number = Math.floor(seconds / size);
    seconds %= size;
    if (number || found.length) found.push(`${number} ${unit}`);
  }
  return found.slice(0, 2).filter((part) => !part.startsWith("0 ")).join(" ");
}

function tick() {
  for (const one of document.querySelectorAll("[data-since]")) one.textContent = forHowLong(now() - one.dataset.since);
  for (const one of document.querySelectorAll("[data-until]")) one.textContent = forHowLong(one.dataset.until - now());
}

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const two = (number) => String(number).padStart(2, "0");
let local = localStorage.getItem("tidegate.times") === "local";

function shown(ms) {
  const at = new Date(ms);
  if (!local) return at.toISOString().replace("T", " ").replace(/\.\d+Z$/, "Z");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

function showTimes(within) {
  for (const one of within.querySelectorAll("[data-ms]")) one.textContent = shown(Number(one.dataset.ms));
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
setInterval(tick, 1000);

// -- the stream: what has changed

const trouble = document.getElementById("trouble"), connection = document.getElementById("connection");
let waiting = {};

function say(text) {
  trouble.hidden = !text;
  if (trouble.textContent !== text) trouble.textContent = text;
  body.classList.toggle("cut", Boolean(text));
  connection.textContent = text ? "" : "live";
  connection.classList.toggle("on", !text);
}

// Somebody reads with the mouse, is about to click, or fills in a form: what they are at stays until they are done.
let pressed = false;

function busy(section) {
  const selection = getSelection(), focus = document.activeElement;
  return pressed
    || (selection.type === "Range" && section.contains(selection.anchorNode))
    || (section.contains(focus) && ["INPUT", "SELECT"].includes(focus.tagName));
}

// What was chosen and not sent off yet, by the names of the fields.
function chosen(section) {
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
  const address = inside && focus.getAttribute("href"), fields = chosen(section);
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
  for (const [id, markup] of Object.entries(waiting)) if (replace(id, markup)) delete waiting[id];
}

if (body.dataset.live) {
  const stream = new EventSource(body.dataset.live);
  const cut = "Not connected to the coordinator: this is how it was when it last answered. Connecting again.";
  stream.addEventListener("page", (event) => {
    const told = JSON.parse(event.data);
    serverMs = told.now;
    heardMs = performance.now();
    waiting = { ...waiting, ...told.sections };
    say("");
    replaceAll();
    tick();
  });
  stream.addEventListener("down", () => say("Redis does not answer: this is how it was when it last did. Trying again."));
  stream.addEventListener("gone", () => { stream.close(); location.reload(); });
  stream.addEventListener("error", () => {
    say(stream.readyState === EventSource.CLOSED ? "No longer kept up to date: load the page again." : cut);
  });
  document.addEventListener("focusout", () => setTimeout(replaceAll, 0));
  document.addEventListener("pointerdown", () => { pressed = true; });
  for (const end of ["pointerup", "pointercancel"]) {
    // After the click that it may be.
    document.addEventListener(end, () => setTimeout(() => { pressed = false; replaceAll(); }, 0));
  }
  document.addEventListener("selectionchange", () => setTimeout(replaceAll, 0));
}
