// The broadcast editor: window.MailEditor.mount. What the page does with it (saving, previewing, history) is in static/broadcast-editor.js.
import "./nonce.js";
import { EmailEditor } from "@react-email/editor";
import { composeReactEmail } from "@react-email/editor/core";
import { StarterKit } from "@react-email/editor/extensions";
import { EmailTheming, getEmailTheming } from "@react-email/editor/plugins";
import { Inspector } from "@react-email/editor/ui";
import { Placeholder } from "@tiptap/extension-placeholder";
import { createRoot } from "react-dom/client";

import { PlainCodeBlock, UnsubscribeFooter, Variable } from "./nodes.js";
import { variableSuggestion } from "./suggestion.js";
import { Toolbar } from "./toolbar.jsx";

const LABEL = "Content of the email";
const hint = ({ node }) => (node.type.name === "heading" ? `Heading ${node.attrs.level}` : "Write here. “/” adds a block, “{{” a variable.");

// Puts the editor into `element`. `content`: its JSON, or "" for an empty one. `variables`: [{name, fallback}]. `upload`: takes a file,
// returns a promise of {url}; null: images cannot be uploaded. Returns a promise of {read}, which makes {json, html}.
function mount(element, { content, variables, upload, changed }) {
  const extensions = [
    StarterKit.configure({ CodeBlockPrism: false }),
    PlainCodeBlock,
    Placeholder.configure({ placeholder: hint, includeChildren: true }),
    EmailTheming,
    Variable,
    UnsubscribeFooter,
    variableSuggestion(variables),
  ];
  const pickImage = upload && ((editor) => editor.commands.uploadImage());
  return new Promise((resolve) => {
    const ready = ({ editor }) => {
      editor.storage.theme = getEmailTheming(editor).theme;
      editor.view.dom.setAttribute("aria-label", LABEL);
      editor.view.dom.setAttribute("role", "textbox");
      editor.view.dom.setAttribute("aria-multiline", "true");
      resolve({
        read: async () => ({ json: JSON.stringify(editor.getJSON()), html: (await composeReactEmail({ editor })).unformattedHtml }),
        focus: () => editor.commands.focus("end"),
      });
    };
    createRoot(element).render(
      <EmailEditor content={content ? JSON.parse(content) : ""} extensions={extensions} onUploadImage={upload ?? undefined} onReady={ready} onUpdate={changed} className="canvas">
        <Toolbar variables={variables} pickImage={pickImage} />
        <Inspector.Root className="inspector" aria-label="Appearance"><Inspector.Breadcrumb /><Inspector.Document /><Inspector.Node /><Inspector.Text /></Inspector.Root>
      </EmailEditor>,
    );
  });
}

window.MailEditor = { mount };
