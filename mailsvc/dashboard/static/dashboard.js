// Page behaviour beyond htmx. Every page also works without this file.
"use strict";
document.documentElement.classList.add("js");

// The time zone for somebody who has none: the pages are then shown in that of the browser (context.py).
if (!document.documentElement.dataset.zone) {
  const secure = location.protocol === "https:", zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone) document.cookie = `${secure ? "__Host-" : ""}mailsvc-zone=${zone}; Path=/; SameSite=Lax${secure ? "; Secure" : ""}`;
}

// Parts that htmx refreshes (templates/parts.html, refresh) keep opened details and the focus.
const POLLING = ["refresh", "news"];
const FOCUSED = "a, button, input, select, summary, pre";
document.addEventListener("htmx:oobBeforeSwap", ({ detail }) => {
  const part = detail.target, fresh = detail.fragment.firstElementChild, details = part.querySelectorAll("details");
  fresh.querySelectorAll("details").forEach((one, place) => { one.open = details[place]?.open || false; });
  detail.shouldSwap = !fresh.isEqualNode(part);
  detail.focused = [...part.querySelectorAll(FOCUSED)].indexOf(document.activeElement);
});
document.addEventListener("htmx:oobAfterSwap", ({ detail }) => {
  const part = document.getElementById(detail.target.id);
  if (detail.focused >= 0) part.querySelectorAll(FOCUSED)[detail.focused]?.focus({ preventScroll: true });
  detail.focused = -1;
});
document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden && POLLING.includes(event.target.id)) event.preventDefault();  // the page is in the background
});
// The same number of new entries is not announced again (templates/parts.html, news_of).
document.addEventListener("htmx:beforeSwap", ({ target, detail }) => {
  if (target.id === "news" && target.innerHTML === detail.serverResponse) detail.shouldSwap = false;
});
// A failed refresh is retried later. A failed filter loads its page, which shows the error.
for (const wrong of ["htmx:responseError", "htmx:sendError"])
  document.addEventListener(wrong, ({ target, detail }) => {
    if (!POLLING.includes(target.id)) location.assign(detail.pathInfo.finalRequestPath);
  });

// A filter changes the page without loading it: screen readers announce what it found.
const announced = document.createElement("p");
Object.assign(announced, { className: "hidden", ariaLive: "polite" });  // not a status: what a form did has that role
document.querySelector("main")?.append(announced);
document.addEventListener("htmx:afterSwap", ({ target, detail }) => {
  if (!detail.requestConfig?.elt.matches("form")) return;
  const rows = target.querySelectorAll("tbody tr").length, found = `${rows} ${rows === 1 ? "result" : "results"} on this page`;
  announced.textContent = target.id === "list" ? target.querySelector(".empty h2")?.textContent || found : "Updated";
});

const COPIED = "Copied";
document.addEventListener("click", async (event) => {
  const copy = event.target.closest("[data-copy]");
  if (!copy) return;
  const from = document.getElementById(copy.dataset.copy);
  try {
    await navigator.clipboard.writeText(from.textContent.trim());
    const label = copy.querySelector("[data-label]") || copy;
    const before = label.textContent;
    if (before === COPIED) return;  // after a double click, it would stay
    label.textContent = COPIED;
    setTimeout(() => { label.textContent = before; }, 1500);
  } catch {
    getSelection().selectAllChildren(from);
  }
});

document.addEventListener("change", (event) => {
  if (event.target.closest("[data-submit]")) event.target.form.requestSubmit();
});

// A second click while a form is being sent does nothing. Otherwise it would create a second key, endpoint or segment, for example.
const SENDING = 5000, sending = new WeakMap();  // milliseconds: a form that leads to a download can be sent again after them
document.addEventListener("submit", (event) => {
  const { target: form, submitter } = event;
  if (event.defaultPrevented || form.method !== "post") return;
  const given = new URLSearchParams(new FormData(form, submitter)).toString();
  if (sending.get(form) === given) { event.preventDefault(); return; }
  sending.set(form, given);
  setTimeout(() => { if (sending.get(form) === given) sending.delete(form); }, SENDING);
});

// Somebody whose role cannot change the page sees what the forms contain. Their buttons are hidden, but the Enter key would send them.
for (const one of document.querySelectorAll(".looking form[method=post]:not(.reads) :is(input:not([type=hidden]), select, textarea)"))
  one.disabled = true;

// After a mistake in a form, its first wrong field has the focus: it can be anywhere on the page.
document.querySelector("main [aria-invalid=true]")?.focus();

// Questions in place (templates/parts.html, confirm): Back and the Escape key close them.
function close(question) {
  question.open = false;
  question.querySelector("summary").focus();
}
document.addEventListener("click", ({ target }) => {
  if (target.closest("[data-close]")) close(target.closest("details"));
});
document.addEventListener("keydown", ({ key, target }) => {
  const question = key === "Escape" && target.closest("details.confirm[open]");
  if (question) close(question);
});

// Tabs (templates/parts.html, samples). The tab that somebody chose is open on other pages, too.
const CHOSEN_TAB = "mailsvc-tab";
function remembered() {
  try { return localStorage.getItem(CHOSEN_TAB); } catch { return null; }
}
function makeTabs(place) {
  const panels = [...place.children], list = document.createElement("div");
  const tabs = panels.map((panel, number) => {
    const tab = document.createElement("button");
    Object.assign(tab, { type: "button", role: "tab", id: `tab-${number}`, textContent: panel.dataset.tab });
    panel.id = `panel-${number}`;
    panel.role = "tabpanel";
    tab.setAttribute("aria-controls", panel.id);
    panel.setAttribute("aria-labelledby", tab.id);
    return tab;
  });
  function choose(number) {
    tabs.forEach((tab, each) => { tab.ariaSelected = each === number; tab.tabIndex = each === number ? 0 : -1; panels[each].hidden = each !== number; });
  }
  function chosen(number) {
    choose(number);
    try { localStorage.setItem(CHOSEN_TAB, panels[number].dataset.tab); } catch { /* not allowed in this browser */ }
  }
  list.role = "tablist";
  list.ariaLabel = place.dataset.tabs;
  list.append(...tabs);
  list.addEventListener("click", ({ target }) => { if (tabs.includes(target)) chosen(tabs.indexOf(target)); });
  list.addEventListener("keydown", (event) => {
    const at = tabs.indexOf(event.target), last = tabs.length - 1;
    const to = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at === 0 ? last : at - 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    chosen(to);
    tabs[to].focus();
  });
  place.prepend(list);
  choose(Math.max(0, panels.findIndex((panel) => panel.dataset.tab === remembered())));
}
document.querySelectorAll("[data-tabs]").forEach(makeTabs);
