// The page in a real browser: node page.mjs BASE_URL CHROMIUM [FOLDER FOR PICTURES]
import assert from 'node:assert/strict';
import {chromium} from 'playwright-core';

const [, , base, executablePath, pictures] = process.argv;
const browser = await chromium.launch({executablePath, args: ['--no-sandbox']});
const problems = [];

async function open(options = {}) {
  const page = await (await browser.newContext({viewport: {width: 1100, height: 760}, ...options})).newPage();
  page.on('pageerror', error => problems.push(String(error)));
  page.on('console', message => message.type() === 'error' && problems.push(message.text()));
  await page.goto(base);
  await page.waitForFunction(() => document.querySelector('#model').options.length > 0);
  return page;
}
const picture = async (page, name) => pictures && page.screenshot({path: `${pictures}/${name}.png`});
const settled = page => page.waitForFunction(() => !document.querySelector('#send').hidden, null, {timeout: 60000});
const answers = page => page.locator('.turn.assistant').allTextContents();

try {
  const page = await open();
  await page.click('summary');
  await page.fill('#temperature', '0');
  await page.fill('#prompt', 'What is the capital of France?');
  await page.press('#prompt', 'Enter');
  await settled(page);
  assert.deepEqual(await answers(page), ['The capital of France is Paris.']);
  assert.match(await page.textContent('#status'), /tok\/s/);
  await page.click('#again');
  await settled(page);
  assert.deepEqual(await answers(page), ['The capital of France is Paris.'], 'regenerating takes the place of the old answer');

  await page.fill('#num_predict', '1800');
  await page.fill('#temperature', '2');
  await page.fill('#prompt', 'Tell me a story about a fox and a lantern.');
  await page.press('#prompt', 'Enter');
  await page.waitForFunction(() => document.querySelectorAll('.turn.assistant')[1]?.textContent.length > 20);
  if (await page.isVisible('#stop')) await page.keyboard.press('Escape');
  await settled(page);
  await picture(page, 'chat');

  await page.fill('#prompt', '<img src=x onerror=alert(1)>');
  await page.press('#prompt', 'Enter');
  await settled(page);
  assert.equal(await page.locator('#log img').count(), 0, 'what is said is never HTML');

  await page.focus('#tab-chat');
  await page.keyboard.press('ArrowRight');
  await page.waitForSelector('#list li');
  assert.ok((await page.textContent('#list')).includes('loaded'));
  await picture(page, 'models');
  await page.keyboard.press('ArrowRight');
  await page.waitForSelector('#live:not([hidden])');
  assert.equal(await page.locator('.tier').count(), 2);
  assert.match(await page.textContent('#split-words'), /A pass: /);
  const [columns, rows] = await page.$eval('#heat', canvas => [canvas.width, canvas.height]);
  assert.deepEqual([columns, rows], [16, 6], 'a row a layer, a column an expert');
  await page.waitForTimeout(900);
  await picture(page, 'machine');
  await page.click('#theme');
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), 'dark');

  const phone = await open({viewport: {width: 360, height: 640}, colorScheme: 'dark', hasTouch: true});
  for (const view of ['chat', 'models', 'machine']) {
    await phone.click('#tab-' + view);
    await phone.waitForTimeout(200);
    assert.ok(await phone.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${view} is wider than a phone`);
    await picture(phone, 'phone-' + view);
  }
  assert.deepEqual(problems, []);
  console.log('ok');
} finally {
  await browser.close();
}
