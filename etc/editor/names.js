// Names for screen readers: the library's fields for the appearance have labels beside them that belong to no field.
const SIDES = ["top", "right", "bottom", "left"];

function name(field) {
  const row = field.closest("[data-re-inspector-prop-row]");
  if (row) return row.querySelector("label")?.textContent;
  const group = field.closest("[data-re-inspector-number]")?.parentElement?.parentElement;
  const place = group ? [...group.querySelectorAll("input")].indexOf(field) : -1;
  const title = field.closest("[data-re-inspector-section]")?.querySelector("[data-re-inspector-section-toggle]")?.textContent;
  return [title, SIDES[place]].filter(Boolean).join(", ");
}

function apply(within) {
  for (const field of within.querySelectorAll("input, select")) {
    const found = name(field);
    if (found) field.setAttribute("aria-label", field.matches("[data-re-inspector-color-hex]") ? `${found}, as #rrggbb` : found);
  }
  for (const tip of within.querySelectorAll("[data-re-inspector-tooltip]"))
    tip.querySelector("button")?.setAttribute("aria-label", tip.querySelector("[data-re-inspector-tooltip-content]")?.textContent ?? "");
  within.querySelector("nav:not([aria-label])")?.setAttribute("aria-label", "Selected element");
}

export function nameFields(within) {
  apply(within);
  new MutationObserver(() => apply(within)).observe(within, { childList: true, subtree: true });
}
