// The toolbar above the text of the broadcast editor: everything on it is a native control that the keyboard reaches.
import { setCurrentTheme } from "@react-email/editor/plugins";
import { useCurrentEditor, useEditorState } from "@tiptap/react";
import { useId, useState } from "react";

import { footerContent, UNSUBSCRIBE_URL } from "./nodes.js";

const BLOCKS = [["p", "Text"], ["1", "Title"], ["2", "Heading"], ["3", "Subheading"]];
const MARKS = [["bold", "Bold", "B"], ["italic", "Italic", "I"], ["underline", "Underline", "U"], ["strike", "Strikethrough", "S"]];

const blockOf = (editor) => BLOCKS.slice(1).find(([level]) => editor.isActive("heading", { level: Number(level) }))?.[0] ?? "p";

function look({ editor }) {
  const { node } = editor.state.selection;
  return {
    block: blockOf(editor),
    marks: MARKS.map(([name]) => editor.isActive(name)),
    bullets: editor.isActive("bulletList"),
    numbers: editor.isActive("orderedList"),
    link: editor.getAttributes("link").href ?? "",
    variable: node?.type.name === "variable" ? node.attrs : null,
    undo: editor.can().undo(),
    redo: editor.can().redo(),
    theme: editor.storage.theme ?? "",
  };
}

const Button = ({ label, pressed, disabled, onClick, children }) => (
  <button type="button" className="tool" title={label} aria-label={label} aria-pressed={pressed} disabled={disabled} onClick={onClick}>{children}</button>
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
    <span className="tools" role="group" aria-label="Variable">
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

function LinkField({ editor, href }) {
  const [typed, type] = useState(null);
  const id = useId();
  const apply = () => {
    const chain = editor.chain().focus().extendMarkRange("link");
    (typed.trim() ? chain.setLink({ href: typed.trim() }) : chain.unsetLink()).run();
    type(null);
  };
  const keys = (event) => {
    if (event.key === "Enter") { event.preventDefault(); apply(); }
    if (event.key === "Escape") { type(null); editor.commands.focus(); }
  };
  if (typed === null) return <button type="button" className="tool wide" aria-pressed={Boolean(href)} onClick={() => type(href)}>Link</button>;
  return (
    <span className="tools" role="group" aria-label="Link">
      <label className="hidden" htmlFor={id}>Link address</label>
      <input id={id} type="text" autoFocus value={typed} placeholder="https://example.com" onChange={(event) => type(event.target.value)} onKeyDown={keys} />
      <button type="button" className="tool wide" onClick={() => type(UNSUBSCRIBE_URL)}>Unsubscribe link</button>
      <button type="button" className="tool wide" onClick={apply}>Apply</button>
    </span>
  );
}

export function Toolbar({ variables, pickImage }) {
  const { editor } = useCurrentEditor();
  const now = useEditorState({ editor, selector: (given) => (given.editor ? look(given) : null) });
  if (!editor || !now) return null;
  const run = (change) => change(editor.chain().focus()).run();
  const setBlock = (value) => run((chain) => (value === "p" ? chain.setParagraph() : chain.setHeading({ level: Number(value) })));
  const setTheme = (theme) => { setCurrentTheme(editor, theme); editor.storage.theme = theme; };
  const addFooter = () => editor.chain().focus("end").insertContentAt(editor.state.doc.content.size - 1, footerContent).run();
  return (
    <div className="toolbar" role="toolbar" aria-label="Formatting">
      <select aria-label="Style of the paragraph" value={now.block} onChange={(event) => setBlock(event.target.value)}>
        {BLOCKS.map(([value, name]) => <option key={value} value={value}>{name}</option>)}
      </select>
      {MARKS.map(([name, label, sign], place) => (
        <Button key={name} label={label} pressed={now.marks[place]} onClick={() => run((chain) => chain.toggleMark(name))}><span className={`sign ${name}`}>{sign}</span></Button>
      ))}
      <Button label="Bulleted list" pressed={now.bullets} onClick={() => run((chain) => chain.toggleBulletList())}>•</Button>
      <Button label="Numbered list" pressed={now.numbers} onClick={() => run((chain) => chain.toggleOrderedList())}>1.</Button>
      <LinkField editor={editor} href={now.link} />
      <button type="button" className="tool wide" onClick={() => run((chain) => chain.setButton())}>Button</button>
      <button type="button" className="tool wide" onClick={() => run((chain) => chain.setHorizontalRule())}>Divider</button>
      {pickImage && <button type="button" className="tool wide" onClick={() => pickImage(editor)}>Image</button>}
      <button type="button" className="tool wide" onClick={addFooter}>Unsubscribe footer</button>
      <Variables editor={editor} variables={variables} selected={now.variable} />
      <label className="theme">Theme <select value={now.theme || "basic"} onChange={(event) => setTheme(event.target.value)}>
        <option value="basic">Styled</option><option value="minimal">Plain</option>
      </select></label>
      <Button label="Undo" disabled={!now.undo} onClick={() => run((chain) => chain.undo())}>↶</Button>
      <Button label="Redo" disabled={!now.redo} onClick={() => run((chain) => chain.redo())}>↷</Button>
    </div>
  );
}
