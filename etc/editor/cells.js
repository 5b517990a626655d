// The padding of pasted table cells. Without any, the columns of an email run into each other; but a letter that is laid out with tables would
// be torn apart by padding that it did not have. So a cell keeps its own. Spreadsheets have theirs in a style sheet, and little.
const SPREADSHEET = "meta[name=ProgId i][content^=Excel], google-sheets-html-origin, [data-sheets-root]";
const IN_SPREADSHEETS = "4px 8px";
const LENGTHS = /^[\d.]+[a-z]*( [\d.]+[a-z]*){0,3}$/;

function paddingOf(cell) {
  const { style } = Object.assign(document.createElement("span"), { style: cell.getAttribute("style") ?? "" });
  if (LENGTHS.test(style.padding)) return style.padding;
  const all = parseInt(cell.closest("table").getAttribute("cellpadding"), 10);
  return all > 0 ? `${all}px` : "";
}

// Returns a function that sets it, for when the cells have lost their other styles.
export function readPadding(body) {
  const spreadsheet = body.ownerDocument.querySelector(SPREADSHEET);
  const found = [...body.querySelectorAll("td, th")].map((cell) => [cell, spreadsheet ? IN_SPREADSHEETS : paddingOf(cell)]);
  return () => {
    for (const [cell, padding] of found) if (padding) cell.setAttribute("style", `padding:${padding}`);
  };
}
