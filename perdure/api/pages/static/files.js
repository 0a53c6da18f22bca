// Files of a message in the chat: chosen, dropped or pasted, and named with their sizes before they are sent.
"use strict";

const picker = document.getElementById("files");
const chosen = document.getElementById("chosen");
const mostBytes = picker ? Number(picker.dataset.most) : 0;

// What the next message takes with it. A picker alone would forget the files of the time before.
let held = [];

const bytesOf = (files) => files.reduce((sum, file) => sum + file.size, 0);
const inWords = (bytes) => (bytes < 1e4 ? `${bytes} bytes` : bytes < 1e6 ? `${Math.round(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(2)} MB`);

function holdFiles(files) {
  held = files;
  const given = new DataTransfer();
  for (const file of files) given.items.add(file);
  picker.files = given.files;
  chosen.hidden = !files.length;
  chosen.querySelector("ul").replaceChildren(...files.map(chosenFile));
  chosen.querySelector("p").textContent = `${inWords(bytesOf(files))} of ${inWords(mostBytes)}`;
}

function chosenFile(file) {
  const entry = document.getElementById("file").content.firstElementChild.cloneNode(true);
  entry.querySelector(".name").textContent = file.name;
  entry.querySelector(".quiet").textContent = inWords(file.size);
  const remove = entry.querySelector("button");
  remove.ariaLabel = `Remove ${file.name}`;
  remove.addEventListener("click", () => {
    holdFiles(held.filter((one) => one !== file));
    document.dispatchEvent(new Event("files-changed"));
  });
  return entry;
}

// Those that do not fit are told, and left out.
function addFiles(files) {
  const fitting = [...held];
  const refused = [];
  for (const file of files) {
    if (bytesOf(fitting) + file.size <= mostBytes) fitting.push(file);
    else refused.push(`${file.name} (${inWords(file.size)})`);
  }
  holdFiles(fitting);
  document.dispatchEvent(new CustomEvent("files-changed", { detail: refused }));
}

if (picker) {
  picker.addEventListener("change", () => addFiles([...picker.files]));
  const target = document.getElementById("main");
  target.addEventListener("dragover", (event) => event.dataTransfer.types.includes("Files") && event.preventDefault());
  target.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    addFiles([...event.dataTransfer.files]);
  });
  document.getElementById("message").addEventListener("paste", (event) => {
    // Office programs put a picture beside the text that was copied.
    if (!event.clipboardData.files.length || event.clipboardData.types.includes("text/plain")) return;
    event.preventDefault();
    addFiles([...event.clipboardData.files]);
  });
}
