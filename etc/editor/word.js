// Lists that are copied from Word: it makes each item a paragraph that begins with its bullet or number, and has its list and level as a style.
const ITEM = /mso-list:\s*(l\d+) level(\d+) (lfo\d+)/i;
const BULLET = /^([^\p{L}\p{N}]{0,3}|\p{L})$/u; // empty: a picture
const NUMBER = /^\(?(\d+(\.\d+)*|\p{L}{1,2}|[ivxlcdm]+)[.)、]{0,2}$/iu;

// What the paragraph is in a list, or nothing: without a mark it belongs to the item before it, and with words for one ("Article 1") it is text.
function itemOf(paragraph) {
  const [, list, level, override] = paragraph.getAttribute("style").match(ITEM) ?? [];
  const mark = paragraph.querySelector("[style*='mso-list:Ignore' i], [style*='mso-list: Ignore' i]");
  if (!list || !mark) return null;
  const sign = mark.textContent.trim(), bullet = BULLET.test(sign), number = sign.match(NUMBER)?.[1];
  if (!bullet && !number) return null;
  const start = Number(number?.split(".").at(-1)) || 1; // letters begin with the first
  return { paragraph, mark, start, level: Number(level), kind: bullet ? "ul" : "ol", list: list + override };
}

function newList({ paragraph, kind, start }) {
  const list = paragraph.ownerDocument.createElement(kind);
  if (start > 1) list.setAttribute("start", start);
  if (paragraph.dir) list.dir = paragraph.dir;
  return list;
}

export function makeLists(body) {
  let open = []; // [{element, level, kind, list}] of the lists around the next item, outermost first
  for (const paragraph of body.querySelectorAll("p[style*='mso-list' i]")) {
    const item = itemOf(paragraph);
    if (!item) continue;
    if (paragraph.previousElementSibling !== open[0]?.element) open = [];
    while (open.at(-1)?.level > item.level) open.pop();
    const last = open.at(-1);
    if (last?.level === item.level && (last.kind !== item.kind || last.list !== item.list)) open.pop();
    if (open.at(-1)?.level !== item.level) {
      const element = newList(item), around = open.at(-1)?.element;
      if (around) around.lastElementChild.append(element);
      else paragraph.before(element);
      open.push({ ...item, element });
    }
    const entry = body.ownerDocument.createElement("li");
    open.at(-1).element.append(entry);
    item.mark.remove();
    entry.append(paragraph);
  }
}
