// Pictures on the page: node page_pictures.mjs BASE_URL CHROMIUM SEES BLIND FOLDER
// SEES and BLIND: a model that reads pictures and one that does not; FOLDER: tests/data/pictures.
import assert from 'node:assert/strict';
import {randomBytes} from 'node:crypto';
import {readFileSync} from 'node:fs';
import {mkdtemp, readFile, rm, writeFile} from 'node:fs/promises';
import {tmpdir} from 'node:os';
import zlib from 'node:zlib';
import {answers, answerWith, base, browser, open, openStored, pieces, problems, rest, runAll, say, settled} from './page_kit.mjs';

const [sees, blind, folder] = rest;
const TYPES = {png: 'image/png', jpg: 'image/jpeg', webp: 'image/webp', gif: 'image/gif'};
const bytesOf = name => readFileSync(`${folder}/${name}`);
const base64Of = name => bytesOf(name).toString('base64');
const given = (name, buffer = bytesOf(name)) => ({name, mimeType: TYPES[name.split('.').at(-1)], buffer});

/// A PNG of noise: of 24 bits a pixel, which nothing makes smaller.
function noise(width, height) {
  const chunk = (type, data) => {
    const framed = Buffer.concat([Buffer.alloc(4), Buffer.from(type), data, Buffer.alloc(4)]);
    framed.writeUInt32BE(data.length);
    framed.writeUInt32BE(zlib.crc32(framed.subarray(4, -4)), framed.length - 4);
    return framed;
  };
  const head = Buffer.alloc(13), rows = randomBytes((1 + 3 * width) * height);
  head.writeUInt32BE(width);
  head.writeUInt32BE(height, 4);
  head.set([8, 2], 8);
  for (let row = 0; row < height; ++row) rows[row * (1 + 3 * width)] = 0;
  return Buffer.concat([Buffer.from('\x89PNG\r\n\x1a\n', 'latin1'), chunk('IHDR', head), chunk('IDAT', zlib.deflateSync(rows, {level: 0})), chunk('IEND', Buffer.alloc(0))]);
}

const attach = (page, ...files) => page.setInputFiles('#attach-file', files);
const attached = (page, n) => page.waitForFunction(n => document.querySelectorAll('#files .remove').length === n && !document.querySelector('#files > .words'), n);
const problem = (page, pattern) => page.waitForFunction(([source]) => new RegExp(source).test(document.querySelector('#problem').textContent), [pattern.source]);
const thumbnails = (page, where, n) => page.waitForFunction(([where, n]) => {
  const images = [...document.querySelectorAll(`${where} .picture img`)];
  return images.length === n && images.every(image => image.complete && image.naturalWidth > 0);
}, [where, n]);
/// Waits for the answer to this many questions.
const asked = async (page, all, n) => {
  for (let i = 0; all.length < n && i < 300; ++i) await page.waitForTimeout(50);
  assert.equal(all.length, n);
  await settled(page);
};
function watched(page) {
  const all = [];
  page.on('request', request => request.url().endsWith('/api/chat') && all.push(request.postDataJSON()));
  return all;
}
const stored = page => page.evaluate(() => new Promise(resolve => {
  indexedDB.open('millrace-pictures', 1).onsuccess = ({target: {result: database}}) => {
    database.transaction('pictures').objectStore('pictures').count().onsuccess = ({target}) => resolve(target.result);
  };
}));
async function useModel(page, name) {
  await page.selectOption('#model', {label: await page.$$eval('#model option', (options, name) => options.find(option => option.value.startsWith(name)).label, name)});
}
async function begin(page) {
  await page.unroute('**/api/chat');
  await page.click('#new');
  await page.fill('#prompt', '');
}

/// By the button, from the clipboard and dropped; taken away by keys; sent to the server without a word beside them.
async function threeWays(page) {
  const all = watched(page);
  await page.click('#settings-open');
  await page.fill('#num_predict', '4');
  await page.click('#settings-close');
  await attach(page, given('colour.png'), given('baseline.jpg'));
  await attached(page, 2);
  await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
  await page.evaluate(async base64 => {
    const blob = new Blob([Uint8Array.from(atob(base64), c => c.charCodeAt(0))], {type: 'image/png'});
    await navigator.clipboard.write([new ClipboardItem({'image/png': blob})]);
  }, base64Of('grey.png'));
  await page.focus('#prompt');
  await page.keyboard.press('Control+V');
  await attached(page, 3);
  const dropped = await page.evaluateHandle(base64 => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([Uint8Array.from(atob(base64), c => c.charCodeAt(0))], 'lossy.webp', {type: 'image/webp'}));
    return transfer;
  }, base64Of('lossy.webp'));
  await page.dispatchEvent('#talk', 'drop', {dataTransfer: dropped});
  await attached(page, 4);
  await thumbnails(page, '#files', 4);
  assert.deepEqual(await page.$$eval('#files img', images => images.map(image => image.alt)), ['colour.png', 'baseline.jpg', 'image.png', 'lossy.webp']);
  assert.equal(await page.textContent('#problem'), '');

  await page.focus('[aria-label="Remove baseline.jpg"]');
  await page.keyboard.press('Enter');
  await attached(page, 3);
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute('aria-label')), 'Remove image.png', 'the keys stay among the files');
  await page.press('#prompt', 'Enter');
  await asked(page, all, 1);
  const [{role, content, images}] = all[0].messages;
  assert.deepEqual([all[0].messages.length, role, content, images.length], [1, 'user', '', 3]);
  assert.deepEqual([images[0], images[2]], [base64Of('colour.png'), base64Of('lossy.webp')], 'the bytes as they are');
  assert.match(images[1], /^iVBORw0KGgo/, 'what the clipboard had is a PNG');
  assert.equal(await page.locator('li.file').count(), 0);
  // The server saw them: it counts the same tokens as for anybody who sends them, more than for none.
  const count = async messages => (await (await page.request.post(base + '/api/chat', {data: {...all[0], messages, stream: false}})).json()).prompt_eval_count;
  const tokens = await count(all[0].messages);
  assert.ok(tokens > await count([{role, content: ''}]));
  assert.match(await page.locator('.turn.assistant .turn-tools').textContent(), new RegExp(`${tokens} prompt tokens`));
  assert.equal(await page.inputValue('#title'), 'colour.png');
}

async function shown(page) {
  await thumbnails(page, '.turn.user', 3);
  await page.click('.turn.user .picture >> nth=0');
  await page.waitForFunction(() => document.querySelector('#picture').open && document.querySelector('#whole').naturalWidth > 0);
  const size = await page.$eval('#whole', image => [image.naturalWidth, image.naturalHeight, image.alt]);
  const ppm = bytesOf('colour.png.ppm').toString('latin1').split(/\s+/);
  assert.deepEqual(size, [Number(ppm[1]), Number(ppm[2]), 'colour.png']);
  await page.click('#actual');
  assert.equal(await page.getAttribute('#actual', 'aria-pressed'), 'true');
  await page.keyboard.press('Escape');
  await page.waitForFunction(() => !document.querySelector('#picture').open);
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute('aria-label')), 'Show colour.png in full size');
  await page.setViewportSize({width: 360, height: 640});
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'wider than a phone');
  await page.setViewportSize({width: 1100, height: 760});
}

async function kept(page) {
  const all = watched(page);
  assert.equal(await stored(page), 3);
  await page.reload();
  await page.waitForFunction(() => document.querySelector('#model').options.length > 0);
  await page.click('.entry');
  await thumbnails(page, '.turn.user', 3);
  await page.click('.again');
  await asked(page, all, 1);
  assert.equal(all[0].messages[0].images.length, 3, 'another answer sees them, too');

  await page.click('.turn.user .edit');
  await thumbnails(page, '.editor', 3);
  await page.click('.editor [aria-label="Remove image.png"]');
  await page.fill('.editor textarea', 'and these?');
  await page.click('.editor button[type=submit], .editor .row button >> nth=0');
  await asked(page, all, 2);
  assert.deepEqual(all[1].messages, [{role: 'user', content: 'and these?', images: [base64Of('colour.png'), base64Of('lossy.webp')]}]);
  await thumbnails(page, '.turn.user', 2);
  await page.click('.turn.user [aria-label="Previous version"]');
  await thumbnails(page, '.turn.user', 3);
  await say(page, 'a word more');
  await asked(page, all, 3);
  assert.deepEqual(all[2].messages.map(message => message.images?.length), [3, undefined, undefined]);
  assert.equal(await stored(page), 3, 'branches share them');
}

async function exported(page) {
  const save = async button => {
    const [download] = await Promise.all([page.waitForEvent('download'), page.click(button)]);
    return readFile(await download.path(), 'utf8');
  };
  assert.ok((await save('#export')).includes(`\n\n![colour.png](data:image/png;base64,${base64Of('colour.png')})\n\n`));
  const all = JSON.parse(await save('#export-all'));
  const [{turns, pictures}] = all.conversations;
  assert.equal(Object.keys(pictures).length, 3, 'once, however many branches show it');
  const [first] = turns[0].files;
  assert.deepEqual([first.name, pictures[first.picture]], ['colour.png', base64Of('colour.png')]);
  page.once('dialog', dialog => dialog.accept());
  await page.click('#remove');
  await page.waitForFunction(() => document.querySelectorAll('.entry').length === 0);
  assert.equal(await stored(page), 0, 'pictures go with their conversation');
  // What others wrote is checked: bytes of no picture, ids of pictures that are not theirs.
  turns[0].files.push(...['page', 'worse', 'number', 'none', 'toString'].map(picture => ({name: 'x', type: 'image/png', picture})));
  Object.assign(pictures, {page: Buffer.from('<script>').toString('base64'), worse: 'not base64', number: 3});
  first.type = 'text/html';
  const file = `${tmpdir()}/millrace-page-${process.pid}.json`;
  await writeFile(file, JSON.stringify(all));
  await page.setInputFiles('#import-file', file);
  await page.waitForFunction(() => document.querySelector('#side-note').textContent === '1 imported');
  await page.click('.entry');
  await thumbnails(page, '.turn.user', 3);
  assert.equal(await stored(page), 3);
  const asks = watched(page);
  await page.click('.again >> nth=0');
  await asked(page, asks, 1);
  assert.equal(asks[0].messages[0].images[0], base64Of('colour.png'));
  await page.click('.turn.user .picture >> nth=0');
  await page.waitForFunction(() => document.querySelector('#whole').src.startsWith('data:image/png;'));
  await page.click('#picture-close');
  // A list of messages, as APIs take them.
  await writeFile(file, JSON.stringify([{role: 'user', content: 'from elsewhere', images: [base64Of('baseline.jpg')]}]));
  await page.setInputFiles('#import-file', file);
  await page.click('.entry:has-text("from elsewhere")');
  await thumbnails(page, '.turn.user', 1);
  await rm(file);
}

/// The server explains what is wrong with a damaged picture; without it the conversation goes on.
async function damaged(page) {
  await begin(page);
  const all = watched(page), torn = bytesOf('colour.png').subarray(0, 60);
  await attach(page, given('torn.png', torn));
  await say(page, 'what is it?');  // at once: the message waits for its files
  await asked(page, all, 1);
  assert.deepEqual(all[0].messages[0].images, [torn.toString('base64')]);
  await page.waitForFunction(() => /torn.png this browser cannot show it/.test(document.querySelector('.turn.user').textContent));
  assert.match(await page.textContent('.turn.error'), /Could not process image.*Retry/);
  assert.equal(await page.getAttribute('.turn.error', 'role'), 'alert');
  await page.click('.turn.error button');
  await asked(page, all, 2);
  await page.click('.turn.user .edit');
  await page.click('.editor .remove');
  await page.click('.editor .row button >> nth=0');
  await asked(page, all, 3);
  assert.deepEqual(all[2].messages, [{role: 'user', content: 'what is it?'}]);
  assert.equal(await page.locator('.turn.error').count(), 0);
  problems.length = 0;  // the browser told of each 400
}

/// What the server would refuse becomes smaller here, or is refused in words.
async function tooLarge(page) {
  await begin(page);
  const all = [];
  await answerWith(page, pieces('Seen.'), all);
  const limit = limits => page.evaluate(async limits => Object.assign((await import('/page/pictures.js')).limits, limits), limits);
  const whole = await limit({});
  await limit({pixels: 63});
  await attach(page, given('colour.png'));
  await attached(page, 1);
  assert.match(await page.textContent('#files'), /scaled down to \d+ × \d+/);
  await limit({...whole, bytes: 2000});
  await attach(page, given('big.png', noise(64, 64)), given('small.png', noise(16, 16)));
  await attached(page, 2);
  await problem(page, /^big\.png has more than .* smaller copy\.$/);
  await limit({bytes: 6000});
  await attach(page, given('big.png', noise(64, 64)));
  await attached(page, 3);
  await limit({...whole, memory: 96e6 + 6 * 12_000});  // 12 kB of base64 for the conversation, of which a good part is taken
  await attach(page, given('third.png', noise(64, 64)));
  await problem(page, /^third\.png does not fit/);
  await limit(whole);
  await attach(page, given('still.gif'));
  await problem(page, /^still\.gif is not a PNG, JPEG or WebP picture\./);
  await attached(page, 3);
  await say(page, 'look');
  await asked(page, all, 1);
  const images = all[0].messages[0].images.map(image => Buffer.from(image, 'base64'));
  assert.deepEqual(images.map(image => image.subarray(0, 3).toString('hex')), ['ffd8ff', '89504e', 'ffd8ff']);
  assert.ok(images[2].length <= 6000);
  assert.equal(await page.textContent('#problem'), '', 'what was said of files goes with the message');
}

/// The conversation's text outlives a storage that is full.
async function fullStorage() {
  const profile = await mkdtemp(`${tmpdir()}/millrace-page-`), page = await openStored(profile);
  await useModel(page, sees);
  const all = [], devtools = await page.context().newCDPSession(page);
  await answerWith(page, pieces('A **grey** field.'), all);
  await devtools.send('Storage.overrideQuotaForOrigin', {origin: base, quotaSize: 500_000});
  await attach(page, given('field.png', noise(1000, 1000)));
  await attached(page, 1);
  await say(page, 'what is it?');
  await asked(page, all, 1);
  await problem(page, /storage is full: the conversation’s text is saved/);
  assert.equal(all[0].messages[0].images.length, 1);
  await thumbnails(page, '.turn.user', 1);
  await page.click('.again');
  await asked(page, all, 2);
  assert.equal(all[1].messages[0].images.length, 1, 'the page still has it');
  await devtools.send('Storage.overrideQuotaForOrigin', {origin: base});
  await page.reload();
  await page.waitForFunction(() => document.querySelector('#model').options.length > 0);
  await page.click('.entry:has-text("what is it?") >> nth=0');
  await page.waitForFunction(() => /field.png no longer in this browser/.test(document.querySelector('.turn.user').textContent));
  assert.deepEqual(await answers(page), ['A grey field.']);
  await page.click('.again');
  await asked(page, all, 3);
  assert.deepEqual(all[2].messages[0], {role: 'user', content: '[field.png: the picture is no longer there]\n\nwhat is it?'});
  await page.context().close();
  await rm(profile, {recursive: true});
}

/// A model of texts gets no picture: the page says so, and what to do.
async function refused(page) {
  await begin(page);
  const all = watched(page), words = new RegExp(`${blind} reads text only, not pictures\\. Choose a model .* \\(--mmproj FILE\\)\\.`);
  await attach(page, given('colour.png'));
  await attached(page, 1);
  await useModel(page, blind);
  await problem(page, words);
  await say(page, 'what is it?');
  await page.waitForTimeout(300);
  assert.deepEqual([all.length, await page.locator('.turn').count(), await page.inputValue('#prompt')], [0, 0, 'what is it?'], 'the message stays where it is');
  await useModel(page, sees);
  await page.waitForFunction(() => document.querySelector('#problem').textContent === '');
  await page.press('#prompt', 'Enter');
  await asked(page, all, 1);
  await useModel(page, blind);
  await attach(page, given('colour.png'), given('notes.txt', Buffer.from('a note')), given('baseline.jpg'));
  await problem(page, words);
  await attached(page, 1);
  assert.equal(await page.locator('#problem p').count(), 1, 'said once');
  assert.match(await page.textContent('#files'), /notes\.txt/, 'texts are taken');
  await page.click('#files .remove');
  await page.click('.again');  // whose question has a picture
  await page.waitForSelector('.turn.error');
  assert.match(await page.textContent('.turn.error'), words);
  assert.equal(all.length, 1);
  await useModel(page, sees);
  await page.click('.turn.error button');
  await asked(page, all, 2);
}

/// Office programs copy a text with a picture of it: the text is meant.
async function copiedText(page) {
  await begin(page);
  await page.evaluate(async base64 => {
    const blob = new Blob([Uint8Array.from(atob(base64), c => c.charCodeAt(0))], {type: 'image/png'});
    await navigator.clipboard.write([new ClipboardItem({'text/plain': 'a cell', 'text/html': '<b>a cell</b>', 'image/png': blob})]);
  }, base64Of('grey.png'));
  await page.focus('#prompt');
  await page.keyboard.press('Control+V');
  await page.waitForFunction(() => document.querySelector('#prompt').value === 'a cell');
  await attached(page, 0);
}

try {
  const page = await open();
  await useModel(page, sees);
  await runAll(page, {threeWays, shown, kept, exported, damaged, tooLarge, fullStorage, refused, copiedText});
  console.log('ok');
} finally {
  await browser.close();
}
