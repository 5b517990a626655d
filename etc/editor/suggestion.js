// The list of variables that opens after typing "{{" in the broadcast editor.
import { Extension } from "@tiptap/core";
import { PluginKey } from "@tiptap/pm/state";
import { Suggestion } from "@tiptap/suggestion";

import { nameList } from "./lists.js";

const SHOWN = 8, ID = "variable-list";
const idOf = ({ name }) => `${ID}-${name}`;

function list() {
  const box = document.createElement("div");
  box.className = box.id = ID;
  box.setAttribute("role", "listbox");
  box.setAttribute("aria-label", "Variables");
  return box;
}

// Draws the list below the cursor; arrow keys choose, Enter inserts, Escape closes it. The focus stays in the text, which names the chosen
// variable to screen readers.
function renderer() {
  let box, props, chosen;
  const draw = () => {
    box.replaceChildren(...props.items.map((item, place) => {
      const row = document.createElement("div");
      row.id = idOf(item);
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", String(place === chosen));
      row.textContent = item.name;
      row.addEventListener("mousedown", (event) => { event.preventDefault(); props.command(item); });
      return row;
    }));
    const at = props.clientRect?.();
    box.hidden = !props.items.length || !at;
    if (at) Object.assign(box.style, { left: `${at.left + scrollX}px`, top: `${at.bottom + scrollY + 4}px` });
    nameList(props.editor.view.dom, !box.hidden && ID, !box.hidden && idOf(props.items[chosen]));
  };
  const close = () => { box?.remove(); if (props) nameList(props.editor.view.dom); };
  const show = (given) => { props = given; chosen = 0; draw(); };
  return {
    onStart: (given) => { box = list(); document.body.append(box); show(given); },
    onUpdate: show,
    onExit: close,
    onKeyDown: ({ event }) => {
      if (event.key === "Escape") { close(); return true; }
      if (!props.items.length || !box.isConnected) return false;
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        chosen = (chosen + (event.key === "ArrowDown" ? 1 : -1) + props.items.length) % props.items.length;
        draw();
        return true;
      }
      if (event.key === "Enter" || event.key === "Tab") { props.command(props.items[chosen]); return true; }
      return false;
    },
  };
}

export const variableSuggestion = (variables) => Extension.create({
  name: "variableSuggestion",
  addProseMirrorPlugins() {
    return [Suggestion({
      editor: this.editor,
      pluginKey: new PluginKey("variableSuggestion"),
      char: "{{",
      allowedPrefixes: null,
      items: ({ query }) => variables.filter((each) => each.name.toLowerCase().includes(query.toLowerCase())).slice(0, SHOWN),
      command: ({ editor, range, props }) => {
        editor.chain().focus().insertContentAt(range, { type: "variable", attrs: { name: props.name, fallback: props.fallback } }).run();
      },
      render: renderer,
    })];
  },
});
