// Uploading the files of images that somebody pastes, drops or chooses.

// While a file is uploaded the library shows it from an address that only this page knows. Such images must not be saved: undoing an
// upload brings them back without their content.
function removeTemporary(editor) {
  const { tr, doc } = editor.state;
  doc.descendants((node, at) => {
    if (node.type.name === "image" && node.attrs.src.startsWith("blob:")) tr.delete(tr.mapping.map(at), tr.mapping.map(at + node.nodeSize));
  });
  if (tr.docChanged) editor.view.dispatch(tr.setMeta("addToHistory", false));
}

// Puts the cursor behind a new image, which is selected: what is typed or added next would replace it.
export function leaveImage(editor) {
  const { selection, doc } = editor.state;
  if (selection.node?.type.name !== "image") return;
  const behind = selection.to;
  const chain = editor.chain();
  if (!doc.resolve(behind).nodeAfter?.isTextblock) chain.insertContentAt(behind, { type: "paragraph" }, { updateSelection: false });
  chain.setTextSelection(behind + 1).run();
}

// `upload` stores a file and returns a promise of its address; `say` shows a sentence. `store` is for the library and the toolbar, `stored`
// waits for uploads that have begun.
export function uploads(upload, say) {
  const running = new Set();
  const store = async (file) => {
    say("Uploading the image…");
    const begun = upload(file);
    running.add(begun);
    try {
      const url = await begun;
      say("The image was uploaded. Select it and choose “Image” to describe it for people who don’t see it.");
      return { url };
    } catch (error) {
      say(`Image not added: ${error.message}`);
      throw error;
    } finally {
      running.delete(begun);
    }
  };
  const stored = async (editor) => {
    while (running.size) await Promise.allSettled(running);
    await new Promise((resolve) => setTimeout(resolve)); // the library puts the address into the document now
    removeTemporary(editor);
  };
  return { store, stored };
}
