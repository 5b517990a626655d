// Pasting and dropping HTML: bold and italics that are styles become elements, a picture that only repeats the text is left out, and blocks
// of this editor stay in the one container. ProseMirror does the rest.
import { Extension } from "@tiptap/core";
import { Slice } from "@tiptap/pm/model";
import { Plugin } from "@tiptap/pm/state";

import { readPadding } from "./cells.js";
import { makeLists } from "./word.js";

const LONGEST = 500_000; // characters of text; more cannot be saved, and browsers need minutes for it
const KEPT = { a: ["href"], img: ["src", "alt", "width", "height"], td: ["colspan", "rowspan"], th: ["colspan", "rowspan"], ol: ["start"] };
const ANYWHERE = ["dir"];
const FORBIDDEN = "script, style, iframe, object, embed, meta, base, link, title, template, noscript";
const PUBLIC = /^(https?:|\{\{\{)/i; // images that recipients can load
const LINKS = /^(https?:|mailto:|tel:|sms:|#$|\{\{\{)/i; // "#": a button without a link yet

// What styles mean, as elements. Their text is read through an element made here, because the page's policy forbids style attributes.
const MARKS = {
  strong: ({ fontWeight }) => fontWeight === "bold" || fontWeight === "bolder" || Number(fontWeight) >= 600,
  em: ({ fontStyle }) => fontStyle === "italic",
  u: ({ textDecoration, textDecorationLine }) => /underline/.test(textDecorationLine || textDecoration),
  s: ({ textDecoration, textDecorationLine }) => /line-through/.test(textDecorationLine || textDecoration),
};
const NOT_BOLD = /^(normal|400)$/;

function setMarks(element) {
  const { style } = Object.assign(document.createElement("span"), { style: element.getAttribute("style") });
  if (element.matches("b, strong") && NOT_BOLD.test(style.fontWeight)) element.replaceWith(...element.childNodes);
  else if (element.matches("span, p, li, td, div, font"))
    for (const [mark, means] of Object.entries(MARKS)) {
      if (!means(style) || element.closest(`${mark}, a, h1, h2, h3`)) continue;
      const around = element.ownerDocument.createElement(mark);
      around.append(...element.childNodes);
      element.append(around);
    }
}

// Copied links have the underline of the theme as a style. Read as a mark, it would stay when the theme changes or the link is removed.
function withoutUnderline(link) {
  const { style } = Object.assign(document.createElement("span"), { style: link.getAttribute("style") });
  if (/underline/.test(style.textDecoration)) {
    style.textDecoration = "";
    link.setAttribute("style", style.cssText);
  }
}

// Takes out what an email cannot have. Returns how many images are left out because only this computer has them.
function tidy(body) {
  body.querySelectorAll(FORBIDDEN).forEach((one) => { one.remove(); });
  for (const link of body.querySelectorAll("a")) if (!LINKS.test(link.getAttribute("href")?.trim())) link.removeAttribute("href");
  const images = [...body.querySelectorAll("img[src]")].filter((one) => !PUBLIC.test(one.getAttribute("src").trim()));
  images.forEach((one) => { one.remove(); });
  return images.length;
}

// Of HTML made elsewhere, only its meaning stays, and the padding of its tables. That of this editor keeps its looks, but not the container,
// which is there already.
function clean(body, ours) {
  if (ours) {
    body.querySelectorAll("[data-type=container]").forEach((one) => { one.replaceWith(...one.childNodes); });
    body.querySelectorAll("a[style]").forEach(withoutUnderline);
  } else {
    makeLists(body);
    const setPadding = readPadding(body);
    body.querySelectorAll("[style]").forEach(setMarks);
    for (const element of body.querySelectorAll("*"))
      for (const { name } of [...element.attributes])
        if (!ANYWHERE.includes(name) && !KEPT[element.localName]?.includes(name)) element.removeAttribute(name);
    setPadding();
  }
}

// The first paragraph of what is pasted gets the attributes of the one with the cursor, unless it is closed: an empty one is replaced then.
function keepFirstDirection(slice, view) {
  const first = slice.content.firstChild, empty = !view.state.selection.$from.parent.content.size;
  return slice.openStart === 1 && first.attrs.dir && empty ? new Slice(slice.content, 0, slice.openEnd === 1 ? 0 : slice.openEnd) : slice;
}

function parse(html) {
  const { body } = new DOMParser().parseFromString(html, "text/html");
  return { body, left: tidy(body) };
}

export const pasting = (say) => Extension.create({
  name: "pasting",
  addProseMirrorPlugins() {
    const paste = (view, event) => {
      const data = event.clipboardData, html = data?.getData("text/html") ?? "", plain = data?.getData("text/plain") ?? "";
      if (view.composing || view.state.selection.$from.parent.type.spec.code) return false;
      if (plain.length > LONGEST) {
        say(`Not pasted: the text has more than ${LONGEST.toLocaleString()} characters.`);
        return true;
      }
      if (view.input.shiftKey && plain) return view.pasteText(plain); // Ctrl+Shift+V
      if (!html) return false;
      if (data.files[0] && !parse(html).body.textContent.trim()) return false; // a picture alone: the library uploads it
      return view.pasteHTML(html);
    };
    // Of what is dropped, too.
    const transformPastedHTML = (html) => {
      const { body, left } = parse(html);
      if (left) say("Images that aren’t on a website were left out. Add them with “Image”.");
      clean(body, html.includes("data-pm-slice"));
      return body.innerHTML;
    };
    const handle = (view, event) => {
      const done = paste(view, event);
      if (done) event.preventDefault();
      return done;
    };
    return [new Plugin({ props: { handleDOMEvents: { paste: handle }, transformPastedHTML, transformPasted: keepFirstDirection } })];
  },
});
