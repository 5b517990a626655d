// Stands for the package `hast-util-from-html`, which the editor uses only to read what the highlighter made (prism.js).
export const fromHtml = (text) => ({ children: [{ value: text }] });
