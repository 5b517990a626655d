// What pages do by themselves: every page also works without this file.
"use strict";
document.documentElement.classList.add("js");

// Parts that wait for something (data-live="seconds") are fetched again until they say no more that they do.
function follow() {
  const parts = [...document.querySelectorAll("[data-live]")];
  if (!parts.length) return;
  setTimeout(async () => {
    try {
      if (!document.hidden) {
        const from = document.querySelector("[data-live-from]")?.dataset.liveFrom || location.href;
        const answer = await fetch(from, { headers: { "X-Live": "1" }, redirect: "error" });
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (answer.ok) parts.forEach((part) => renew(part, page.getElementById(part.id)));
      }
    } catch { /* the next round tries again */ }
    follow();
  }, 1000 * Math.min(...parts.map((part) => Number(part.dataset.live))));
}
function renew(part, fresh) {
  if (!fresh || fresh.isEqualNode(part)) return;
  const open = [...part.querySelectorAll("details")].map((one) => one.open);
  const focused = part.contains(document.activeElement) && [...part.querySelectorAll(FOCUSED)].indexOf(document.activeElement);
  part.replaceWith(fresh);
  fresh.querySelectorAll("details").forEach((one, place) => { one.open = open[place] || false; });
  if (typeof focused === "number") fresh.querySelectorAll(FOCUSED)[focused]?.focus();
}
const FOCUSED = "a, button, input, select, summary, pre";
follow();
document.querySelectorAll(".nav [aria-current], .tabs.settings [aria-current]").forEach((one) => {
  one.scrollIntoView({ block: "nearest", inline: "center" });
});

document.addEventListener("click", async (event) => {
  const copy = event.target.closest("[data-copy]");
  if (!copy) return;
  const from = document.getElementById(copy.dataset.copy);
  try {
    await navigator.clipboard.writeText(from.textContent.trim());
    const said = copy.querySelector("[data-said]") || copy;
    const before = said.textContent;
    said.textContent = "Copied";
    setTimeout(() => { said.textContent = before; }, 1500);
  } catch {
    getSelection().selectAllChildren(from);
  }
});

document.addEventListener("change", (event) => {
  if (event.target.closest("[data-submit]")) event.target.form.requestSubmit();
});

document.addEventListener("submit", (event) => {
  const ask = event.target.dataset.ask;
  if (ask && !confirm(ask)) event.preventDefault();
});
