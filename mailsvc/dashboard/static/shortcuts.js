// The command palette (Ctrl K, ⌘ K), and single keys, which a person can turn off in their profile.
"use strict";
(() => {
  const palette = document.getElementById("palette"), list = document.getElementById("shortcut-list");
  if (!palette) return;
  const text = palette.querySelector("input"), options = [...palette.querySelectorAll("[role=option]")], search = palette.querySelector("[data-search]");
  const SECOND_KEY = 1500;  // milliseconds within which the key after g counts
  let chosen, begun = -Infinity;

  function choose(option) {
    chosen?.setAttribute("aria-selected", "false");
    chosen = option;
    chosen?.setAttribute("aria-selected", "true");
    chosen?.scrollIntoView({ block: "nearest" });
    text.setAttribute("aria-activedescendant", chosen?.id || "");
  }

  function filter() {
    const sought = text.value.trim(), words = sought.toLowerCase().split(/\s+/);
    for (const option of options) option.hidden = option !== search && !words.every((word) => option.dataset.words.includes(word));
    if (search) {  // missing for roles that cannot read emails
      search.hidden = !sought;
      search.querySelector("span").textContent = sought;
      search.href = search.dataset.search + encodeURIComponent(sought);
    }
    choose(options.find((option) => !option.hidden));
  }

  function open() {
    text.value = "";
    filter();
    palette.showModal();
    text.focus();
  }

  function move(step) {
    const shown = options.filter((option) => !option.hidden);
    choose(shown[(shown.indexOf(chosen) + step + shown.length) % shown.length]);
  }

  text.addEventListener("input", filter);
  text.addEventListener("keydown", (event) => {
    const act = { ArrowDown: () => move(1), ArrowUp: () => move(-1), Enter: () => chosen?.click(), Escape: () => palette.close() }[event.key];
    if (!act || event.isComposing || event.keyCode === 229) return;  // for an input method; 229 is Safari's sign of it
    event.preventDefault();
    act();
  });
  for (const dialog of [palette, list])
    dialog?.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.addEventListener("click", ({ target }) => { if (target.closest("[data-palette]")) open(); });

  function nextRow(step) {
    const rows = [...document.querySelectorAll("main a.cover")].filter((row) => row.checkVisibility());
    const place = rows.indexOf(document.activeElement);
    rows[place < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(place + step, 0), rows.length - 1)]?.focus();
  }

  function find() {
    const field = [...document.querySelectorAll("main input[type=search]")].find((one) => one.checkVisibility());
    if (!field) open();
    else { field.focus(); field.select(); }
  }

  const KEYS = { "/": find, "?": () => list.showModal(), j: () => nextRow(1), k: () => nextRow(-1) };
  const typing = (target) => target.closest("input, select, textarea, dialog") || target.isContentEditable;

  document.addEventListener("keydown", (event) => {
    const { key, target, ctrlKey, metaKey, altKey, shiftKey, timeStamp } = event;
    if ((ctrlKey || metaKey) && !altKey && !shiftKey && key.toLowerCase() === "k" && !target.isContentEditable) {
      event.preventDefault();
      if (palette.open) palette.close();
      else if (!document.querySelector("dialog[open]")) open();
      return;
    }
    if (!("keys" in palette.dataset) || ctrlKey || metaKey || altKey || event.defaultPrevented || typing(target)) return;
    const second = timeStamp - begun < SECOND_KEY && options.find((option) => option.dataset.key === key);
    begun = key === "g" ? timeStamp : -Infinity;
    const act = second ? () => second.click() : Object.hasOwn(KEYS, key) && KEYS[key];
    if (!act) return;
    event.preventDefault();
    act();
  });
})();
