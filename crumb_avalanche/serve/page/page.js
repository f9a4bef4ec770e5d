"use strict";
// Teach and ask the learner of this server. Everything that people write is shown with textContent only.

const TEXTS = /* texts.json */; // by language and name
const token = new URLSearchParams(location.search).get("token");
const LEAD = 3; // seconds before a lesson by camera begins
const SECONDS = 10; // of a lesson by camera
const SECONDS_TO_CHECK = 4; // of the empty scene, or of something that was not taught
const FRAME_PAUSE = 200; // milliseconds between frames of a lesson
const ASK_EVERY = 80; // milliseconds between questions about the camera picture, if the answers come as fast
const FEW_FRAMES = 20; // of a short video
const MOST_FRAMES = 150; // of a lesson
const MOST_ASKED = 8; // frames of a video that are asked about
const MOST_SENT = 19e6; // bytes of a lesson; the server takes 20 MB with what the form adds
const SHORT_SIDE = 512; // pixels of a picture that is sent
const STOP_AFTER = 500; // milliseconds of a recording in which a second press does not end it
const SIGN_AFTER = 300; // milliseconds of an action until its button shows that it works
const SPEAK_EVERY = 1000; // milliseconds between texts of the progress, which are read out
const STEADY = 1000; // milliseconds of answers that decide together what is shown
const TESTED = 3; // lessons of a class, all recognised before they were learned, that make it taught enough

const REFUSALS = { 403: "no_token", 413: "too_much", 501: "no_extra", 503: "busy", 507: "not_saved" };

const on = (kind, element, action) => element.addEventListener(kind, action);
const at = (id) => document.getElementById(id);
const pause = (time) => new Promise((done) => setTimeout(done, time));
const percent = (share) => `${Math.round(100 * share)} %`;

// Texts, all of which stand in texts.json

// What was chosen on the page; a browser may keep nothing.
function keptLanguage(chosen = undefined) {
  try {
    if (chosen) localStorage.setItem("language", chosen);
    return localStorage.getItem("language");
  } catch {
    return null;
  }
}

const inAddress = new URLSearchParams(location.search).get("lang");
const languages = [inAddress, keptLanguage(), ...navigator.languages].map((one) => one?.slice(0, 2));
let language = languages.find((one) => one in TEXTS) || "en";

// The text of a name with its values, or one of two by a count: the first is for 1.
function text(name, values = {}, count = undefined) {
  const found = TEXTS[language][name] ?? TEXTS.en[name];
  const template = Array.isArray(found) ? found[count === 1 ? 0 : 1] : found;
  return template.replace(/\{(\w+)\}/g, (_, key) => values[key]);
}

// A share as people say it, as the function frequency of system/words.py does.
function often(share) {
  if (share < 0.02) return text("seldom");
  if (share >= 0.95) return text("nearly_all");
  if (share > 0.5) return text("often", { n: Math.round(10 * share), all: 10 });
  return text("often", { n: 1, all: Math.round(1 / share) });
}

const counted = (count, noun) => text(noun, { n: count }, count);

function translate() {
  document.documentElement.lang = language;
  document.title = text("page_title");
  at("count").dataset.lead = text("get_ready");
  for (const element of document.querySelectorAll("[data-text]")) element.textContent = text(element.dataset.text);
  for (const element of document.querySelectorAll("[data-label]")) element.ariaLabel = text(element.dataset.label);
  for (const element of document.querySelectorAll("[data-example]")) element.placeholder = text(element.dataset.example);
}

let stream = null; // of the camera
let chosen = []; // photos and videos: {name, blobs, video, caption}
let known = { classes: [], learning: null }; // what the server knows
let lessons = [];
let reading = false; // while files are read
let recording = null; // while pictures of the camera are taken: {button, stop}
let questions = 0; // answers to earlier ones are dropped
let recent = []; // answers about the camera picture of the last second: {time, answer}
let steady = null; // the answer that is shown of them
let undoable = null; // the last change, while it can be taken back: {place, said, version}
let spoken = -SPEAK_EVERY; // when the progress was last said
let away = false; // while the server does not answer
const openQuestions = new Map(); // by cards, what shows their question again
const running = new Map(); // places by the buttons whose actions run
const fooled = new Map(); // of each thing that was not taught, whether it was taken for a class
const notCounted = new Set(); // things of which people said that they were taught
const unfolded = new Set(); // names of classes whose lessons are listed
const pictures = new Map(); // addresses of pictures of lessons

function made(kind, content, attributes = {}, children = []) {
  const element = document.createElement(kind);
  element.textContent = content;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// What is said stands in the card of the button that was pressed

function press(place, name, action, about = "") {
  const button = made("button", name, { type: "button", "aria-label": `${name} ${about}`.trim() });
  on("click", button, () => act(place, action, button));
  return button;
}

const newsOf = (place) => at(`${place}-news`);
const rowOf = (place, choices) => made("div", "", { class: "row" }, choices.map(([name, action]) => press(place, name, action)));

// Says something in a card. The offer to take the last change back stays below it, but not below a question.
function say(place, said, choices = [], kind = "") {
  openQuestions.delete(place);
  const news = newsOf(place);
  const focused = news.contains(document.activeElement);
  const parts = said ? [made("p", said, { class: kind })] : [];
  if (choices.length) parts.push(rowOf(place, choices));
  else if (undoable?.place === place) parts.push(offered(undoable));
  news.ariaLive = kind === "wrong" ? "assertive" : "polite";
  news.replaceChildren(...parts);
  if (focused) (news.querySelector("button") || news).focus({ preventScroll: true });
}

// Asks in a card, where a lesson may wait for the answer: what is said stays until a choice is pressed or the card is used
// again, and follows the language.
function sayUntilPressed(place, said, choices, kind = "") {
  const pressed = (action) => () => {
    openQuestions.delete(place);
    return action();
  };
  const show = () => {
    say(place, said(), choices.map(([name, action]) => [name(), pressed(action)]), kind);
    openQuestions.set(place, show);
  };
  show();
}

// An error that is said already is not announced again.
function fail(place, error) {
  const said = error.message || String(error);
  if (newsOf(place).textContent !== said) say(place, said, [], "wrong");
}

// Does what a button is for; a second press meanwhile does nothing. The row of a question or an offer is pressed once:
// what follows replaces it.
async function act(place, action, button = null) {
  const row = newsOf(place).contains(button);
  const pressed = row ? button.parentElement : button;
  if (running.has(pressed) || pressed?.ariaBusy) return;
  if (row) pressed.ariaBusy = "true";
  else say(place, "");
  hold(button, place);
  try {
    await action();
  } catch (error) {
    fail(place, error);
  } finally {
    release(button);
  }
}

function hold(button, place) {
  if (!button) return;
  running.set(button, place);
  setTimeout(() => running.has(button) && (button.ariaBusy = "true"), SIGN_AFTER);
}

function release(button) {
  if (running.delete(button)) button.ariaBusy = null;
}

// Asks in a card; gives the key of the answer, one of the names. Until then the buttons that led to the question can be
// pressed again.
function asked(place, question, names) {
  const waiting = [...running].filter(([, its]) => its === place).map(([button]) => button);
  waiting.forEach(release);
  const choices = (done) => Object.entries(names).map(([key, name]) => [name, () => done(key)]);
  const answer = new Promise((done) => sayUntilPressed(place, question, choices(done)));
  return answer.finally(() => waiting.forEach((button) => hold(button, place)));
}

// Shows a change that was made, and offers to take it back; what was offered before cannot be taken back any more.
async function changed(place, said, version) {
  await load().catch((error) => fail("look", error)); // the change was made all the same
  undoable = known.version <= version ? { place, said, version } : null;
  const free = ["teach", "test", "known"].filter((other) => !openQuestions.has(other));
  free.forEach((other) => say(other, ""));
  if (!undoable && free.includes(place)) say(place, said());
}

function offered({ place, said, version }) {
  const undo = async () => {
    await change(place, "revert", { version });
    await load(place, text("undone"));
  };
  return made("div", "", { class: "offer" }, [made("p", said()), rowOf(place, [[text("undo"), undo]])]);
}

// Once something else is changed, the offer is gone; what was said stays.
function forgetUndo() {
  if (!undoable || undoable.version === known.version) return;
  const news = newsOf(undoable.place);
  const row = news.querySelector(".offer > .row");
  if (row?.contains(document.activeElement)) news.focus({ preventScroll: true });
  row?.remove();
  undoable = null;
}

async function call(method, path, parameters = {}, body = undefined) {
  const query = new URLSearchParams(parameters).toString();
  let response;
  try {
    response = await fetch(query ? `${path}?${query}` : path, { method, body, headers: { "X-Crumb-Token": token } });
  } catch {
    throw Object.assign(new Error(text("no_answer")), { away: true });
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  throw Object.assign(new Error(refusal(path, response.status, said.error || "")), { near: said.near });
}

// Why the server refused a request, in words of the page where the API speaks to programs.
function refusal(path, status, error) {
  if (status === 400 && path === "revert") return text("not_undoable");
  if (status === 400 && path === "remove") return text("not_removed");
  if (status === 400 && path === "open") return text("not_opened");
  if (status === 400 && /^(class name|(label|new|old) is )|needs \?(new|label)=/.test(error)) return text("bad_name");
  if (status === 409 && error.startsWith("nothing was taught")) return text("none_taught");
  if (status in REFUSALS) return text(REFUSALS[status]);
  return (status !== 500 && error) || text("failed", { status });
}

// Changes what the server knows. Where a name is nearly that of a class, people say which one is meant; decided gets
// the parameters that follow from the answer.
async function change(place, path, parameters, body = undefined, decided = () => {}) {
  try {
    return await (await call("POST", path, parameters, body)).json();
  } catch (error) {
    if (!error.near) throw error;
    if (known.learning?.own) known.learning = null;
    refresh(); // no progress above the question
    const names = {
      same: () => text("it_is", { name: error.near }),
      other: () => text(path === "rename" ? "rename_anyway" : "another_class"),
      none: () => text("cancel"),
    };
    if (!parameters.label) delete names.same;
    const answer = await asked(place, () => text("same_name", { name: error.near }), names);
    if (answer === "none") throw new Error(text("unchanged"));
    const meant = answer === "same" ? { label: error.near } : { new_class: true };
    decided(meant);
    return change(place, path, { ...parameters, ...meant }, body, decided);
  }
}

// Pictures

async function picture(source, width, height) {
  if (!width) throw new Error(text("no_picture"));
  const scale = Math.min(1, SHORT_SIDE / Math.min(width, height));
  const sides = [width, height].map((side) => Math.max(1, Math.round(side * scale)));
  const canvas = made("canvas", "", { width: sides[0], height: sides[1] });
  canvas.getContext("2d").drawImage(source, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.9));
  if (!blob) throw new Error(text("not_encoded"));
  return { canvas, blob };
}

const frame = (video = at("video")) => picture(video, video.videoWidth, video.videoHeight);

async function startCamera() {
  if (!navigator.mediaDevices) throw new Error(text("no_camera_here"));
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: { ideal: "environment" } } });
  } catch (error) {
    const reasons = {
      NotAllowedError: "camera_refused",
      NotFoundError: "camera_absent",
      NotReadableError: "camera_taken",
    };
    throw new Error(text(reasons[error.name] || "camera_failed", { reason: error.message }));
  }
  chosen = [];
  stream.getVideoTracks()[0].addEventListener("ended", stopCamera);
  at("video").srcObject = stream;
  refresh();
}

const stopRecording = () => recording && (recording.stop = true);
const pressStop = () => performance.now() > recording.since + STOP_AFTER && stopRecording();

function stopCamera() {
  if (stream) stream.getTracks().forEach((track) => track.stop());
  stopRecording();
  stream = null;
  at("video").srcObject = null;
  refresh();
}

// Pictures of the camera for some seconds, after a lead in which to take the object; a press stops it.
async function record(button, seconds) {
  const mine = (recording = { button, since: performance.now(), stop: false });
  const blobs = [];
  const begin = performance.now() + 1000 * LEAD;
  try {
    refresh();
    at("stage").scrollIntoView({ block: "nearest" });
    for (let bytes = 0; !mine.stop && bytes < MOST_SENT - 2e6; await pause(FRAME_PAUSE)) {
      const now = performance.now();
      if (now >= begin + 1000 * seconds) break;
      at("count").classList.toggle("lead", now < begin);
      at("count").textContent = Math.ceil((now < begin ? begin - now : begin + 1000 * seconds - now) / 1000);
      if (now < begin) continue;
      const { blob } = await frame();
      blobs.push(blob);
      bytes += blob.size;
    }
  } finally {
    recording = null;
    refresh();
    button.scrollIntoView({ block: "nearest" });
  }
  if (!blobs.length) throw new Error(text("stopped_early"));
  return blobs;
}

function happens(kind, video, seconds = 20) {
  return new Promise((done, failed) => {
    on(kind, video, done);
    on("error", video, failed);
    setTimeout(failed, 1000 * seconds);
  });
}

// Frames of a video file, one a second, or up to five of a short one.
async function framesOf(file) {
  const video = made("video", "", { playsinline: "", preload: "auto" });
  const taken = [];
  video.muted = true;
  const [ready, address] = [happens("loadeddata", video), URL.createObjectURL(file)];
  try {
    video.src = address;
    await ready;
    if (video.duration === Infinity) {
      const moved = happens("seeked", video); // a recording without a stated length has one at its end
      video.currentTime = 1e7;
      await moved;
    }
    const rate = Math.min(5, Math.max(1, FEW_FRAMES / video.duration), MOST_FRAMES / video.duration);
    const count = Math.max(1, Math.floor(rate * video.duration));
    for (let number = 0; number < count; number++) {
      const moved = happens("seeked", video);
      video.currentTime = Math.min((number + 0.5) / rate, video.duration / 2 + number / rate);
      await moved;
      taken.push(await frame(video));
      say("look", text("reading_frames", { name: file.name, n: number + 1, all: count }));
    }
    return taken;
  } finally {
    URL.revokeObjectURL(address);
    video.removeAttribute("src");
  }
}

async function photoOf(file) {
  const bitmap = await createImageBitmap(file);
  const taken = await picture(bitmap, bitmap.width, bitmap.height);
  bitmap.close();
  return [taken];
}

async function takeFiles(files) {
  const [taken, figures, unread] = [[], [], []];
  if (reading) throw new Error(text("still_reading"));
  if (!files.length) throw new Error(text("no_file"));
  if (files.length > MOST_FRAMES) throw new Error(text("too_many_files", { n: files.length, most: MOST_FRAMES }));
  reading = true; // or what was chosen before would be taught under the new name
  refresh();
  for (const file of [...files]) {
    say("look", text("reading", { name: file.name }));
    const video = file.type.startsWith("video/");
    const read = video ? framesOf : file.type.startsWith("image/") ? photoOf : () => [];
    const frames = await Promise.resolve(read(file)).catch(() => []);
    if (!frames.length) {
      unread.push(file.name);
      continue;
    }
    const [{ canvas }, caption] = [frames[0], made("figcaption", "")];
    canvas.role = "img";
    canvas.ariaLabel = file.name;
    const badge = video ? [made("span", counted(frames.length, "frame"), { class: "badge" })] : [];
    figures.push(made("figure", "", {}, [canvas, ...badge, caption]));
    const thing = [file.name, file.size, file.lastModified].join(); // the same one is counted once
    taken.push({ name: file.name, thing, blobs: frames.map((one) => one.blob), video, caption });
  }
  const some = unread.slice(0, 3).join(", ") + (unread.length > 3 ? text("others", { n: unread.length - 3 }) : "");
  reading = false;
  refresh();
  say("look", "");
  if (unread.length) fail("look", text("not_read", { names: some }));
  if (!taken.length) return;
  stopCamera();
  chosen = taken;
  at("shown").replaceChildren(...figures);
  refresh();
  await askChosen();
}

// Answers

function form(blobs) {
  const data = new FormData();
  blobs.forEach((blob, number) => data.append("image", blob, `${number}.jpg`));
  return data;
}

async function ask(blobs) {
  const step = Math.max(1, blobs.length / MOST_ASKED);
  const some = blobs.filter((_, place) => Math.floor(place % step) === 0).slice(0, MOST_ASKED);
  const wanted = at("all").open ? { all: true } : {};
  return (await call("POST", "predict", wanted, some.length > 1 ? form(some) : some[0])).json();
}

const shares = (answer) => [{ label: answer.label, confidence: answer.confidence }, ...answer.runners_up];
const said = (answer) => (answer.unknown ? "unknown" : `class ${answer.label}`);

// What the answers of the last second say together: another name than that shown is shown once most of them have it,
// for half of the second, or nothing is shown yet. Each answer counts alike; a clip would take the server longer.
function steadied(answers, shown) {
  const counts = new Map();
  for (const { answer } of answers) counts.set(said(answer), (counts.get(said(answer)) || 0) + 1);
  const latest = answers.at(-1);
  const [name, count] = [...counts].sort((one, other) => other[1] - one[1])[0];
  const since = answers.find(({ answer }) => said(answer) === name).time;
  const lasted = latest.time - since >= STEADY / 2 && 2 * count > answers.length;
  const kept = shown && !lasted ? said(shown) : name;
  const own = answers.filter(({ answer }) => said(answer) === kept).map(({ answer }) => answer);
  if (!own.length) return shown;
  const confidence = own.reduce((sum, answer) => sum + answer.confidence, 0) / own.length;
  return { ...own.at(-1), confidence };
}

function showSteady(answer) {
  const now = performance.now();
  recent = recent.filter(({ time }) => time > now - STEADY);
  recent.push({ time: now, answer });
  steady = steadied(recent, steady);
  show(steady);
}

function forgetAnswers() {
  recent = [];
  steady = null;
}

// What stands below a name: how sure it is, and the next classes. While `known` is null, nobody can tell how sure.
function details(answer) {
  if (answer.unknown) return text("nearest", { name: answer.label });
  if (answer.known === null) return text("cannot_tell");
  const likely = answer.runners_up.filter((next) => next.confidence >= 0.005).slice(0, 2);
  const next = likely.map(({ label, confidence }) => `${label} ${percent(confidence)}`);
  return [percent(answer.confidence), ...next].join(" · ");
}

function captionOf(answer) {
  if (answer.unknown) return text("unknown");
  return answer.known ? `${answer.label} ${percent(answer.confidence)}` : answer.label;
}

function show(answer) {
  const label = answer.unknown ? text("unknown") : answer.label;
  if (at("label").textContent !== label) at("label").textContent = label; // announced when it changes
  at("label").classList.toggle("unknown", answer.unknown);
  at("sure").hidden = !answer.known; // of an unknown image it is no bar of the answer
  at("sure").value = answer.confidence;
  at("details").textContent = details(answer);
  showBars(answer);
  at("answer").hidden = false;
}

function showBars(answer) {
  at("all-note").hidden = !answer.unknown;
  if (!at("all").open) return;
  const bars = shares(answer).map(({ label, confidence }) => {
    const bar = made("progress", "", { max: 1, value: confidence, "aria-label": label });
    return made("li", "", {}, [made("span", label), bar, made("span", percent(confidence), { class: "faint" })]);
  });
  at("bars").replaceChildren(...bars);
}

async function askChosen() {
  try {
    await askEach();
  } catch (error) {
    at("answer").hidden = true;
    throw error;
  }
}

async function askEach() {
  const mine = ++questions;
  forgetAnswers();
  if (known.classes.length && chosen.length === 1) clearAnswer();
  for (const { blobs, caption } of known.classes.length ? chosen : []) {
    const answer = await ask(blobs);
    if (mine !== questions) return;
    if (chosen.length === 1) show(answer);
    else caption.textContent = captionOf(answer);
  }
}

const askAgain = () => void askChosen().then(() => unsayAway("look"), (error) => fail("look", error));

// Nothing of the answer before; its place is kept, or buttons would move when the next one comes.
function clearAnswer() {
  at("label").textContent = "…";
  at("sure").value = 0;
  at("details").textContent = "";
  at("bars").replaceChildren();
  at("all-note").hidden = true;
  at("answer").hidden = false;
}

async function watch() {
  for (let failed = false, next = 0; ; await pause(failed ? 2000 : Math.max(0, next - performance.now()))) {
    next = performance.now() + ASK_EVERY;
    if (!stream || !known.classes.length || document.hidden || !at("video").videoWidth) continue;
    try {
      const [mine, { blob }] = [questions, await frame()];
      const answer = await ask([blob]);
      if (stream && known.classes.length && mine === questions) showSteady(answer);
      if (failed && !away) say("look", "");
      failed = false;
    } catch (error) {
      fail("look", error);
      at("answer").hidden = failed = true; // it would look like one for the present picture
    }
  }
}

// Lessons

// What is shown, as {source, blobs} of each lesson: a recording, each video, and all photos together.
async function shown(button, seconds) {
  if (!stream && !chosen.length) throw new Error(text("nothing_shown"));
  if (away) throw new Error(text("no_answer")); // or the lesson would be lost
  if (stream) return [{ source: "camera", blobs: await record(button, seconds) }];
  const photos = chosen.filter((one) => !one.video);
  const source = photos.length === 1 ? photos[0].name : `${photos.length} photos`; // in English, as the API says it
  const together = { source, blobs: photos.flatMap((one) => one.blobs) };
  const videos = chosen.filter((one) => one.video).map(({ name, blobs }) => ({ source: name, blobs }));
  return [...videos, ...(photos.length ? [together] : [])];
}

async function teach() {
  const name = at("name").value.trim();
  if (!name) at("name").focus();
  if (!name) throw new Error(text("write_first"));
  await learn({ label: name }, await shown(at("teach"), SECONDS));
}

// Teaches the parts one after the other; those that the server did not get are kept for another try. What is answered
// about the name, {label, new_class}, holds for the parts that follow.
async function learn(named, parts) {
  const decided = (meant) => (named = { ...named, ...meant });
  for (const [number, part] of parts.entries()) {
    const last = lessons.at(-1)?.number ?? 0;
    try {
      await learnPart(named, part, decided);
    } catch (error) {
      if (!error.away) throw error;
      return offerRest(named, parts.slice(number), last);
    }
  }
}

function offerRest(named, parts, last) {
  const again = () => learnRest(named, parts, last);
  sayUntilPressed("teach", () => text("no_answer"), [[() => text("again"), again]], "wrong");
}

// Goes on after an answer was lost: a part that the server learned all the same is not taught twice.
async function learnRest(named, parts, last) {
  try {
    await load();
  } catch (error) {
    if (!error.away) throw error;
    return offerRest(named, parts, last);
  }
  const count = parts[0].blobs.length;
  const hasPart = (images) => Object.hasOwn(images, named.label) && images[named.label] === count;
  const isLearned = lessons.some(({ number, images }) => number > last && hasPart(images));
  if (!isLearned) return learn(named, parts);
  say("teach", text("learned", { images: counted(count, "image"), name: named.label }));
  await learn(named, parts.slice(1));
}

async function learnPart(named, { source, blobs }, decided) {
  const size = blobs.reduce((sum, blob) => sum + blob.size, 0);
  const sent = { photos: counted(blobs.length, "photo"), size: Math.ceil(size / 1e6), most: MOST_SENT / 1e6 };
  if (size > MOST_SENT) throw new Error(text("too_large", sent));
  known.learning = { label: named.label, images: blobs.length, done: 0, own: true };
  refresh();
  const done = await change("teach", "teach", { ...named, source }, form(blobs), decided).finally(() => {
    known.learning = null;
    refresh();
  });
  const [[label, count]] = Object.entries(done.images);
  const again = () => (done.repeated ? [counted(done.repeated, "repeated")] : []);
  const news = () => [text("learned", { images: counted(count, "image"), name: label }), ...again(), ...done.notes].join(" ");
  await changed("teach", news, done.version);
  for (const doubt of done.doubts) await settle(news, doubt, done);
}

// What speaks against the label of a lesson.
function questionOf({ label, frames, as_label, other, as_other, unknown }) {
  const rest = unknown ? text("doubt_rest", { unknown }) : "";
  return text("doubt", { label, images: counted(frames, "image"), as_label, other, as_other, rest });
}

async function settle(news, doubt, { number, version }) {
  const { label, other } = doubt;
  const [right, wrong] = [label, other].map((name) => () => text("it_is", { name }));
  const names = { right, wrong, none: () => text("take_back") };
  const answer = await asked("teach", () => `${news()} ${questionOf(doubt)}`, names);
  if (answer === "none") {
    await change("teach", "revert", { version });
    return load("teach", text("taken_back"));
  }
  if (answer === "right") return changed("teach", news, version);
  const moved = await change("teach", "move", { old: label, new: other, lesson: number });
  await changed("teach", () => text("moved", { name: other }), moved.version);
}

async function teachNothing() {
  for (const { source, blobs } of await shown(at("nothing"), SECONDS_TO_CHECK)) {
    const { nothing, version } = await change("test", "nothing", { source }, form(blobs));
    await changed("test", () => text("learned_nothing", { images: counted(nothing, "image") }), version);
  }
}

function showLearning(learning) {
  at("learning").hidden = !learning;
  if (!learning) spoken = -SPEAK_EVERY;
  if (!learning) return;
  at("done").value = learning.done / learning.images;
  if (performance.now() < spoken + SPEAK_EVERY) return;
  spoken = performance.now();
  const name = learning.label === "the empty scene" ? text("empty_scene") : learning.label;
  at("learns").textContent = text("learning", { name, done: learning.done, images: counted(learning.images, "image") });
}

// What it was not taught

async function check() {
  const things = stream ? await shown(at("check"), SECONDS_TO_CHECK) : chosen;
  if (!things.length) throw new Error(text("nothing_shown"));
  const taken = new Map(); // names by things
  for (const { thing = Symbol(), blobs } of things) {
    const answer = await ask(blobs);
    if (!notCounted.has(thing)) fooled.set(thing, !answer.unknown);
    if (fooled.get(thing)) taken.set(thing, answer.label);
  }
  showFooled();
  const allTaught = things.every(({ thing }) => notCounted.has(thing));
  if (!taken.size) return say("test", text(allTaught ? "not_counted" : "not_fooled"));
  const names = [...new Set(taken.values())].reduce((a, b) => text("and", { a, b }));
  say("test", `${text("took_for", { names })} ${text("cure")}`, [[text("was_taught"), () => uncount(taken.keys())]]);
}

function uncount(things) {
  for (const thing of things) {
    fooled.delete(thing);
    notCounted.add(thing);
  }
  showFooled();
  say("test", text("not_counted"));
}

function showFooled() {
  const values = { n: [...fooled.values()].filter(Boolean).length, things: counted(fooled.size, "thing") };
  at("fooled").textContent = fooled.size ? text("fooled", values) : "";
}

// What it knows

const focusable = () => [...at("classes").querySelectorAll("button, summary")];

const sameButton = ({ ariaLabel }) => ariaLabel && focusable().find((button) => button.ariaLabel === ariaLabel);

async function load(place = "", news = "") {
  // The lessons come after the version: if they are newer, a change by it is refused.
  const newlyKnown = await (await call("GET", "classes")).json();
  const newLessons = await (await call("GET", "lessons")).json();
  const own = known.learning?.own ? known.learning : null;
  [known, lessons] = [newlyKnown, newLessons];
  // Another tab may remove an image, after which these numbers of images are those of others.
  for (const lesson of lessons) lesson.version = known.version;
  if (own) known.learning = own;
  forgetUndo();
  showClasses();
  forgetPictures();
  if (news) say(place, news);
  refresh();
  askAgain();
}

function showClasses() {
  if (at("classes").querySelector("form, .cells")) return; // a name is being typed, or an image chosen
  const rows = known.classes.map((one) => {
    const its = lessons.filter((lesson) => Object.hasOwn(lesson.images, one.name)); // a class may be named constructor
    const changes = [["rename", renameClass], ["forget", forgetClass]];
    const row = made("div", "", { class: "row" });
    row.append(...changes.map(([name, action]) => press("known", text(name), () => action(one.name, row), one.name)));
    return folded(one.name, one.images, its, [row]);
  });
  const empty = lessons.filter((lesson) => lesson.nothing);
  if (empty.length) rows.push(folded("", known.nothing, empty, []));
  const focused = document.activeElement;
  const number = focusable().indexOf(focused);
  at("classes").replaceChildren(...rows);
  if (number >= 0) (sameButton(focused) || focusable()[number] || focusable().at(-1) || at("download")).focus();
  at("names").replaceChildren(...known.classes.map((one) => made("option", "", { value: one.name })));
  const used = text("memory", { percent: percent(known.bytes / known.budget_bytes) });
  // Of less than two classes nothing is known of its errors.
  const errors = known.rates ? errorRates(known.rates) : "";
  const missing = known.missing_clips ? counted(known.missing_clips, "missing") : "";
  at("size").textContent = known.classes.length ? `${used} ${missing} ${errors}` : "";
}

// How often the learner errs about what it knows.
function errorRates(rates) {
  const named = { often: often(rates.named), alike: often(rates.named_alike) };
  return `${text("refused", { often: often(rates.refused) })} ${text("named", named)}`;
}

// How well a class is taught, by its last lessons that were asked before they were learned.
function taught(asked) {
  const last = asked.slice(-TESTED);
  if (!last.length) return "new";
  const [right, all] = ["right", "answered"].map((what) => last.reduce((sum, one) => sum + one[what], 0));
  if (last.length === TESTED && right === all) return "enough";
  return 2 * right >= all ? "nearly" : "more";
}

// A class: a picture, its name, how well it is taught, and counts; unfolded, its lessons. Without a name the empty scene.
function folded(name, images, its, changes) {
  const asked = its.filter((one) => one.answered && Object.keys(one.images).length === 1);
  const [right, all] = ["right", "answered"].map((what) => asked.reduce((sum, one) => sum + one[what], 0));
  const counts = [counted(images, "image"), counted(its.length, "lesson")];
  if (all) counts.push(text("recognised", { right, all }));
  const state = taught(asked);
  const word = name ? [made("span", text(`taught_${state}`), { class: `taught ${state}` })] : [];
  const last = its.findLast((one) => one.picture);
  const texts = [made("span", name || text("empty_scene"), { class: name ? "class" : "" }), ...word, made("span", counts.join(" · "), { class: "faint" })];
  const summary = made("summary", "", {}, [pictureOf(last, "thumb"), made("span", "", { class: "texts" }, texts)]);
  const list = made("ul", "", {});
  const fold = made("details", "", { class: "one" }, [summary, ...changes, list]);
  fold.open = unfolded.has(name);
  const fill = () => list.replaceChildren(...(fold.open ? its.map((one) => lessonOf(one, name)) : []));
  on("toggle", fold, () => {
    fold.open ? unfolded.add(name) : unfolded.delete(name);
    if (fold.open !== Boolean(list.firstChild)) fill(); // or a button that was just focused would be replaced
  });
  fill();
  return fold;
}

// A lesson's picture changes when one of its images is removed.
const pictureKey = ({ number, when, pictured, images }) => JSON.stringify([number, when, pictured, images]);

// Frees the pictures of lessons that are gone.
function forgetPictures() {
  const listed = new Set(lessons.map(pictureKey));
  for (const [key, address] of pictures) {
    if (listed.has(key)) continue;
    pictures.delete(key);
    address.then(URL.revokeObjectURL, () => {});
  }
}

function pictureOf(lesson, kind) {
  const image = made("img", "", { alt: "", class: kind });
  const key = lesson?.picture && pictureKey(lesson);
  image.hidden = !key;
  if (key && !pictures.has(key))
    pictures.set(key, call("GET", "picture", { lesson: lesson.number }).then((got) => got.blob()).then(URL.createObjectURL));
  if (key) pictures.get(key).then((address) => (image.src = address), () => pictures.delete(key));
  return image;
}

// What was said of a lesson's clips before they were learned.
function before({ answered, right, unknown }) {
  if (answered > 1) return text("before_many", { right, all: answered, unknown });
  return text(right ? "before_right" : unknown ? "before_unknown" : "before_wrong");
}

// Where the images of a lesson are from, but not their number alone, which is said beside it.
function sourceOf({ source }) {
  if (source === "camera") return text("source_camera");
  return /^\d+ (images?|photos?)$/.test(source) ? "" : source;
}

function lessonOf(lesson, name) {
  const { number, answered, images, repeated } = lesson;
  const when = new Date(lesson.when).toLocaleString([language], { dateStyle: "medium", timeStyle: "short" });
  const count = counted(images[name] ?? lesson.nothing, "image");
  const source = sourceOf(lesson);
  const others = Object.keys(images).filter((one) => one !== name);
  const said = [made("p", [source, count, when].filter(Boolean).join(" · "))];
  if (others.length) said.push(made("p", text("also_of", { names: others.join(", ") }), { class: "faint" }));
  if (repeated) said.push(made("p", counted(repeated, "repeated"), { class: "faint" }));
  if (answered) said.push(made("p", before(lesson), { class: "faint" }));
  said.push(...lesson.doubts.map((doubt) => made("p", questionOf(doubt), { class: "wrong" })));
  const row = made("div", "", { class: "row" });
  if (lesson.can_undo) {
    const about = text("of_class", { what: source || count, name: name || text("empty_scene") });
    row.append(press("known", text("remove"), () => removeLesson(lesson, name), about));
    const isOfClass = Object.hasOwn(images, name);
    const single = isOfClass && Object.keys(images).length === 1 && images[name] > 1 && lesson.picture;
    if (single) row.append(press("known", text("remove_image"), () => chooseImage(lesson, name, row), about));
    if (isOfClass) row.append(press("known", text("wrong_name"), () => moveLesson(number, name, row), about));
  } else row.append(made("span", text("not_removable"), { class: "faint" }));
  return made("li", "", {}, [pictureOf(lesson, "strip"), ...said, row]);
}

async function removeLesson({ number }, name) {
  const { version } = await change("known", "undo", { lesson: number });
  await changed("known", () => text("removed", { name: name || text("empty_scene") }), version);
}

// The images of a lesson's picture as buttons; a press removes one.
async function chooseImage(lesson, name, place) {
  const { number, pictured, version } = lesson;
  const response = await call("GET", "picture", { lesson: number });
  const shown = await createImageBitmap(await response.blob());
  const width = shown.width / pictured.length;
  const cells = pictured.map((image, cell) => {
    const canvas = made("canvas", "", { width, height: shown.height });
    canvas.getContext("2d").drawImage(shown, -cell * width, 0);
    const remove = () => (closeChooser(), removeImage(number, image, name, version));
    const button = press("known", "", remove, text("image_number", { n: image + 1 }));
    button.append(canvas);
    return button;
  });
  const cancel = press("known", text("cancel"), () => closeChooser());
  const chooser = made("div", "", { class: "row cells" }, [made("span", text("which_image")), ...cells, cancel]);
  const closeChooser = putInPlace(chooser, place);
  cells[0].focus();
}

async function removeImage(lesson, image, name, version) {
  const removed = await change("known", "remove", { lesson, image, version });
  await changed("known", () => text("removed_image", { name }), removed.version);
}

async function moveLesson(number, old, place) {
  const name = await typed(place, text("what_shown"), old);
  if (!name) return;
  const { version } = await change("known", "move", { old, new: name, lesson: number });
  await changed("known", () => text("moved", { name }), version);
}

// Puts a form in the place of a row's buttons; returns what puts the buttons back, as the escape key does.
function putInPlace(form, row, escaped = null) {
  const pressed = document.activeElement;
  const back = () => {
    form.replaceWith(row);
    if (row.contains(pressed)) pressed.focus();
    showClasses(); // which may have changed meanwhile
  };
  on("keydown", form, (event) => event.key === "Escape" && (escaped || back)());
  row.replaceWith(form);
  return back;
}

// A name that is typed in the place of a row's buttons; null if it stays as it was.
function typed(place, about, value) {
  return new Promise((done) => {
    const input = made("input", "", { value, maxlength: 200, list: "names", autocomplete: "off", "aria-label": about });
    const buttons = [made("button", text("save"), { type: "submit" }), made("button", text("cancel"), { type: "button" })];
    const form = made("form", "", { class: "row", novalidate: "" }, [input, ...buttons]);
    const end = (name) => (back(), done(name && name !== value ? name : null));
    const back = putInPlace(form, place, () => end(null));
    on("submit", form, (event) => {
      event.preventDefault();
      input.setCustomValidity(input.value.trim() ? "" : text("name_missing"));
      if (form.reportValidity()) end(input.value.trim());
    });
    on("input", input, () => input.setCustomValidity(""));
    on("click", buttons[1], () => end(null));
    input.select();
  });
}

async function renameClass(old, place) {
  const name = await typed(place, text("new_name", { name: old }), old);
  if (!name) return;
  const { version } = await change("known", "rename", { old, new: name });
  if (unfolded.delete(old)) unfolded.add(name);
  await changed("known", () => text("renamed", { old, name }), version);
}

async function forgetClass(name) {
  const { remains, version } = await change("known", "forget", { name });
  const rest = () => (remains ? text("remains") : "");
  await changed("known", () => text("forgot", { name }) + rest(), version);
}

async function fetchFile(path, usual) {
  const response = await call("GET", path);
  const name = /filename\*=UTF-8''(.+)/.exec(response.headers.get("Content-Disposition"));
  const address = URL.createObjectURL(await response.blob());
  made("a", "", { href: address, download: name ? decodeURIComponent(name[1]) : usual }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60e3);
}

const download = () => fetchFile("download", "learner.safetensors");

async function exportGraph() {
  say("known", text("exporting"));
  await fetchFile("export", "learner.onnx");
  say("known", "");
}

// The learner of a file takes the place of this one, which can be taken back.
async function openFile([file]) {
  if (!file.name.endsWith(".safetensors")) throw new Error(text("wrong_file", { name: file.name }));
  const { version } = await change("known", "open", {}, file);
  await changed("known", () => text("opened", { name: file.name }), version);
}

// The server answers again: nothing says any more that it does not, and what was chosen meanwhile is asked.
function comeBack() {
  away = false;
  ["look", "teach", "test", "known"].forEach(unsayAway);
  askAgain();
}

function unsayAway(place) {
  const [wrong, choices] = [":scope > .wrong", ":scope > .row"].map((part) => newsOf(place).querySelector(part));
  if (wrong?.textContent === text("no_answer") && !choices && !away) say(place, "");
}

// Another tab may teach: its changes and its progress are shown.
async function follow() {
  for (; ; await pause(known.learning ? 250 : 1000)) {
    if (document.hidden) continue;
    try {
      const now = await (await call("GET", "classes")).json();
      const state = (one) => JSON.stringify({ ...one, learning: null });
      if (state(now) !== state(known)) await load();
      if (now.learning || !known.learning?.own) known.learning = now.learning;
      showLearning(known.learning);
      if (away) comeBack();
    } catch (error) {
      fail("look", error);
      away = Boolean(error.away);
    }
  }
}

function refresh() {
  const has = !stream && chosen.length > 0;
  const videos = chosen.filter((one) => one.video).length;
  const kinds = [[videos, "video"], [chosen.length - videos, "photo"]].filter(([count]) => count);
  const these = kinds.map(([count, noun]) => counted(count, noun)).reduce((a, b) => text("and", { a, b }), ...(has ? [] : [""]));
  at("video").hidden = !stream;
  at("shown").hidden = !has;
  at("shown").classList.toggle("one", chosen.length === 1);
  at("empty").hidden = Boolean(stream) || has;
  at("count").hidden = !recording;
  at("count").textContent = recording ? at("count").textContent : "";
  at("answer").hidden ||= !known.classes.length || (!stream && chosen.length !== 1);
  at("none").hidden = known.classes.length > 0;
  at("test").hidden = known.classes.length < 2;
  at("camera").textContent = text(stream ? "camera_stop" : "camera_use");
  at("camera").classList.toggle("first", !stream && !has);
  at("how").hidden = has;
  at("export").disabled = !known.classes.length;
  const texts = {
    teach: has ? text("teach_these", { these }) : text("teach_seconds", { n: SECONDS }),
    check: has ? text("ask_untaught", { these }) : text("check"),
    nothing: has ? text("these_show_nothing", { these }, chosen.length) : text("nothing"),
  };
  for (const [id, usual] of Object.entries(texts)) {
    const pressed = recording?.button === at(id);
    at(id).textContent = pressed ? text("stop") : usual;
    at(id).classList.toggle("pressed", pressed);
    at(id).disabled = !pressed && (reading || Boolean(recording));
  }
  showLearning(known.learning);
}

// What people do

// The second press of a double click would go to what moved under the pointer.
function dropSecondPress(event) {
  if (event.detail < 2 || !event.target.closest("button")) return;
  event.preventDefault();
  event.stopPropagation();
}

document.addEventListener("click", dropSecondPress, true);

for (const [id, place, action] of [["teach", "teach", teach], ["check", "test", check], ["nothing", "test", teachNothing]])
  on("click", at(id), () => (recording ? pressStop() : act(place, action, at(id))));
on("click", at("camera"), () => act("look", stream ? stopCamera : startCamera, at("camera")));
for (const [button, input] of [["choose", "files"], ["film", "filmed"]]) {
  on("click", at(button), () => at(input).click());
  on("change", at(input), () => act("look", () => takeFiles(at(input).files)).then(() => (at(input).value = "")));
}
on("click", at("download"), () => act("known", download, at("download")));
on("click", at("export"), () => act("known", exportGraph, at("export")));
on("click", at("open"), () => at("opened").click());
on("change", at("opened"), () => act("known", () => openFile(at("opened").files)).then(() => (at("opened").value = "")));
on("toggle", at("all"), () => (stream ? forgetAnswers() : act("look", askChosen)));
on("change", at("language"), () => {
  language = keptLanguage(at("language").value) || at("language").value;
  translate();
  for (const place of ["look", "teach", "test", "known"]) {
    const showQuestion = openQuestions.get(place) || (() => say(place, "")); // an offer to undo stays, too
    showQuestion();
  }
  showFooled();
  showClasses();
  act("look", load);
});
on("keydown", at("name"), (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault(); // or it would press the button, too, and the next press would stop the lesson
  at("teach").focus();
});
on("visibilitychange", document, () => document.hidden && stopRecording());

for (const kind of ["dragover", "dragleave", "drop"]) {
  on(kind, document, (event) => {
    event.preventDefault();
    at("stage").classList.toggle("over", kind === "dragover");
    if (kind === "drop") act("look", () => takeFiles(event.dataTransfer.files));
  });
}

const options = Object.keys(TEXTS).map((one) => [one, new Intl.DisplayNames([one], { type: "language" }).of(one)]);
at("language").replaceChildren(...options.map(([one, name]) => made("option", name, { value: one })));
at("language").value = language;
translate();
refresh();
act("look", load);
watch();
follow();
