// Draws an answer while it comes: blocks that are finished are made once and stay, only the last one is drawn again, and
// not more often than a quarter of the time allows. Three fences stand between a model and the page: the worker escapes
// all HTML, DOMPurify lets only the tags below through, and the page's policy forbids everything else.
import {make, button, copyText} from './dom.js';
import {t} from './words.js';
import {newWorker} from './worker.js';

const TAGS = ['p', 'br', 'hr', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'ul', 'ol', 'li', 'blockquote', 'pre', 'code', 'span', 'em',
              'strong', 'del', 'a', 'table', 'thead', 'tbody', 'tr', 'th', 'td'];
// What KaTeX makes: MathML for screen readers, and lines and brackets that stretch as SVG.
const MATHS = ['math', 'semantics', 'annotation', 'mrow', 'mi', 'mn', 'mo', 'ms', 'mtext', 'mspace', 'msup', 'msub', 'msubsup', 'mfrac', 'msqrt', 'mroot', 'mover',
               'munder', 'munderover', 'mtable', 'mtr', 'mtd', 'mstyle', 'mpadded', 'mphantom', 'menclose', 'svg', 'path', 'line'];
const MATHS_ATTRIBUTES = ['data-style', 'viewBox', 'preserveAspectRatio', 'width', 'height', 'd', 'x1', 'x2', 'y1', 'y2', 'stroke-width', 'display', 'encoding',
                          'mathvariant', 'stretchy', 'fence', 'separator', 'accent', 'columnalign', 'columnspacing', 'rowspacing', 'displaystyle', 'scriptlevel'];
const RULES = {ALLOWED_TAGS: [...TAGS, ...MATHS], ALLOWED_ATTR: ['href', 'class', 'start', 'align', ...MATHS_ATTRIBUTES], ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false,
               ADD_URI_SAFE_ATTR: ['align', 'start', ...MATHS_ATTRIBUTES],
               ALLOWED_URI_REGEXP: /^(https?|mailto):/i, RETURN_DOM_FRAGMENT: true};
export const limits = {patience: 8000};  // milliseconds that a text may take to be made

// Debian 12's DOMPurify (2.4.1, deb12u1) asks for a variable of another of its functions, and stops there in everything.
window.shadowNode ??= {__depth: 0};
const purify = works(window.DOMPurify) ? window.DOMPurify : null;

/// Whether it is there and takes away what it should. Without it answers are plain text.
function works(candidate) {
  try {
    const probe = candidate.sanitize('<p>a<iframe></iframe></p>', RULES);
    return probe.childNodes.length === 1 && probe.firstChild.childNodes.length === 1 && probe.textContent === 'a';
  } catch {
    return false;
  }
}

// --- The worker ---

let worker = null, queue = Promise.resolve();

/// One text at a time, so that each has its own patience.
function render(text, last) {
  queue = queue.then(() => ask(text, last));
  return queue;
}
function ask(text, last) {
  if (!purify) return {plain: true};
  worker ??= newWorker('render.js');
  return new Promise(resolve => {
    const giveUp = () => {
      worker.terminate();
      worker = null;
      resolve({plain: true});
    };
    const alarm = setTimeout(giveUp, limits.patience);
    worker.onmessage = ({data}) => {
      clearTimeout(alarm);
      resolve(data);
    };
    worker.onerror = event => {
      event.preventDefault();
      clearTimeout(alarm);
      giveUp();
    };
    worker.postMessage({text, last});
  });
}

// --- What it made becomes elements ---

/// HTML as elements that can do nothing but be looked at, copied and followed.
export function safe(html) {
  const fragment = purify.sanitize(html, RULES);
  const formulas = [...fragment.querySelectorAll('.katex')];
  for (const element of fragment.querySelectorAll('[class]'))
    if (!element.closest('.katex-display, .katex'))
      element.className = [...element.classList].filter(name => /^(hljs-|language-|formula$)/.test(name)).join(' ');
  if (formulas.length > 0) styleFormulas(fragment);
  for (const element of fragment.querySelectorAll('p, li, h1, h2, h3, h4, h5, h6, blockquote, ul, ol, td, th')) element.dir = 'auto';
  for (const link of fragment.querySelectorAll('a')) {
    link.target = '_blank';
    link.rel = 'noopener noreferrer nofollow';
    link.title = link.href;
  }
  for (const table of fragment.querySelectorAll('table')) {
    const frame = make('div', 'table');
    table.replaceWith(frame);
    frame.append(table);
    frame.tabIndex = 0;
  }
  for (const pre of fragment.querySelectorAll('pre')) pre.replaceWith(codeBlock(pre));
  for (const node of [...fragment.childNodes])  // a block of HTML, which is shown as it is written
    if (node.nodeType === Node.TEXT_NODE && node.data.trim()) node.replaceWith(plainBlock(node.data.trim()));
  return fragment;
}

/// Sizes and places that KaTeX asks for. The page's policy takes no style from markup, so each is set by name, if it is one of
/// these.
const STYLE = /^(height|width|min-width|top|left|vertical-align|margin-(?:left|right|top)|padding-left|border-(?:bottom|right|top)-width): *(-?[\d.]+(?:em|ex|mu|%|px)?|calc\([\d.em% +-]+\))$|^(color|background-color|border-color): *(#[\da-f]{3,8}|[a-z]{3,20})$/i;
let sheet = null;
function styleFormulas(fragment) {
  if (!sheet) {
    sheet = document.createElement('link');
    Object.assign(sheet, {rel: 'stylesheet', href: 'page/katex.css'});
    document.head.append(sheet);
  }
  for (const element of fragment.querySelectorAll('[data-style]')) {
    for (const one of element.dataset.style.split(';')) {
      const found = STYLE.exec(one.trim());
      if (found) element.style.setProperty(found[1] ?? found[3], found[2] ?? found[4]);
    }
    element.removeAttribute('data-style');
  }
}

function codeBlock(pre) {
  const frame = make('div', 'code'), head = make('div', 'code-head');
  const language = /language-(\S+)/.exec(pre.querySelector('code')?.className ?? '')?.[1] ?? '';
  const code = pre.cloneNode(true);
  code.dir = 'ltr';
  code.tabIndex = 0;
  const copy = button(t('copy'), 'plain small', async () => {
    await copyText(code.textContent.replace(/\n$/, ''));
    copy.textContent = t('copied');
    setTimeout(() => { copy.textContent = t('copy'); }, 1500);
  });
  head.append(make('span', '', language), copy);
  frame.append(head, code);
  return frame;
}

function plainBlock(text) {
  const block = make('p', 'plain-text', text);
  block.dir = 'auto';
  return block;
}

// --- An answer ---

export class Drawing {
  #text = '';
  #settled = 0;      // characters of #text that are drawn for good
  #last = false;     // no more comes
  #working = null;   // the promise of the loop that draws
  #open = make('div', 'open');
  #onBlock;

  /// `element`: empty, becomes the answer. `onBlock` (may be left out): called with each block that is finished.
  constructor(element, onBlock) {
    this.element = element;
    this.#onBlock = onBlock ?? (() => {});
    element.append(this.#open);
  }

  /// The answer so far; it only grows.
  update(text) {
    this.#text = text;
    this.#working ??= this.#work();
  }
  /// The answer is whole. Resolves when it is drawn.
  async finish(text) {
    this.#text = text;
    this.#last = true;
    await this.#working;
    if (!this.#open) return;
    await this.#draw();
    this.#open?.remove();
    this.#open = null;
  }

  async #work() {
    for (let seen = -1; seen !== this.#text.length && !this.#last;) {
      seen = this.#text.length;
      const began = performance.now();
      await this.#draw();
      const took = performance.now() - began;
      await new Promise(done => setTimeout(done, Math.max(50, 3 * took)));
    }
    this.#working = null;
  }

  async #draw() {
    const last = this.#last, text = this.#text.slice(this.#settled);
    const made = await render(text, last);
    if (made.plain) {
      const block = plainBlock(text);
      this.#open.replaceChildren(block);
      if (last && text.trim()) this.#keep(block);
      return;
    }
    for (const html of made.settled) this.#keep(...safe(html).children);
    this.#settled += made.taken;
    this.#open.replaceChildren(safe(made.open));
  }
  #keep(...blocks) {
    for (const block of blocks) {
      this.#open.before(block);
      this.#onBlock(block);
    }
  }
}
