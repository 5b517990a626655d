// The lists that open while somebody writes, for screen readers. The focus stays in the text, which names the list and the chosen option.
const BLOCKS = "block-list";

// `list` and `option`: their IDs, or nothing when the list is closed.
export function nameList(text, list, option) {
  for (const [attribute, value] of [["aria-autocomplete", list && "list"], ["aria-controls", list], ["aria-activedescendant", option]])
    if (value) text.setAttribute(attribute, value);
    else text.removeAttribute(attribute);
}

function nameOptions(text, box) {
  Object.assign(box, { id: BLOCKS, role: "listbox", ariaLabel: "Blocks" });
  let chosen;
  for (const one of box.querySelectorAll("[data-re-slash-command-item]")) {
    const selected = one.hasAttribute("data-selected");
    Object.assign(one, { id: `${BLOCKS}-${one.textContent.replace(/\W+/g, "-")}`, role: "option", ariaSelected: String(selected) });
    if (selected) chosen = one.id;
  }
  nameList(text, BLOCKS, chosen);
}

// The library's list of blocks, which opens after "/" at the end of the page, has no roles and names of its own.
export function nameBlocks(text) {
  let shown = null;
  const look = () => {
    const box = shown.querySelector("[data-re-slash-command]");
    if (box) nameOptions(text, box);
  };
  const changed = new MutationObserver(look);
  const opened = new MutationObserver((changes) => {
    const added = changes.flatMap((each) => [...each.addedNodes]).find((one) => one.querySelector?.("[data-re-slash-command]"));
    if (added) {
      shown = added;
      changed.observe(added, { childList: true, subtree: true, attributeFilter: ["data-selected"] });
      look();
    } else if (shown && !shown.isConnected) {
      shown = null;
      changed.disconnect();
      nameList(text);
    }
  });
  opened.observe(document.body, { childList: true });
}
