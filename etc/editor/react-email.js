// Stands for the package `react-email` in the bundle: only the components that the editor uses. The whole package has build tools in it.
import { createElement } from "react";
import { renderToStaticMarkup } from "../node_modules/react-dom/cjs/react-dom-server-legacy.browser.production.js";

export { Body } from "../node_modules/react-email/dist/components/body/body.mjs";
export { Button } from "../node_modules/react-email/dist/components/button/button.mjs";
export { Column } from "../node_modules/react-email/dist/components/column/column.mjs";
export { Container } from "../node_modules/react-email/dist/components/container/container.mjs";
export { Head } from "../node_modules/react-email/dist/components/head/head.mjs";
export { Heading } from "../node_modules/react-email/dist/components/heading/heading.mjs";
export { Hr } from "../node_modules/react-email/dist/components/hr/hr.mjs";
export { Html } from "../node_modules/react-email/dist/components/html/html.mjs";
export { Img } from "../node_modules/react-email/dist/components/img/img.mjs";
export { Link } from "../node_modules/react-email/dist/components/link/link.mjs";
export { Preview } from "../node_modules/react-email/dist/components/preview/preview.mjs";
export { Row } from "../node_modules/react-email/dist/components/row/row.mjs";
export { Section } from "../node_modules/react-email/dist/components/section/section.mjs";

// Code without colors: the highlighter is larger than the editor.
export const CodeBlock = ({ code, theme, style }) => createElement("pre", { style: { ...theme.base, ...style } }, createElement("code", null, code));

// Only the unformatted HTML is sent.
export const pretty = (html) => html;
export const toPlainText = () => "";

// As the package does it, but not in byte streams, which Safari does not have. React asks browsers to load images early; an email cannot.
const DOCTYPE = '<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN" "http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">';
export const render = async (email) =>
  DOCTYPE + renderToStaticMarkup(email).replace(/<!DOCTYPE[^>]*>/, "").replace(/<link rel="preload" as="image"[^>]*>/g, "");
