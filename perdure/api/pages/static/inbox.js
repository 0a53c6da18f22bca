// Keeps the pages up to date. Without it they work all the same: forms are plain forms, and a reload brings news.
"use strict";

const main = document.getElementById("main");
const news = document.getElementById("news");
const offline = document.getElementById("offline");
const signedOut = document.getElementById("signed-out");
const scroller = document.querySelector("[data-scrolls]") || document.documentElement;

const pause = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));
const shown = () =>
  document.hidden
    ? new Promise((done) => document.addEventListener("visibilitychange", () => done(), { once: true })).then(shown)
    : Promise.resolve();

// Resolves to the status and the page; a failed request has the status 0. XMLHttpRequest parses, and runs no scripts.
// With fields of a form it posts them.
function fetchPage(url, fields) {
  return new Promise((done) => {
    const request = new XMLHttpRequest();
    request.responseType = "document";
    // Else an answer without a type, as of a server that ends, would be taken for XML, and its mistakes be shown in style.
    request.overrideMimeType("text/html");
    request.timeout = 60000;
    request.onloadend = () => done({ status: request.status, page: request.response });
    request.open(fields ? "POST" : "GET", url);
    request.send(fields);
  });
}

const inUse = (element) =>
  element.contains(document.activeElement) ||
  [...element.querySelectorAll("input, textarea")].some((input) => input.value !== input.defaultValue);

function replaceContent(old, fresh) {
  if (old.innerHTML !== fresh.innerHTML && !(old.querySelector("form, a, [tabindex]") && inUse(old))) {
    old.replaceChildren(...[...fresh.childNodes].map((node) => document.adoptNode(node)));
  }
}

// Children are known by their keys: those that stay are left alone, with what was typed into them.
function mergeList(old, fresh) {
  const kept = new Map([...old.children].map((child) => [child.dataset.key, child]));
  const wanted = new Set([...fresh.children].map((child) => child.dataset.key));
  for (const [key, child] of kept) {
    if (!wanted.has(key)) {
      const hadFocus = child.contains(document.activeElement);
      child.remove();
      if (hadFocus) main.focus();
    }
  }
  let added = 0;
  let before = old.firstElementChild;
  for (const child of [...fresh.children]) {
    const known = kept.get(child.dataset.key);
    if (known) {
      if (known === before) before = before.nextElementSibling;
      else old.insertBefore(known, before);
      continue;
    }
    child.classList.add("new");
    old.insertBefore(document.adoptNode(child), before);
    added += 1;
  }
  return added;
}

const isAtEnd = () => scroller.scrollTop + scroller.clientHeight >= scroller.scrollHeight - 80;
function toEnd() {
  // A form is read from its top.
  const call = scroller.matches("[data-scrolls]") && scroller.querySelector("li.call");
  const top = call ? scroller.scrollTop + call.getBoundingClientRect().top - scroller.getBoundingClientRect().top - 16 : Infinity;
  scroller.scrollTo({ top: Math.min(top, scroller.scrollHeight) });
}

// Takes over what is new on a page. What follows the end of a log that scrolls by itself stays at its end.
function update(page) {
  const inPage = scroller === document.documentElement;
  const follows = isAtEnd() && (!inPage || scroller.scrollTop > 0);
  const arrived = {};
  for (const list of document.querySelectorAll("[data-live=list]")) {
    const fresh = page.getElementById(list.id);
    // What lies inside a child that stays is looked at below.
    if (fresh) arrived[list.id] = mergeList(list, fresh.cloneNode(true));
  }
  for (const region of document.querySelectorAll("[data-live=replace]")) {
    const fresh = page.getElementById(region.id);
    if (fresh) replaceContent(region, fresh);
  }
  document.title = page.title;
  const told = [];
  // Screen readers tell the entries of a log themselves.
  if (arrived.timeline && inPage) told.push(arrived.timeline === 1 ? "1 new event" : `${arrived.timeline} new events`);
  if (arrived.waiting) told.push("a call waits for an answer");
  if (told.length) news.textContent = `${told.join("; ")}.`;
  document.dispatchEvent(new Event("updated"));
  if (follows && (arrived.timeline || !inPage)) toEnd();
}

// Takes over a session's page. Of two that were on their way at once, the older one may come last: it is passed over.
// If it comes again, the session is another one of the same name.
let older = 0;
function take(page) {
  const { version, took } = page.getElementById("main").dataset;
  older = Number(version) < Number(main.dataset.version) ? older + 1 : 0;
  if (older === 1) return;
  update(page);
  Object.assign(main.dataset, { version, took });
}

async function followSession(url) {
  let failures = 0;
  for (;;) {
    await shown();
    // After a failure the server answers at once, with all that there is.
    const { status, page } = await fetchPage(`${url}?seen=${failures ? 0 : main.dataset.version}`);
    if (status === 200 && page) take(page);
    if (status === 404) return;
    signedOut.hidden = status !== 401;
    failures = status === 200 || status === 204 ? 0 : failures + 1;
    offline.hidden = failures < 2 || status === 401;
    // The longer a look takes the server, the fewer there are while a run logs much.
    await pause(failures ? Math.min(2 ** failures / 2, 15) : Math.min(0.2 + 2 * Number(main.dataset.took), 5));
  }
}

async function pollInbox(seconds) {
  let failures = 0;
  for (;;) {
    await pause(seconds * Math.min(1 + failures, 6));
    await shown();
    const query = new URLSearchParams(location.search);
    query.delete("said");
    query.delete("at");
    const { status, page } = await fetchPage(`${location.pathname}?${query}`);
    if (status === 200 && page) update(page);
    failures = status === 200 ? 0 : failures + 1;
    offline.hidden = failures < 2;
  }
}

// Times are written in UTC; they are shown as the reader's clock has them, and in UTC where the pointer rests.
const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
function localize() {
  for (const time of document.querySelectorAll("time[data-local]")) {
    const date = new Date(time.dateTime);
    if (Number.isNaN(date.getTime())) continue;
    if (!time.title) time.title = time.textContent;
    time.textContent = local.format(date);
    delete time.dataset.local;
  }
}

function tellAge() {
  for (const time of document.querySelectorAll("time[data-ago]")) {
    const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
    if (Number.isNaN(seconds)) continue;
    const size = Math.abs(seconds);
    const [unit, length] = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]].find(([, length]) => size >= length) || ["s", 1];
    const count = `${Math.floor(size / length)} ${unit}`;
    time.textContent = size < 5 ? "now" : seconds > 0 ? `${count} ago` : `in ${count}`;
    time.closest("[data-deadline]")?.classList.toggle("is-over", seconds > 0);
  }
}

// A second click while the first one is on its way does nothing; the server would take only one of them, too.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  if (form.classList.contains("sent")) event.preventDefault();
  form.classList.add("sent");
});
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form.sent")) form.classList.remove("sent");
});

// What a form came to is said once, not again at each reload.
if (new URLSearchParams(location.search).has("said")) {
  const query = new URLSearchParams(location.search);
  query.delete("said");
  query.delete("at");
  history.replaceState(null, "", location.pathname + (query.size ? `?${query}` : "") + location.hash);
}
const wrong = document.querySelector("[aria-invalid=true]");
if (wrong) (wrong.matches("fieldset") ? wrong.querySelector("input") : wrong).focus();

localize();
document.addEventListener("updated", localize);
setInterval(tellAge, 10000);
if (main.dataset.liveUrl) followSession(main.dataset.liveUrl);
if (main.dataset.poll) pollInbox(Number(main.dataset.poll));
