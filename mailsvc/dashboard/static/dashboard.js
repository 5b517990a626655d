// What pages do by themselves: every page also works without this file.
"use strict";
document.documentElement.classList.add("js");

// A part that waits for something (data-live="seconds") is fetched again until it says no more that it does.
function follow(part) {
  const seconds = Number(part.dataset.live);
  if (!seconds) return;
  setTimeout(async () => {
    if (document.hidden) return follow(part);
    try {
      const answer = await fetch(location.href, { headers: { "X-Live": "1" }, redirect: "error" });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(part.id);
      if (!fresh) return;
      if (fresh.innerHTML !== part.innerHTML || fresh.dataset.live !== part.dataset.live) {
        const open = [...part.querySelectorAll("details")].map((one) => one.open);
        part.replaceWith(fresh);
        fresh.querySelectorAll("details").forEach((one, place) => { one.open = open[place] || false; });
        return follow(fresh);
      }
    } catch { /* the next round tries again */ }
    follow(part);
  }, seconds * 1000);
}
document.querySelectorAll("[data-live]").forEach(follow);
document.querySelector(".nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

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
