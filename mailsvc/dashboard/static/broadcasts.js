// Pages of broadcasts: times in the zone of the browser, and questions that are closed again. They also work without this file.
"use strict";
(() => {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  const format = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });

  const hour = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "short" });

  // Before charts.js reads the table. Days stay those of UTC.
  function hours() {
    const times = document.querySelectorAll("#numbers th time");
    if (!times.length || !times[0].textContent.includes(":")) return;
    times.forEach((one) => { one.textContent = hour.format(new Date(one.dateTime)); });
    document.querySelectorAll("[data-plot]").forEach((one) => { one.dataset.zone = zone; });
  }

  function show() {
    hours();
    document.querySelectorAll("time[data-local]").forEach((one) => {
      const text = `${format.format(new Date(one.dateTime))} (${zone})`;
      if (one.textContent !== text) one.textContent = text;
    });
    document.querySelectorAll("[data-zone-name]").forEach((one) => { one.textContent = zone; });
    document.querySelectorAll("[data-zone-value]").forEach((one) => { one.value = zone; });
  }
  show();
  for (const changed of ["htmx:afterSwap", "htmx:oobAfterSwap"]) document.addEventListener(changed, show);

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
})();
