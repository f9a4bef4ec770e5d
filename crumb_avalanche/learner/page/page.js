"use strict";
// Teach and ask the learner of this server. Everything that people write is shown with textContent only.

const token = new URLSearchParams(location.search).get("token");
const FRAME_PAUSE = 200; // milliseconds between frames of a lesson
const ASK_EVERY = 80; // milliseconds between questions about the camera picture, if the answers come as fast
const MOST_FRAMES = 150; // of a lesson
const MOST_BYTES = 15e6; // of a lesson by camera
const MOST_SENT = 19e6; // bytes of a lesson; the server takes 20 MB with what the form adds
const SHORT_SIDE = 512; // pixels of a picture that is sent

const on = (kind, element, action) => element.addEventListener(kind, action);
const at = (id) => document.getElementById(id);
const pause = (time) => new Promise((done) => setTimeout(done, time));
const release = () => lesson && (lesson.holding = false);
const percent = (share) => `${Math.round(100 * share)} %`;
const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

let stream = null; // of the camera
let photos = []; // {blob, caption}
let classes = [];
let lesson = null; // while the button is held: {holding}
let questions = 0; // answers to earlier ones are dropped

function made(kind, text, attributes = {}) {
  const element = document.createElement(kind);
  element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function say(text, wrong = "") {
  at("note").textContent = text;
  at("error").textContent = wrong;
}

const fail = (error) => say("", error.message || String(error));

async function call(method, path, parameters = {}, body = undefined) {
  const query = new URLSearchParams(parameters).toString();
  let response;
  try {
    response = await fetch(query ? `${path}?${query}` : path, { method, body, headers: { "X-Crumb-Token": token } });
  } catch {
    throw new Error("The server does not answer. Is crumb serve still running?");
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  if (said.near && confirm(`There is a class ${said.near} already. Make another class of nearly the same name?`))
    return call(method, path, { ...parameters, new_class: true }, body);
  if (said.near) throw new Error(`Nothing was changed. Write ${said.near} for the class that there is.`);
  throw new Error(said.error || `The server failed (${response.status}).`);
}

// Pictures

async function picture(source, width, height) {
  if (!width) throw new Error("There is no picture yet.");
  const scale = Math.min(1, SHORT_SIDE / Math.min(width, height));
  const sides = [width, height].map((side) => Math.max(1, Math.round(side * scale)));
  const canvas = made("canvas", "", { width: sides[0], height: sides[1] });
  canvas.getContext("2d").drawImage(source, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.9));
  if (!blob) throw new Error("The browser cannot encode this picture.");
  return { canvas, blob };
}

const frame = () => picture(at("video"), at("video").videoWidth, at("video").videoHeight);

async function startCamera() {
  if (!navigator.mediaDevices) throw new Error("Browsers give the camera to https pages and to this computer only.");
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: { ideal: "environment" } } });
  } catch (error) {
    const reasons = {
      NotAllowedError: "The camera is not allowed. Allow it beside the page's address, or choose photos.",
      NotFoundError: "No camera was found. Connect one, or choose photos.",
      NotReadableError: "Another program uses the camera. Close it, or choose photos.",
    };
    throw new Error(reasons[error.name] || `The camera cannot be used: ${error.message}`);
  }
  photos = [];
  stream.getVideoTracks()[0].addEventListener("ended", stopCamera);
  at("video").srcObject = stream;
  refresh();
}

function stopCamera() {
  if (stream) stream.getTracks().forEach((track) => track.stop());
  release();
  stream = null;
  at("video").srcObject = null;
  refresh();
}

async function takePhotos(files) {
  const [taken, figures, unread] = [[], [], []];
  if (!files.length) throw new Error("No file was dropped. Save the picture first, and drop its file.");
  const many = `${files.length} files are too many: choose at most ${MOST_FRAMES} at a time.`;
  if (files.length > MOST_FRAMES) throw new Error(many);
  for (const file of [...files]) {
    say(`Reading ${file.name} …`);
    const bitmap = file.type.startsWith("image/") && (await createImageBitmap(file).catch(() => null));
    if (!bitmap) {
      unread.push(file.name);
      continue;
    }
    const { canvas, blob } = await picture(bitmap, bitmap.width, bitmap.height);
    bitmap.close();
    const [figure, caption] = [made("figure", ""), made("figcaption", "")];
    canvas.role = "img";
    canvas.ariaLabel = file.name;
    figure.append(canvas, caption);
    figures.push(figure);
    taken.push({ blob, caption });
  }
  const some = unread.slice(0, 3).join(", ") + (unread.length > 3 ? ` and ${unread.length - 3} more` : "");
  say("", some && `Not read: ${some}. Choose photos, such as JPEG or PNG files, and no folders or videos.`);
  if (!taken.length) return;
  stopCamera();
  photos = taken;
  at("photos").replaceChildren(...figures);
  refresh();
  await askPhotos();
}

// Answers

const ask = async (blob) => (await call("POST", "predict", {}, blob)).json();

function show(answer) {
  const label = answer.known ? answer.label : "I don’t know this";
  const likely = answer.runners_up.filter((one) => one.confidence >= 0.005).slice(0, 2);
  const next = likely.map((one) => `${one.label} ${percent(one.confidence)}`);
  if (at("label").textContent !== label) at("label").textContent = label; // announced when it changes
  at("label").classList.toggle("unknown", !answer.known);
  at("sure").value = answer.confidence;
  const sure = (answer.known ? "" : `nearest: ${answer.label} `) + percent(answer.confidence);
  at("details").textContent = [sure, ...next].join(" · ");
  at("answer").hidden = false;
}

async function askPhotos() {
  const mine = ++questions;
  for (const { blob, caption } of classes.length ? photos : []) {
    const answer = await ask(blob);
    if (mine !== questions) return;
    if (photos.length === 1) show(answer);
    else caption.textContent = answer.known ? `${answer.label} ${percent(answer.confidence)}` : "I don’t know this";
  }
}

async function watch() {
  for (let failed = false, next = 0; ; await pause(failed ? 2000 : Math.max(0, next - performance.now()))) {
    next = performance.now() + ASK_EVERY;
    if (!stream || !classes.length || document.hidden || !at("video").videoWidth) continue;
    try {
      const [mine, { blob }] = [questions, await frame()];
      const answer = await ask(blob);
      if (stream && classes.length && mine === questions) show(answer);
      if (failed) say("");
      failed = false;
    } catch (error) {
      fail(error);
      at("answer").hidden = failed = true; // it would look like one for the present picture
    }
  }
}

// Lessons

async function teach() {
  const name = at("name").value.trim();
  if (lesson) return;
  if (!stream && !photos.length) throw new Error("Use the camera or choose photos first.");
  if (!name) at("name").focus();
  if (!name) throw new Error("Write what you show first.");
  const blobs = stream ? await hold() : photos.map((photo) => photo.blob);
  const size = blobs.reduce((sum, blob) => sum + blob.size, 0);
  const sent = `${counted(blobs.length, "photo")} make ${Math.ceil(size / 1e6)} MB`;
  if (size > MOST_SENT) throw new Error(`${sent}, but a lesson has at most ${MOST_SENT / 1e6} MB: choose fewer at a time.`);
  const form = new FormData();
  blobs.forEach((blob, number) => form.append("image", blob, `${number}.jpg`));
  say(`Learning ${counted(blobs.length, "image")} of ${name} …`);
  const done = await (await call("POST", "teach", { label: name }, form)).json();
  await load([`Learned ${counted(blobs.length, "image")} of ${name}.`, ...done.notes].join(" "));
}

async function hold() {
  const mine = (lesson = { holding: true });
  const blobs = [];
  refresh();
  try {
    for (let bytes = 0; blobs.length < MOST_FRAMES && bytes < MOST_BYTES; await pause(FRAME_PAUSE)) {
      if (blobs.length && !mine.holding) break;
      const { blob } = await frame();
      blobs.push(blob);
      bytes += blob.size;
      at("how").textContent = counted(blobs.length, "image");
    }
  } finally {
    lesson = null;
    refresh();
  }
  return blobs;
}

// What it knows

const buttons = () => [...at("classes").querySelectorAll("button")];

async function load(news = "") {
  const known = await (await call("GET", "classes")).json();
  classes = known.classes;
  const rows = classes.map((one) => {
    const row = made("li", "");
    const changes = made("span", "");
    const count = made("span", counted(one.images, "image"), { class: "faint" });
    row.append(made("span", one.name, { class: "class" }), count, changes);
    for (const [text, action] of [["Rename", renameClass], ["Forget", forgetClass]]) {
      const press = made("button", text, { type: "button", "aria-label": `${text} ${one.name}` });
      on("click", press, () => act(() => action(one.name)));
      changes.append(press);
    }
    return row;
  });
  const focused = buttons().indexOf(document.activeElement);
  at("classes").replaceChildren(...rows);
  if (focused >= 0) (buttons()[focused] || at("name")).focus();
  at("names").replaceChildren(...classes.map((one) => made("option", "", { value: one.name })));
  const used = `${percent(known.bytes / known.budget_bytes)} of its memory is used.`;
  const more = (classes.length > 1 ? "" : "a second class, and then ") + counted(known.clips_missing, "more object");
  const missing = `To say “I don’t know this” more surely, it needs ${more} of these classes.`;
  at("size").textContent = classes.length ? used + (known.clips_missing ? ` ${missing}` : "") : "";
  at("undo").disabled = !known.can_undo;
  if (news) say(news);
  refresh();
  await askPhotos();
}

async function renameClass(old) {
  const name = (prompt(`New name of ${old}:`, old) || "").trim();
  if (!name || name === old) return;
  await call("POST", "rename", { old, new: name });
  await load(`Renamed ${old} to ${name}.`);
}

async function forgetClass(name) {
  if (!confirm(`Forget ${name}? This cannot be undone.`)) return;
  const { remains } = await (await call("POST", "forget", { name })).json();
  await load(`Forgot ${name}.${remains ? ` What remains: ${remains}.` : ""}`);
}

async function undo() {
  const { images } = await (await call("POST", "undo")).json();
  const what = Object.entries(images).map(([name, count]) => `${name}, ${counted(count, "image")}`);
  await load(`Took back the last lesson: ${what.join("; ")}.`);
}

async function download() {
  const response = await call("GET", "download");
  const name = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition"));
  const address = URL.createObjectURL(await response.blob());
  made("a", "", { href: address, download: name ? name[1] : "learner.safetensors" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60e3);
}

function refresh() {
  const chosen = !stream && photos.length > 0;
  at("video").hidden = !stream;
  at("photos").hidden = !chosen;
  at("photos").classList.toggle("one", photos.length === 1);
  at("empty").hidden = Boolean(stream) || chosen;
  at("answer").hidden ||= !classes.length || (!stream && photos.length !== 1);
  at("nothing").hidden = classes.length > 0;
  at("camera").textContent = stream ? "Stop camera" : "Use camera";
  at("camera").classList.toggle("first", !stream && !chosen);
  at("teach").setAttribute("aria-pressed", String(Boolean(lesson)));
  at("teach").textContent = lesson ? "Release to learn" : chosen ? `Teach ${counted(photos.length, "photo")}` : "Hold to teach";
  at("how").textContent = chosen ? "" : "Move the object while you hold, so that it is seen from all sides.";
}

// What people do

const act = (action) => Promise.resolve(say("")).then(() => action()).catch(fail);

on("click", at("camera"), () => act(stream ? stopCamera : startCamera));
on("click", at("choose"), () => at("files").click());
on("change", at("files"), () => act(() => takePhotos(at("files").files)).then(() => (at("files").value = "")));
on("click", at("undo"), () => act(undo));
on("click", at("download"), () => act(download));
on("keydown", at("name"), (event) => event.key === "Enter" && at("teach").focus());

const button = at("teach");
on("pointerdown", button, (event) => {
  if (event.button !== 0) return;
  button.setPointerCapture(event.pointerId);
  act(teach);
});
["pointerup", "pointercancel", "lostpointercapture", "blur"].forEach((kind) => on(kind, button, release));
on("contextmenu", button, (event) => event.preventDefault()); // a long press on a phone
for (const [kind, action] of [["keydown", () => act(teach)], ["keyup", release]]) {
  on(kind, button, (event) => {
    if (event.key !== " " && event.key !== "Enter") return;
    event.preventDefault(); // no click besides
    if (!event.repeat) action();
  });
}
// Screen readers and switches click without a pointer: the first click starts, the second ends.
on("click", button, (event) => event.detail === 0 && (lesson ? release() : act(teach)));
// Another tab may have taught meanwhile.
on("visibilitychange", document, () => (document.hidden ? release() : load().catch(fail)));

for (const kind of ["dragover", "dragleave", "drop"]) {
  on(kind, document, (event) => {
    event.preventDefault();
    at("stage").classList.toggle("over", kind === "dragover");
    if (kind === "drop") act(() => takePhotos(event.dataTransfer.files));
  });
}

act(load);
watch();
