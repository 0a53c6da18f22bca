// The inbox by keyboard. Its page lists the keys, and turns them off.
"use strict";

const used = document.getElementById("keys-used");
const KEY = "perdure-keys";

// A browser may keep nothing.
function kept(value) {
  try {
    if (value !== undefined) localStorage.setItem(KEY, value);
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

const cards = () => [...document.querySelectorAll("#waiting > li.call")];
const current = () => document.activeElement?.closest("#waiting > li.call");

function go(step) {
  const all = cards();
  const at = all.indexOf(current());
  const card = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + step, 0), all.length - 1)];
  if (!card) return;
  card.tabIndex = -1;
  card.focus({ preventScroll: true });
  card.scrollIntoView({ block: "nearest" });
}

const within = (selector) => current()?.querySelector(selector);
const deeds = {
  j: () => go(1),
  k: () => go(-1),
  x: () => within(".select input")?.click(),
  // They lead to the button, and Enter presses it: a slip of one key answers nothing.
  a: () => within("button.go")?.focus(),
  r: () => within("button.no")?.focus(),
  e: () => within(".answer input:not([type=hidden]), .answer textarea, .answer select")?.focus(),
  o: () => within(".link a")?.click(),
  "?": () => {
    const help = document.getElementById("keys");
    help.open = !help.open;
    if (help.open) help.querySelector("summary").focus();
  },
};

used.checked = kept() !== "off";
used.addEventListener("change", () => kept(used.checked ? "on" : "off"));
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("textarea, select, input:not([type=checkbox]):not([type=radio])");
  if (event.key === "Escape" && current()) return go(0);
  const deed = deeds[event.key];
  if (!deed || !used.checked || typing || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  deed();
});

// What is chosen is counted at the button.
const chosen = document.getElementById("chosen");
function count() {
  const number = document.querySelectorAll(".select input:checked").length;
  chosen.textContent = number ? `Answer ${number} together` : "Answer the selected together";
}
document.addEventListener("change", count);
document.addEventListener("updated", count);
count();
