// What the tests of the page share: the browser, its pages, a question, the answer that is put under it.
// Scripts are called as: node SCRIPT BASE_URL CHROMIUM ...
import assert from 'node:assert/strict';
import {chromium} from 'playwright-core';

export const [, , base, executablePath, ...rest] = process.argv;
export const browser = await chromium.launch({executablePath, args: ['--no-sandbox']});
export const problems = [];

const LOOKS = {viewport: {width: 1100, height: 760}, locale: 'en-GB'};
/// Before any model is there.
export const openPlain = async () => pageOf(await browser.newContext(LOOKS), undefined, false);
export const open = async (options = {}, prepare) => pageOf(await browser.newContext({...LOOKS, ...options}), prepare);
/// With storage on the disk, as readers have it: a context of `browser` is a private window, whose storage counts what it refused.
export const openStored = async folder => pageOf(await chromium.launchPersistentContext(folder, {executablePath, args: ['--no-sandbox'], ...LOOKS}));
async function pageOf(context, prepare = async () => {}, hasModels = true) {
  const page = await context.newPage();
  page.on('pageerror', error => problems.push(String(error)));
  page.on('console', message => message.type() === 'error' && problems.push(message.text()));
  page.on('request', request => request.url().startsWith(base) || /^(data|blob):/.test(request.url()) || problems.push('asked ' + request.url()));
  await prepare(page);
  page.setDefaultTimeout(15_000);
  await page.goto(base);
  if (hasModels) await page.waitForFunction(() => document.querySelector('#model').options.length > 0);
  return page;
}
export const settled = page => page.waitForFunction(() => !document.querySelector('#send').hidden, null, {timeout: 60000});
export async function answers(page) {
  await page.evaluate(() => Promise.all([...document.querySelectorAll('.turn')].map(turn => turn.drawn)));
  return page.locator('.turn.assistant .text').allTextContents();
}
export async function say(page, text) {
  await page.fill('#prompt', text);
  await page.press('#prompt', 'Enter');
}
/// The next questions get this answer, a message a piece; what was asked is put into `asked`.
export async function answerWith(page, messages, asked = []) {
  await page.unroute('**/api/chat');
  const lines = [...messages.map(message => ({message})), {message: {content: ''}, done: true, prompt_eval_count: 3, eval_count: 9, eval_duration: 1e9}];
  await page.route('**/api/chat', route => {
    asked.push(route.request().postDataJSON());
    return route.fulfill({contentType: 'application/x-ndjson', body: lines.map(line => JSON.stringify(line)).join('\n') + '\n'});
  });
}
export const pieces = text => text.match(/[^]{1,7}/gu).map(content => ({content}));
/// Runs the parts in this order on one page, then ends.
export async function runAll(page, parts) {
  for (const [name, part] of Object.entries(parts)) {
    const began = performance.now();
    await part(page);
    assert.deepEqual(problems, [], name);
    console.log(`${name}: ${((performance.now() - began) / 1000).toFixed(1)} s`);
  }
}
