// The page of the broadcast editor: saves while somebody writes, notices what others save, shows the preview. The text itself is edited
// by window.MailEditor (etc/editor), or in a textarea if the HTML is edited.
"use strict";

const draft = document.getElementById("draft");
const path = draft.dataset.path;
const status = document.getElementById("status");
const conflict = document.getElementById("conflict");
const DELAY = 1500, LOOK = 15000;  // milliseconds: from a change to saving it, and between looks at what others saved

let editor = null;     // once it is ready, with `read`
let changes = 0, stored = 0;  // counts changes; `stored` of them were saved
let timer = 0, running = null;
let unsure = false;    // a save got no answer, but may have been stored

// In the time zone of the other times on the page, unless this browser does not know it.
function time(at) {
  const how = { hour: "2-digit", minute: "2-digit" }, timeZone = document.documentElement.dataset.zone;
  try { return new Date(at).toLocaleTimeString([], { ...how, timeZone }); } catch { return new Date(at).toLocaleTimeString([], how); }
}

class TooLong extends Error { message = "The content is too long. Shorten it."; }
const FAILED = "The server reported an error.";
class Unreachable extends Error { message = "the server can’t be reached."; }

const JSON_ONLY = { Accept: "application/json" };
const unreachable = () => { throw new Unreachable(); };
const call = (url, how) => fetch(url, { headers: JSON_ONLY, ...how }).catch(unreachable);

// Sends a form. Forms of a session that has ended are refused, or lead to the sign-in page, which the state does, too: whoever has signed
// in again gets the token of the new session.
async function post(url, body) {
  const send = () => call(url, { method: "POST", body });
  const response = await send();
  if (response.status !== 403 && !response.redirected) return response;
  const { token } = (await ask(`${path}/state`)).answer;
  document.querySelectorAll("input[name=token]").forEach((one) => { one.value = token; });
  body.set("token", token);
  return send();
}

async function ask(url, fields) {
  const response = await (fields ? post(url, new URLSearchParams(fields)) : call(url));
  if (!response.headers.get("content-type")?.startsWith("application/json"))
    throw new Error(response.status === 409 ? "This broadcast isn’t a draft any more." : response.redirected ? "You’re signed out. Sign in again in another tab." : FAILED);
  const answer = await response.json().catch(unreachable);
  if (!response.ok && !answer.errors) throw response.status === 413 ? new TooLong() : new Error(FAILED);
  return { ok: response.ok, answer };
}

// Stores the file of an image and returns its address. Throws an error with a sentence.
const LARGEST = 10 * 1024 * 1024;  // bytes
async function upload(file) {
  if (file.size > LARGEST) throw new Error("The image is larger than 10 MB. Make it smaller and retry.");
  const body = new FormData();
  body.append("token", draft.elements.token.value);
  body.append("file", file);
  const response = await post(draft.dataset.images, body).catch((error) => { if (!(error instanceof Unreachable)) throw error; });
  if (!response?.headers.get("content-type")?.startsWith("application/json")) throw new Error("The image couldn’t be uploaded. Try again.");
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.errors?.file ?? answer.message ?? "The image couldn’t be uploaded. Try again.");
  return answer.url;
}

// By its hint, and by an error.
function describe(field, error) {
  field.dataset.hint ??= field.getAttribute("aria-describedby") ?? "";
  field.setAttribute("aria-describedby", `${field.dataset.hint} ${error}`.trim());
}

function showErrors(errors) {
  draft.querySelectorAll("[data-error]").forEach((one) => { one.remove(); });
  for (const field of draft.querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    describe(field, "");
  }
  for (const [name, sentence] of Object.entries(errors)) {
    const field = draft.elements.namedItem(name);
    if (!field || field.type === "hidden") continue;
    field.setAttribute("aria-invalid", "true");
    field.insertAdjacentHTML("afterend", '<p class="error" data-error></p>');
    Object.assign(field.nextElementSibling, { id: `e-${name}`, textContent: sentence });
    describe(field, `e-${name}`);
  }
}

// What others saved: not a save of this page that got no answer.
const ofOthers = (saved) => saved && !(unsure && saved.mine);

function warn(saved, mine) {
  const who = saved.author || "The API";
  conflict.textContent = mine
    ? `${who} also saved this draft, at ${time(saved.at)}. Your version replaced it; theirs is in the earlier versions.`
    : `${who} saved this draft at ${time(saved.at)}. Reload the page to see it. If you go on, your version replaces theirs, which stays in the earlier versions.`;
  conflict.hidden = false;
}

// The page is called like the broadcast, which is called like its subject if it has no name.
function rename(name) {
  const heading = document.querySelector("h1");
  if (!name || name === heading.textContent) return;
  document.title = document.title.replace(heading.textContent, () => name);
  heading.textContent = name;
}

async function store() {
  const counted = changes;
  status.textContent = "Saving…";
  try {
    if (editor) {
      const { json, html } = await editor.read();
      draft.elements.document.value = json;
      draft.elements.html.value = html;
    }
    const sent = new FormData(draft);
    const { ok, answer } = await ask(`${path}/save`, sent);
    showErrors(ok ? {} : answer.errors);
    if (!ok) {
      status.textContent = `Not saved: ${Object.values(answer.errors).join(" ")}`;
      return false;
    }
    draft.elements.base.value = answer.base;
    rename(sent.get("name").trim() || sent.get("subject").trim());
    stored = counted;
    draft.toggleAttribute("data-unsaved", stored !== changes);
    status.textContent = `Saved at ${time(Date.now())}.`;
    if (ofOthers(answer.overwritten)) warn(answer.overwritten, true);
    unsure = false;
    return true;
  } catch (error) {
    unsure ||= error instanceof Unreachable;
    status.textContent = `Not saved: ${error.message} Your changes are still on this page.`;
    if (!(error instanceof TooLong)) timer = setTimeout(save, LOOK);
    return false;
  }
}

// One save at a time. Changes made meanwhile are saved afterwards.
async function save() {
  clearTimeout(timer);
  while (running) await running;
  if (stored === changes) return true;
  running = store().finally(() => { running = null; });
  return running;
}

function changed() {
  changes += 1;
  draft.setAttribute("data-unsaved", "");
  clearTimeout(timer);
  timer = setTimeout(save, DELAY);
}

async function look() {
  if (document.hidden || running) return;
  const base = draft.elements.base.value;
  try {
    const { ok, answer } = await ask(`${path}/state`);
    const ours = running || draft.elements.base.value !== base; // saved meanwhile: the answer can be older
    if (ok && !ours && answer.base !== base && ofOthers(answer.newest)) warn(answer.newest, false);
  } catch { /* the next look or save says so */ }
}

draft.addEventListener("input", changed);
// What somebody typed before this script was there.
if ([...draft.elements].some((one) => one.type !== "hidden" && one.defaultValue !== undefined && one.value !== one.defaultValue)) changed();
draft.addEventListener("submit", (event) => { event.preventDefault(); changes += 1; save(); });
addEventListener("beforeunload", (event) => { if (stored !== changes) event.preventDefault(); });
setInterval(look, LOOK);

// The preview, and the test email

const byId = (id) => document.getElementById(id);  // the form comes after this script, so that nobody can send it earlier

async function show() {
  const frame = byId("frame"), tested = byId("tested"), { view, contact } = byId("preview").elements;
  const saved = await save();
  try {
    await ask(`${path}/state`);  // the frame cannot show the pages for errors and for signing in
  } catch (error) {
    frame.hidden = true;
    tested.textContent = `No preview: ${error.message}`;
    return;
  }
  tested.textContent = saved ? "" : "The draft couldn’t be saved. The preview shows what was saved last.";
  frame.hidden = false;
  frame.dataset.view = view.value;
  // Replaced, so that Back leaves the page instead of showing an earlier preview.
  frame.contentWindow.location.replace(`${path}/preview?${new URLSearchParams({ view: view.value, contact: contact.value, at: Date.now() })}`);
}
document.addEventListener("click", (event) => { if (event.target.id === "show") show(); });
document.addEventListener("keydown", (event) => {  // else, the Enter key sends a test
  if (event.target.id !== "f-contact" || event.key !== "Enter" || event.isComposing || event.keyCode === 229) return;  // 229: for an input method, in Safari
  event.preventDefault();
  show();
});
document.addEventListener("change", (event) => { if (event.target.form?.id === "preview" && !byId("frame").hidden) show(); });
let testing = false;  // a test email: a double click sends one
document.addEventListener("submit", async (event) => {
  if (event.target.id !== "preview") return;
  event.preventDefault();
  if (testing) return;
  testing = true;
  await sendTest(event.target).finally(() => { testing = false; });
});
async function sendTest(form) {
  const tested = byId("tested");
  tested.textContent = "Sending…";
  if (!await save()) { tested.textContent = "Not sent: the draft couldn’t be saved."; return; }
  try {
    const { ok, answer } = await ask(`${path}/test`, new FormData(form));
    tested.textContent = ok ? `Sent to ${answer.to}. ` : `Not sent: ${answer.errors.test}`;
    if (ok && answer.id) {  // missing for roles that cannot read emails
      const link = document.createElement("a");
      link.href = `/dashboard/emails/${answer.id}`;
      link.textContent = "See what happens to it";
      tested.append(link);
    }
  } catch (error) { tested.textContent = `Not sent: ${error.message}`; }
}

// Whatever leaves the page or replaces the content saves first.
document.addEventListener("click", async (event) => {
  const link = event.target.closest("a[href^='/dashboard/']");
  if (!link || link.target || event.ctrlKey || event.metaKey || event.shiftKey || stored === changes) return;
  event.preventDefault();
  await save();
  location.assign(link.href);  // the browser asks first if something could not be saved
});
document.addEventListener("submit", async (event) => {
  if (!event.target.matches("[data-restore]") || stored === changes) return;
  event.preventDefault();
  if (await save()) event.target.submit();
});

// The editor's own script is large. It runs after this one, so that nothing is lost that is done meanwhile.
addEventListener("DOMContentLoaded", async () => {
  const place = document.getElementById("editor");
  if (!place || !window.MailEditor) return;
  const say = (sentence) => { document.getElementById("uploaded").textContent = sentence; };
  editor = await window.MailEditor.mount(place, { content: place.dataset.content, variables: JSON.parse(draft.dataset.variables), changed, upload, say });
  place.dataset.ready = "";
});
