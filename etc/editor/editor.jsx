// The broadcast editor: window.MailEditor.mount. What the page does with it (saving, previewing, history) is in static/broadcast-editor.js.
import "./nonce.js";
import { EmailEditor } from "@react-email/editor";
import { composeReactEmail } from "@react-email/editor/core";
import { Inspector } from "@react-email/editor/ui";
import { Placeholder } from "@tiptap/extension-placeholder";
import { createPortal } from "react-dom";
import { createRoot } from "react-dom/client";

import { Blocks } from "./blocks.js";
import { leaveImage, uploads } from "./images.js";
import { nameBlocks } from "./lists.js";
import { nameFields } from "./names.js";
import { nesting } from "./nesting.js";
import { PlainCodeBlock, UnsubscribeFooter, Variable } from "./nodes.js";
import { pasting } from "./pasting.js";
import { variableSuggestion } from "./suggestion.js";
import { theming } from "./theming.js";
import { Toolbar } from "./toolbar.jsx";

const LABEL = "Content of the email";
const hint = ({ node }) => (node.type.name === "heading" ? `Heading ${node.attrs.level}` : "Write here. “/” adds a block, “{{” a variable.");

// Puts the editor into `element`. `content`: its JSON, or "" for an empty one. `variables`: [{name, fallback}]. `upload` stores the file
// of an image that somebody pastes, drops or chooses, and returns a promise of its address; `say` shows a sentence about that. Returns a
// promise of {read}, which makes {json, html}.
function mount(element, { content, variables, changed, upload, say }) {
  const extensions = [
    // The toolbar works on the selection, so the selection stays when the toolbar takes the focus.
    Blocks.configure({
      CodeBlockPrism: false, MaxNesting: false, Link: { defaultProtocol: "https" }, FocusScopes: { clearSelectionOnBlur: false },
    }),
    PlainCodeBlock,
    Placeholder.configure({ placeholder: hint, includeChildren: true }),
    theming,
    Variable,
    UnsubscribeFooter,
    variableSuggestion(variables),
    nesting,
    pasting(say),
  ];
  const images = uploads(upload, say);
  let ours;
  const added = (file) => {
    leaveImage(ours);
    return images.store(file);
  };
  const above = document.createElement("div"); // before the text, so that the Tab key reaches it first
  const below = document.createElement("div");
  element.append(above, below);
  return new Promise((resolve) => {
    const ready = ({ editor }) => {
      ours = editor;
      editor.view.dom.setAttribute("aria-label", LABEL);
      editor.view.dom.setAttribute("role", "textbox");
      editor.view.dom.setAttribute("aria-multiline", "true");
      nameBlocks(editor.view.dom);
      requestAnimationFrame(() => nameFields(below.querySelector(".inspector")));
      resolve({
        read: async () => {
          await images.stored(editor);
          return { json: JSON.stringify(editor.getJSON()), html: (await composeReactEmail({ editor })).unformattedHtml };
        },
      });
    };
    createRoot(below).render(
      <EmailEditor content={content ? JSON.parse(content) : ""} extensions={extensions} onUploadImage={added} onReady={ready} onUpdate={changed} className="canvas">
        {createPortal(<Toolbar variables={variables} store={images.store} />, above)}
        <Inspector.Root className="inspector" aria-label="Appearance"><Inspector.Breadcrumb /><Inspector.Document /><Inspector.Node /><Inspector.Text /></Inspector.Root>
      </EmailEditor>,
    );
  });
}

window.MailEditor = { mount };
