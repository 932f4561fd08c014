// Elements from names and values. Text only ever becomes text nodes: there is no other way in here.

const SVG = 'http://www.w3.org/2000/svg';
const SHOWN = 4000; // characters of a long text before its "show all" button

function el(name, options = {}, ...children) {
  const element = options.svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key === 'svg' || value === undefined || value === null || value === false) continue;
    if (key === 'class') element.setAttribute('class', value);
    else if (key === 'on') for (const [type, f] of Object.entries(value)) element.addEventListener(type, f);
    else if (key === 'style') for (const [k, v] of Object.entries(value)) element.style.setProperty(k, v);
    else element.setAttribute(key, value === true ? '' : visible(String(value)));
  }
  element.append(...children.flat(9).filter((c) => c !== null && c !== undefined && c !== false).map(asNode));
  return element;
}

const asNode = (child) => (child instanceof Node ? child : document.createTextNode(visible(String(child))));

// Control and other invisible characters, bidirectional overrides among them, spelled out; newline, tab and
// the joiners of scripts and emoji stay.
const HIDDEN = /(?![\n\t\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const escaped = (c) => {
  const code = c.codePointAt(0);
  if (code < 256) return `\\x${code.toString(16).padStart(2, '0')}`;
  return code < 65536 ? `\\u${code.toString(16).padStart(4, '0')}` : `\\u{${code.toString(16)}}`;
};
const visible = (text) => text.replace(HIDDEN, escaped);

// A text as it was written, what is searched for marked; a long one opens whole by its button.
function textBlock(text, style = '') {
  const block = el('div', { class: `text ${style}`, dir: 'auto' });
  const fill = (shown) => block.replaceChildren(...marked(visible(shown)));
  if (text.length <= SHOWN) fill(text);
  else {
    fill(text.slice(0, SHOWN));
    const more = `… show all ${short(text.length)} characters`;
    block.append(el('button', { type: 'button', class: 'more', on: { click: () => fill(text) } }, more));
  }
  return block;
}

function marked(text) {
  const pattern = searched();
  if (!pattern) return [document.createTextNode(text)];
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(pattern)) {
    parts.push(document.createTextNode(text.slice(end, found.index)), el('mark', {}, found[0]));
    end = found.index + found[0].length;
    if (parts.length > 2000) break;
  }
  parts.push(document.createTextNode(text.slice(end)));
  return parts;
}

// A heading that opens what `body` makes, which is made when it is opened for the first time.
function opener(heading, body, options = {}) {
  const details = el('details', { class: `opener ${options.class ?? ''}` }, el('summary', {}, heading));
  let made = false;
  const make = () => {
    if (!made && details.open) details.append(body());
    made ||= details.open;
  };
  details.addEventListener('toggle', make);
  details.make = () => { details.open = true; make(); };
  if (options.open) details.make();
  return details;
}

// A JSON value for reading: texts as texts, lists and objects indented; deeper than that as JSON.
function valueBlock(value, depth = 0) {
  if (typeof value === 'string') return textBlock(value);
  if (value === null || typeof value !== 'object') return el('div', { class: 'text' }, JSON.stringify(value));
  if (depth > 5) return textBlock(JSON.stringify(value, null, 1));
  const entries = Object.entries(value);
  if (!entries.length) return el('div', { class: 'text dim' }, Array.isArray(value) ? 'empty list' : 'empty');
  if (Array.isArray(value) && value.every((v) => v === null || typeof v !== 'object') && JSON.stringify(value).length < 240) {
    return el('div', { class: 'items' }, value.map((v) => el('span', { class: 'text' }, typeof v === 'string' ? v : JSON.stringify(v))));
  }
  const rows = entries.map(([name, inner]) => [el('dt', {}, name), el('dd', {}, valueBlock(inner, depth + 1))]);
  return el('dl', { class: 'value' }, rows);
}

function jsonBlock(text) {
  try {
    return valueBlock(JSON.parse(text));
  } catch {
    return textBlock(text);
  }
}

function table(columns, rows, options = {}) {
  const heads = columns.map((c) => el('th', { class: c.startsWith('>') ? 'right' : '' }, c.replace('>', '')));
  const body = rows.map((row) =>
    el('tr', {}, row.map((cell, i) => el('td', { class: columns[i].startsWith('>') ? 'right' : '' }, cell ?? '–'))));
  const made = el('table', options, el('thead', {}, el('tr', {}, heads)), el('tbody', {}, body));
  return el('div', { class: 'scroll' }, made);
}

const card = (title, ...children) => el('div', { class: 'card' }, el('h2', {}, title), children);
const byId = (id) => document.getElementById(id);
const roleClass = (role) => (roles.includes(role) ? `role-${roles.indexOf(role) % 8}` : 'role-none');
