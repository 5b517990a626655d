// What the broadcast editor adds to the library's blocks: the variable chip, the unsubscribe footer, and code without colors.
import { CodeBlock } from "@tiptap/extension-code-block";
import { EmailNode } from "@react-email/editor/core";
import { createElement } from "react";

export const UNSUBSCRIBE_URL = "{{{UNSUBSCRIBE_URL}}}";
const CODE = { background: "#f1f5f9", color: "#1e293b", fontFamily: "Menlo,Consolas,monospace", padding: "12px 16px", whiteSpace: "pre-wrap" };

const withoutBraces = (text) => text.replace(/[{}]/g, "");
export const braces = ({ name, fallback }) => `{{{contact.${name}${fallback ? `|${withoutBraces(fallback)}` : ""}}}}`;

export const Variable = EmailNode.create({
  name: "variable",
  group: "inline",
  inline: true,
  atom: true,
  addAttributes: () => ({
    name: { default: "", parseHTML: (element) => element.dataset.variable },
    fallback: { default: "", parseHTML: (element) => element.dataset.fallback ?? "" },
  }),
  parseHTML: () => [{ tag: "span[data-variable]" }],
  renderHTML: ({ node: { attrs } }) => [
    "span",
    { class: "variable", "data-variable": attrs.name, "data-fallback": attrs.fallback },
    attrs.fallback ? `${attrs.name} or “${attrs.fallback}”` : attrs.name,
  ],
  renderText: ({ node }) => braces(node.attrs),
  renderToReactEmail: ({ node }) => braces(node.attrs),
});

export const UnsubscribeFooter = EmailNode.create({
  name: "unsubscribeFooter",
  group: "block",
  content: "inline*",
  defining: true,
  parseHTML: () => [{ tag: "p[data-unsubscribe-footer]" }],
  renderHTML: () => ["p", { "data-unsubscribe-footer": "", class: "unsubscribe-footer" }, 0],
  renderToReactEmail: ({ children }) =>
    createElement("p", { style: { color: "#6b7280", fontSize: "12px", lineHeight: "18px", margin: "32px 0 0", textAlign: "center" } }, children),
});

export const footerContent = {
  type: "unsubscribeFooter",
  content: [
    { type: "text", text: "You get this email because you subscribed to it. " },
    { type: "text", text: "Unsubscribe", marks: [{ type: "link", attrs: { href: UNSUBSCRIBE_URL, target: null } }] },
  ],
};

export const PlainCodeBlock = EmailNode.from(CodeBlock, ({ node }) =>
  createElement("pre", { style: CODE }, createElement("code", null, (node.content ?? []).map((each) => each.text).join(""))),
);
