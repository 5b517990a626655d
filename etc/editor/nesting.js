// How deeply lists and sections can be nested. The library's own check looks at all ancestors of each node after each key, which takes most of
// the time in a long letter. This one looks at each block once.
import { Extension } from "@tiptap/core";
import { Plugin } from "@tiptap/pm/state";

const DEEPEST = 50;
const NESTED = ["section", "bulletList", "orderedList"];

function depth(node) {
  if (node.isTextblock || node.isLeaf) return 0;
  let most = 0;
  node.forEach((child) => { most = Math.max(most, depth(child)); });
  return most + (NESTED.includes(node.type.name) ? 1 : 0);
}

export const nesting = Extension.create({
  name: "nesting",
  addProseMirrorPlugins: () => [new Plugin({ filterTransaction: (change) => !change.docChanged || depth(change.doc) <= DEEPEST })],
});
