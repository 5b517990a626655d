// The toolbar above the text of the broadcast editor: everything on it is a native control that the keyboard reaches.
import { getEmailTheming, setCurrentTheme } from "@react-email/editor/plugins";
import { useCurrentEditor, useEditorState } from "@tiptap/react";
import { useId, useState } from "react";

import { leaveImage } from "./images.js";
import { footerContent, UNSUBSCRIBE_URL } from "./nodes.js";

const BLOCKS = [["p", "Text"], ["1", "Title"], ["2", "Heading"], ["3", "Subheading"]];
const MARKS = [["bold", "Bold", "B"], ["italic", "Italic", "I"], ["underline", "Underline", "U"], ["strike", "Strikethrough", "S"]];

const blockOf = (editor) => BLOCKS.slice(1).find(([level]) => editor.isActive("heading", { level: Number(level) }))?.[0] ?? "p";

const KINDS = "image/png,image/jpeg,image/gif,image/webp";

// What people type as an address, as one that works in an email: with a scheme.
function complete(typed) {
  const url = typed.trim();
  if (!url || /^([a-z][a-z0-9+-]*:|[#{]|\/[^/])/i.test(url)) return url;
  if (/^[^\s/@]+@[^\s/@]+$/.test(url)) return `mailto:${url}`;
  return `https://${url.replace(/^\/\//, "")}`;
}

const withoutNothing = (href) => (href === "#" ? "" : href); // what a new button has

function look({ editor }) {
  const { node } = editor.state.selection;
  return {
    block: blockOf(editor),
    marks: MARKS.map(([name]) => editor.isActive(name)),
    bullets: editor.isActive("bulletList"),
    numbers: editor.isActive("orderedList"),
    link: editor.isActive("button") ? withoutNothing(editor.getAttributes("button").href) : editor.getAttributes("link").href ?? "",
    variable: node?.type.name === "variable" ? node.attrs : null,
    image: node?.type.name === "image" ? node.attrs : null,
    undo: editor.can().undo(),
    redo: editor.can().redo(),
    theme: getEmailTheming(editor).theme,
  };
}

const Button = ({ label, pressed, disabled, onClick, children }) => (
  <button type="button" className="tool" title={label} aria-label={label} aria-pressed={pressed} disabled={disabled} onClick={onClick}>{children}</button>
);

// The signs of lists: pictures, because a visible "1." would be another name than the one that screen readers say.
const BULLETS = "M2.5 4v.01M2.5 8v.01M2.5 12v.01", NUMBERS = "M1.5 3l1.3-.8v4.3M1.4 10.6c.3-1.1 2.4-1 2.3.2 0 .9-1.2 1.4-2.3 2.7h2.5";
const ListSign = ({ marks }) => (
  <svg className="sign list" viewBox="0 0 16 16" aria-hidden="true"><path d="M6.5 4H14M6.5 8H14M6.5 12H14" /><path d={marks} className={marks === BULLETS ? "dots" : ""} /></svg>
);

// Inserts the chosen variable and selects its chip, so that its fallback can be typed.
function Variables({ editor, variables, selected }) {
  const [chosen, choose] = useState(variables[0]?.name ?? "");
  const id = useId();
  const insert = () => {
    const { name, fallback } = variables.find((each) => each.name === chosen);
    const at = editor.state.selection.from;
    editor.chain().focus().insertContent({ type: "variable", attrs: { name, fallback } }).setNodeSelection(at).run();
  };
  return (
    <span className="tools">
      <label className="hidden" htmlFor={id}>Variable</label>
      <select id={id} value={chosen} onChange={(event) => choose(event.target.value)}>
        {variables.map(({ name }) => <option key={name}>{name}</option>)}
      </select>
      <button type="button" className="tool wide" onClick={insert}>Insert variable</button>
      {selected && (
        <label className="fallback">Fallback for {selected.name}
          <input value={selected.fallback} maxLength={200} onChange={(event) => editor.commands.updateAttributes("variable", { fallback: event.target.value })} />
        </label>
      )}
    </span>
  );
}

// A button that opens fields; Enter applies them, Escape closes them. `fields`: [name, label, placeholder] of each.
function Fields({ label, pressed, fields, initial, apply, children }) {
  const [typed, type] = useState(null);
  const [left, leave] = useState(false); // by Escape: the focus goes back to the button
  const id = useId();
  if (typed === null) {
    const open = () => { leave(false); type(initial); };
    return <button type="button" className="tool wide" aria-pressed={pressed} autoFocus={left} onClick={open}>{label}</button>;
  }
  const done = () => { apply(typed); type(null); };
  const keys = (event) => {
    if (event.nativeEvent.isComposing || event.keyCode === 229) return; // for an input method, as of Japanese; 229 is Safari's sign of it
    if (event.key === "Enter") { event.preventDefault(); done(); }
    if (event.key === "Escape") { leave(true); type(null); }
  };
  return (
    <span className="tools">
      {fields.map(([name, text, placeholder], place) => (
        <label key={name} htmlFor={id + name}>{text}
          <input id={id + name} type="text" autoFocus={place === 0} value={typed[name]} placeholder={placeholder} onChange={(event) => type({ ...typed, [name]: event.target.value })} onKeyDown={keys} />
        </label>
      ))}
      {children?.((values) => type((now) => now && { ...now, ...values }))}
      <button type="button" className="tool wide" onClick={done}>Apply</button>
    </span>
  );
}

function LinkField({ editor, href }) {
  const apply = ({ url }) => {
    const chain = editor.chain().focus(), href = complete(url);
    if (editor.isActive("button")) chain.updateButton({ href: href || "#" }).run();
    else (href ? chain.extendMarkRange("link").setLink({ href }) : chain.extendMarkRange("link").unsetLink()).run();
  };
  return (
    <Fields label="Link" pressed={Boolean(href)} fields={[["url", "Link address", "https://example.com"]]} initial={{ url: href }} apply={apply}>
      {(change) => <button type="button" className="tool wide" onClick={() => change({ url: UNSUBSCRIBE_URL })}>Unsubscribe link</button>}
    </Fields>
  );
}

// Adds an image, or changes the selected one. `store` uploads a file.
function ImageField({ editor, selected, store }) {
  const apply = ({ url, alt }) => {
    const image = { src: complete(url), alt: alt.trim() };
    if (!image.src) return;
    if (selected) editor.chain().focus().updateAttributes("image", image).run();
    else if (editor.chain().focus().setImage(image).run()) leaveImage(editor);
  };
  const chosen = async (event, change) => {
    const [file] = event.target.files;
    if (file) await store(file).then(change, () => {}); // the page says why it failed
  };
  const fields = [["url", "Image address", "https://example.com/image.png"], ["alt", "Description", "For people who don’t see it"]];
  return (
    <Fields label="Image" pressed={Boolean(selected)} fields={fields} initial={{ url: selected?.src ?? "", alt: selected?.alt ?? "" }} apply={apply}>
      {(change) => <label>Upload <input type="file" accept={KINDS} onChange={(event) => chosen(event, change)} /></label>}
    </Fields>
  );
}

export function Toolbar({ variables, store }) {
  const { editor } = useCurrentEditor();
  const now = useEditorState({ editor, selector: (given) => (given.editor ? look(given) : null) });
  if (!editor || !now) return null;
  const run = (change) => change(editor.chain().focus()).run();
  const setBlock = (value) => run((chain) => (value === "p" ? chain.setParagraph() : chain.setHeading({ level: Number(value) })));
  const addFooter = () => editor.chain().focus("end").insertContentAt(editor.state.doc.content.size - 1, footerContent).run();
  return (
    <div className="toolbar" role="toolbar" aria-label="Formatting">
      <select aria-label="Style of the paragraph" value={now.block} onChange={(event) => setBlock(event.target.value)}>
        {BLOCKS.map(([value, name]) => <option key={value} value={value}>{name}</option>)}
      </select>
      {MARKS.map(([name, label, sign], place) => (
        <Button key={name} label={label} pressed={now.marks[place]} onClick={() => run((chain) => chain.toggleMark(name))}><span className={`sign ${name}`}>{sign}</span></Button>
      ))}
      <Button label="Bulleted list" pressed={now.bullets} onClick={() => run((chain) => chain.toggleBulletList())}><ListSign marks={BULLETS} /></Button>
      <Button label="Numbered list" pressed={now.numbers} onClick={() => run((chain) => chain.toggleOrderedList())}><ListSign marks={NUMBERS} /></Button>
      <LinkField editor={editor} href={now.link} />
      <button type="button" className="tool wide" onClick={() => run((chain) => chain.setButton())}>Button</button>
      <button type="button" className="tool wide" onClick={() => run((chain) => chain.setHorizontalRule())}>Divider</button>
      <ImageField editor={editor} selected={now.image} store={store} />
      <button type="button" className="tool wide" onClick={addFooter}>Unsubscribe footer</button>
      <Variables editor={editor} variables={variables} selected={now.variable} />
      <label className="theme">Theme <select value={now.theme} onChange={(event) => setCurrentTheme(editor, event.target.value)}>
        <option value="basic">Styled</option><option value="minimal">Plain</option>
      </select></label>
      <Button label="Undo" disabled={!now.undo} onClick={() => run((chain) => chain.undo())}>↶</Button>
      <Button label="Redo" disabled={!now.redo} onClick={() => run((chain) => chain.redo())}>↷</Button>
    </div>
  );
}
