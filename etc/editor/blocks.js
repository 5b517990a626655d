// The library's blocks, with what it leaves out of the email: the direction of writing, and table cells over several columns or rows.
import { EmailNode } from "@react-email/editor/core";
import { StarterKit } from "@react-email/editor/extensions";
import { Extension } from "@tiptap/core";
import { cloneElement } from "react";

const WITH_DIRECTION = ["paragraph", "heading", "blockquote", "bulletList", "orderedList", "listItem", "table", "tableCell", "tableHeader"];
const SIDES = { Left: "Right", Right: "Left" };

const directionOf = (element) => element?.closest("[dir]")?.getAttribute("dir").toLowerCase();

// Only what differs from an email in English: "rtl", and "ltr" within it.
function readDirection(element) {
  const direction = directionOf(element);
  const differs = direction === "rtl" || (direction === "ltr" && directionOf(element.parentElement) === "rtl");
  return differs ? direction : null;
}

// The theme indents lists and quotes on the left.
const mirrored = (style = {}) => Object.fromEntries(
  Object.entries(style).map(([name, value]) => [name.replace(/Left|Right/, (side) => SIDES[side]), value]));

const span = (count) => (Number(count) > 1 ? Number(count) : undefined);

function complete(block) {
  if (!(block instanceof EmailNode && WITH_DIRECTION.includes(block.name))) return block;
  const render = block.config.renderToReactEmail;
  return block.extend({
    renderToReactEmail: (props) => {
      const { dir, colspan, rowspan } = props.node.attrs ?? {};
      const drawn = render(props);
      const style = dir === "rtl" ? mirrored(drawn.props.style) : drawn.props.style;
      return cloneElement(drawn, { dir: dir ?? undefined, colSpan: span(colspan), rowSpan: span(rowspan), style });
    },
  });
}

const direction = Extension.create({
  name: "direction",
  addGlobalAttributes: () => [{
    types: WITH_DIRECTION,
    attributes: { dir: { default: null, parseHTML: readDirection, renderHTML: ({ dir }) => (dir ? { dir } : {}) } },
  }],
});

export const Blocks = StarterKit.extend({
  addExtensions() { return [...this.parent().map(complete), direction]; },
});
