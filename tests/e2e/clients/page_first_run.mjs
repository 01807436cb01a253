// The page as a newcomer meets it, without a model: node page_first_run.mjs BASE_URL CHROMIUM
// The server's hub is the test's own: it has one small model, and none of the well-known ones.
import assert from 'node:assert/strict';
import {base, browser, openPlain, problems, settled} from './page_kit.mjs';

const text = (page, at) => page.textContent(at);

async function findsAModel(page) {
  await page.waitForSelector('#fitting li');
  assert.ok(await page.isVisible('#models'), 'there is nothing to chat with, so the models are shown');
  assert.match(await text(page, '#fitting-words'), /room for [\d.]+ [MG]B of weights in RAM/);
  const rows = await page.locator('#fitting li').allTextContents();
  assert.equal(rows.length, 5);
  for (const row of rows) assert.match(row, /[\d.]+ [MG]B · (about [\d.,]+ tok\/s|speed not known before the first run).*Pull$/);
  await page.click('#tab-chat');
  assert.match(await text(page, '#welcome'), /No model yet/);
  await page.click('#tab-models');
  // This hub has none of them: the error is in words, in view, and can be tried again.
  await page.locator('#fitting button').last().click();
  await page.waitForSelector('#pull-progress .problem');
  assert.match(await text(page, '#pull-progress'), /has no repository .*; check the name/);
  assert.ok(await page.locator('#pull-progress button:has-text("Retry")').evaluate(button => {
    const {top, bottom} = button.getBoundingClientRect();
    return top >= 0 && bottom <= innerHeight;
  }), 'in view');
  await page.fill('#hub-words', 'no such thing');
  await page.press('#hub-words', 'Enter');
  await page.waitForFunction(() => /no GGUF model named “no such thing”/.test(document.querySelector('#found').textContent));
  await page.fill('#hub-words', 'tiny');
  await page.press('#hub-words', 'Enter');
  await page.waitForSelector('#found .name');
  assert.deepEqual(await page.locator('#found .name').allTextContents(), ['someone/tiny-GGUF'], 'what cannot be a name is left out');
  assert.match(await text(page, '#found'), /1,234 downloads/);
  await page.click('#found button');
  await page.waitForSelector('#pull-progress button:has-text("Chat")');
  await page.click('#pull-progress button');
}

async function asks(page) {
  await page.waitForFunction(() => /Context: [\d,]+ tokens/.test(document.querySelector('#welcome-words').textContent));
  assert.match(await text(page, '#welcome-title'), /^Ask someone\/tiny-GGUF/);
  assert.equal(await page.locator('.example').count(), 3);
  await page.click('#settings-open');
  await page.fill('#num_predict', '60');
  await page.click('#settings-close');
  await page.locator('.example').first().click();
  assert.ok(await page.isHidden('#welcome'), 'the first message takes its place');
  await settled(page);
  assert.equal(await page.locator('.turn.assistant').count(), 1);
  await page.keyboard.press('Control+Shift+O');
  assert.ok(await page.isVisible('#welcome'));
  await page.waitForFunction(() => /The model is loaded/.test(document.querySelector('#welcome-words').textContent));
  await page.keyboard.press('Control+k');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'search');
}

/// What happened before the tab was opened, and what was loaded before.
async function machineRemembers(page) {
  await page.click('#tab-chat');
  await page.locator('.example').nth(1).click();
  await settled(page);
  await page.waitForTimeout(2200);  // the server looks once a second
  await page.reload();
  await page.click('#tab-machine');
  await page.waitForSelector('#history .history');
  // The answer of before is in the curve.
  await page.waitForFunction(() => Number(/, peak ([\d.,]+)/.exec(document.querySelector('#history .leaf').textContent)?.[1].replace(',', '') ?? 0) > 0);
  assert.match(await text(page, '#speed'), /^Idle\. /);
  const model = await page.inputValue('#model');
  await fetch(base + '/api/generate', {method: 'POST', body: JSON.stringify({model, keep_alive: 0, stream: false})});
  await page.waitForTimeout(300);
  await page.reload();
  await page.click('#tab-machine');
  await page.waitForSelector('#past:not([hidden]) .history');
  assert.match(await text(page, '#past'), /someone\/tiny-GGUF/);
  await page.click('#tab-models');
  await page.click('#list button:has-text("Load")');
  await page.waitForSelector('#list .loaded');
}

try {
  const page = await openPlain();
  await findsAModel(page);
  problems.length = 0;  // the browser reports the pull that failed
  await asks(page);
  await machineRemembers(page);
  assert.deepEqual(problems, []);
  console.log('ok');
} finally {
  await browser.close();
}
