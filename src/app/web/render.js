// The worker that makes HTML of Markdown and colours code. What a model writes may be made to keep a parser busy for ever:
// here it keeps only a worker busy, which the page ends (markdown.js). The page does not trust the HTML either: it goes
// through DOMPurify there.
//
// In:  {text, last}   text: what is not settled yet of an answer; last: no more comes
// Out: {settled: [html, ...], taken, open: html}   blocks that nothing that comes can change, how many characters of
//      `text` they are, and the block after them; {plain: true} where marked was not built in
'use strict';

console.log = () => {};  // highlight.js says at each start that it is old
const load = name => { try { importScripts(name); return true; } catch { return false; } };
const hasMarked = load('marked.js');
let hasHighlight = null;  // loaded when the first code comes

const MARK = '\uE009';  // a leading tab in a code block, which marked would make spaces of
const escape = text => text.replace(/[&<>"']/g, c => ({'&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;'})[c]);

let colours = false;  // the block that is made now is settled

function colour(code, language) {
  if (!colours || code.length > 100_000) return escape(code);
  hasHighlight ??= load('highlight.js');
  if (!hasHighlight || !language || !hljs.getLanguage(language)) return escape(code);
  return hljs.highlight(language, code, true).value;
}

/// An address: marked has escaped some of them already.
const attribute = href => href.replace(/[<>"']|&(?!#?\w{1,8};)/g, escape);
const goesOut = href => /^(https?:|mailto:)/i.test(href);
const renderer = {
  html: text => escape(text),
  code(code, info) {
    const language = /^[\w+#.-]*/.exec(info ?? '')[0].toLowerCase();
    return `<pre><code class="language-${escape(language)}">${colour(code.replaceAll(MARK, '\t'), language)}\n</code></pre>\n`;
  },
  codespan: text => `<code>${text}</code>`,
  link: (href, title, text) => goesOut(href) ? `<a href="${attribute(href)}">${text}</a>` : text,
  // A picture's address could carry what was said to a stranger.
  image: (href, title, text) => goesOut(href) ? `<a href="${attribute(href)}">${escape(text || href)}</a>` : escape(text ?? ''),
  checkbox: checked => checked ? '☑ ' : '☐ ',
};
// --- Formulas ---

let hasKatex = null;  // loaded when the first formula comes

/// KaTeX's HTML, with MathML beside it for screen readers. Styles of attributes would be refused by the page's policy: they
/// go as data-style, which the page reads. Where KaTeX is not built in, a formula stays as it is written.
function formulaHtml({raw, inner, display}) {
  hasKatex ??= load('katex.js');
  const plain = `<code class="formula">${escape(raw.trim())}</code>`;
  if (!hasKatex) return plain;
  try {
    const made = katex.renderToString(inner, {displayMode: display, throwOnError: true, trust: false, strict: 'ignore', maxExpand: 500, maxSize: 20});
    return made.replaceAll(' style="', ' data-style="');
  } catch {
    return plain;
  }
}
// Markdown would take their backslashes and underscores. A single $ counts as pandoc has it: no blank within, no digit
// behind, so that prices stay.
const INLINE = [[/^\\\(([^\n]{1,2000}?)\\\)/, false], [/^\\\[([^]{1,2000}?)\\\]/, true], [/^\$\$([^$]{1,2000}?)\$\$/, true],
                [/^\$(?![\s$])((?:\\[^\n]|[^\\$\n`]){0,500}?(?:\\[^\n]|[^\s\\$`]))\$(?!\d)/, false]];
const BLOCK = /^ {0,3}(?:\$\$([^$]{1,4000}?)\$\$|\\\[([^]{1,4000}?)\\\])[ \t]*(?:\n|$)/;
const formula = {
  name: 'formula',
  level: 'inline',
  start: text => text.search(/\\\(|\\\[|\$/),
  tokenizer(text) {
    for (const [pattern, display] of INLINE) {
      const found = pattern.exec(text);
      if (found) return {type: 'formula', raw: found[0], inner: found[1], display};
    }
    return undefined;
  },
  renderer: formulaHtml,
};
const formulaBlock = {
  name: 'formulaBlock',
  level: 'block',
  start: text => text.search(/(?<=\n) {0,3}(?:\$\$|\\\[)/),
  tokenizer(text) {
    const found = BLOCK.exec(text);
    return found ? {type: 'formulaBlock', raw: found[0], inner: found[1] ?? found[2], display: true} : undefined;
  },
  renderer: token => `<p>${formulaHtml(token)}</p>\n`,
};
if (hasMarked) marked.marked.use({renderer, extensions: [formulaBlock, formula], gfm: true, breaks: true, headerIds: false, mangle: false});

/// Keeps leading tabs in fences.
function keepTabs(text) {
  if (!text.includes('\t')) return text;
  let fence = null;
  return text.split('\n').map(line => {
    const mark = /^\s*(?:>\s*)*(`{3,}|~{3,})/.exec(line)?.[1];
    if (!fence) {
      if (mark) fence = mark;
      return line;
    }
    if (mark && mark[0] === fence[0] && mark.length >= fence.length && /^\s*(?:>\s*)*[`~]+\s*$/.test(line)) fence = null;
    return fence ? line.replace(/^\t+/, tabs => MARK.repeat(tabs.length)) : line;
  }).join('\n');
}

function html(tokens, settled) {
  colours = settled;
  return marked.marked.parser(tokens);
}

/// Where line `count` begins: a token's text may differ from what it was made of, but not in its lines.
function lineBegin(text, count) {
  let at = 0;
  while (count-- > 0) at = text.indexOf('\n', at) + 1;
  return at;
}

function render({text, last}) {
  if (!hasMarked) return {plain: true};
  const source = text.replace(/\r\n|\r/g, match => match.length === 2 ? ' \n' : '\n');
  const tokens = marked.marked.lexer(keepTabs(source));
  const end = last ? tokens.length : Math.max(0, tokens.findLastIndex(token => token.type !== 'space'));
  const settled = [], done = tokens.slice(0, end);
  for (const token of done) if (token.type !== 'space') settled.push(html([token], true));
  const newlines = done.reduce((count, token) => count + token.raw.split('\n').length - 1, 0);
  const taken = last ? text.length : lineBegin(source, newlines);
  return {settled, taken, open: last ? '' : html(tokens.slice(end), false)};
}

onmessage = ({data}) => {
  try {
    postMessage(render(data));
  } catch {
    postMessage({plain: true});
  }
};
