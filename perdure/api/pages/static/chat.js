// The chat: shows what models are writing, and sends without leaving the page. Behind inbox.js, which brings the news.
"use strict";

const writing = document.getElementById("writing");
const composer = document.getElementById("composer");
const box = document.getElementById("message");
const unsent = document.getElementById("unsent");
const draft = `draft ${location.pathname}`;

const keyed = (list, key) => [...list.children].find((child) => child.dataset.key === key);

// Pieces of an answer. They are in no log: the entry of the whole answer, which has the same key, takes their place.
function write({ id, author, branch, content, customMetadata }) {
  if (keyed(document.getElementById("timeline"), id)) return;
  const follows = isAtEnd();
  const attempt = Number((customMetadata || {})["perdure:attempt"] || 1);
  let entry = keyed(writing, id);
  if (entry && Number(entry.dataset.attempt) < attempt) {
    entry.remove();
    entry = null;
  }
  if (!entry) {
    entry = document.getElementById("piece").content.firstElementChild.cloneNode(true);
    Object.assign(entry.dataset, { key: id, attempt });
    entry.querySelector(".name").textContent = branch ? `${author} ${branch}` : author;
    writing.append(entry);
  }
  for (const { text, thought } of (content && content.parts) || []) {
    if (!text) continue;
    const thinks = entry.querySelector(".step");
    if (thought) thinks.hidden = false;
    (thought ? thinks.lastElementChild : entry.querySelector(".spoken")).append(text);
  }
  entry.dataset.at = Date.now();
  if (follows) toEnd();
}

// Pieces go when their entry is there, and when nothing runs any more: then no entry will come.
function clear() {
  const timeline = document.getElementById("timeline");
  const runs = document.querySelector("#status .is-running");
  for (const entry of [...writing.children]) {
    const old = Date.now() - Number(entry.dataset.at) > 3000;
    if (keyed(timeline, entry.dataset.key) || (!runs && old)) entry.remove();
  }
  // News may be older than the newest pieces.
  if (!runs && writing.children.length) setTimeout(clear, 3100);
}

let stream = null;
function listen() {
  if (stream || document.hidden) return;
  stream = new EventSource(`${main.dataset.streamUrl}?partial=true&since=${main.dataset.events}`);
  // An answer that is being written comes again, from its beginning.
  stream.onopen = () => writing.replaceChildren();
  stream.onmessage = ({ data }) => {
    const event = JSON.parse(data);
    if (event.partial) write(event);
  };
  stream.onerror = () => {
    if (!stream || stream.readyState !== EventSource.CLOSED) return;
    stream = null;
    setTimeout(listen, 3000);
  };
}

// A page in the background keeps no connection: a browser has but six for one server.
document.addEventListener("visibilitychange", () => {
  if (!main.dataset.streamUrl) return;
  if (document.hidden && stream) {
    stream.close();
    stream = null;
  }
  listen();
});

const why = (status, page) => {
  if (status === 0) return "The server cannot be reached.";
  if (status === 401) return "You are signed out: sign in in another window.";
  const detail = page && page.getElementById("detail");
  return detail ? detail.textContent : `The server refused it (status ${status}).`;
};

function freshId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Messages that are on their way, oldest first. The box is free meanwhile: who types goes on.
const outgoing = [];

const unsaid = () => [...outgoing.map((fields) => fields.get("message")), box.value].filter(Boolean).join("\n");

// What a reload finds in the box.
function keepDraft() {
  const text = unsaid();
  if (text) sessionStorage.setItem(draft, text);
  else sessionStorage.removeItem(draft);
}

function sendMessage() {
  outgoing.push(new FormData(composer));
  box.value = "";
  holdFiles([]);
  composer.elements.request_id.value = freshId();
  unsent.hidden = true;
  keepDraft();
  if (outgoing.length === 1) sendOutgoing();
}

async function sendOutgoing() {
  composer.classList.add("sent");
  while (outgoing.length) {
    const { status, page } = await fetchPage(composer.action, outgoing[0]);
    if (status !== 200 || !page) {
      takeBack(why(status, page));
      break;
    }
    outgoing.shift();
    keepDraft();
    document.getElementById("said").replaceChildren();
    toEnd();
    take(page);
  }
  composer.classList.remove("sent");
}

// Sent again as it is, a message is the same message; with more in it, it is another one.
function takeBack(reason) {
  if (outgoing.length === 1 && !box.value && !held.length) composer.elements.request_id.value = outgoing[0].get("request_id");
  box.value = unsaid();
  holdFiles([...outgoing.flatMap((fields) => fields.getAll("file")).filter((file) => file.name), ...held]);
  outgoing.length = 0;
  keepDraft();
  unsent.textContent = `The message was not sent. ${reason} It is kept here; send it again.`;
  unsent.hidden = false;
}

async function sendForm(form, button) {
  const { status, page } = await fetchPage(form.action, new URLSearchParams(new FormData(form, button)));
  const card = form.closest("li.call");
  if (status === 422 && page && card) {
    const fresh = keyed(page.getElementById("waiting"), card.dataset.key);
    if (fresh) {
      card.replaceWith(document.adoptNode(fresh));
      const wrong = fresh.querySelector("[aria-invalid=true]");
      if (wrong) (wrong.matches("fieldset") ? wrong.querySelector("input") : wrong).focus();
      return;
    }
  }
  form.querySelector(".problems")?.remove();
  if (status !== 200 || !page) {
    const problem = document.createElement("p");
    problem.className = "problems";
    problem.setAttribute("role", "alert");
    problem.textContent = `That was not taken. ${why(status, page)}`;
    form.prepend(problem);
    return;
  }
  // What is in use is left alone by news.
  form.reset();
  (box && !matchMedia("(pointer: coarse)").matches ? box : main).focus({ preventScroll: true });
  const told = page.getElementById("said");
  news.textContent = told.textContent.trim();
  document.getElementById("said").replaceChildren(...[...told.childNodes].map((node) => document.adoptNode(node)));
  take(page);
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (event.defaultPrevented || !main.dataset.liveUrl || form.method !== "post" || !main.contains(form)) return;
  event.preventDefault();
  await sendForm(form, event.submitter);
  form.classList.remove("sent");
});

async function pollSessions(url) {
  for (;;) {
    await pause(10);
    await shown();
    const { status, page } = await fetchPage(url);
    if (status !== 200 || !page) continue;
    const list = document.getElementById("sessions");
    mergeList(list, page.getElementById("sessions").cloneNode(true));
    for (const region of [...list.querySelectorAll("[data-live]"), document.getElementById("own-count")]) {
      const fresh = page.getElementById(region.id);
      if (fresh) replaceContent(region, fresh);
    }
  }
}

if (box) {
  // Who was faster than this script has begun already.
  box.value ||= sessionStorage.getItem(draft) || "";
  keepDraft();
  // Another text, or other files, are another message, whatever became of the one before.
  const isAnother = () => {
    if (!unsent.hidden) composer.elements.request_id.value = freshId();
    unsent.hidden = true;
  };
  box.addEventListener("input", () => {
    keepDraft();
    isAnother();
  });
  document.addEventListener("files-changed", ({ detail }) => {
    isAnother();
    if (detail && detail.length) {
      unsent.textContent = `Too large: ${detail.join(", ")}. The files of a message may have ${inWords(mostBytes)} together.`;
      unsent.hidden = false;
    }
    if (!matchMedia("(pointer: coarse)").matches) box.focus();
  });
  if (picker.files.length && !held.length) addFiles([...picker.files]);
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    composer.requestSubmit();
  });
  // Other forms are sent once at a time; messages queue.
  composer.addEventListener("submit", (event) => {
    if (!main.dataset.liveUrl) return;
    event.preventDefault();
    event.stopPropagation();
    if (box.value.trim() || held.length) sendMessage();
  });
  if (!document.querySelector("[aria-invalid=true]") && !matchMedia("(pointer: coarse)").matches) box.focus();
}
const side = document.querySelector("details.side");
if (side && matchMedia("(max-width: 60rem)").matches) side.open = false;
document.addEventListener("updated", () => writing && clear());
if (main.dataset.streamUrl) listen();
if (document.getElementById("sessions")) pollSessions(main.dataset.sessions);
if (scroller !== document.documentElement) toEnd();
