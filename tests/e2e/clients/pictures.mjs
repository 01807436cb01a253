// Pictures of the page while a model streams: node pictures.mjs BASE_URL CHROMIUM FOLDER light|dark
import {chromium} from 'playwright-core';

const [, , base, executablePath, folder, colorScheme] = process.argv;
const browser = await chromium.launch({executablePath, args: ['--no-sandbox']});
const asks = ['What is the capital of Italy?', 'What is the capital of France?', 'Tell me a story about a fox and a lantern.'];
const settled = page => page.waitForFunction(() => !document.querySelector('#send').hidden, null, {timeout: 60000});
async function say(page, text) {
  await page.fill('#prompt', text);
  await page.press('#prompt', 'Enter');
}

try {
  const context = await browser.newContext({viewport: {width: 1000, height: 600}, deviceScaleFactor: 2, colorScheme, locale: 'en-GB'});
  const page = await context.newPage();
  await page.goto(base);
  await page.waitForFunction(() => document.querySelector('#model').options.length > 0);
  await page.click('#settings > summary');
  await page.fill('#temperature', '0');
  await page.click('#settings > summary');
  await say(page, asks[0]);
  await settled(page);
  await page.click('#new');
  await say(page, asks[1]);
  await settled(page);
  await say(page, asks[2]);
  await page.waitForFunction(() => document.querySelectorAll('.turn.assistant')[1]?.textContent.length > 250);
  await page.screenshot({path: `${folder}/chat-${colorScheme}.png`});
  await settled(page);

  // The machine while it answers somebody else.
  let busy = true;
  const answering = (async () => {
    while (busy) {
      const response = await fetch(base + '/api/chat', {method: 'POST', body: JSON.stringify({
        model: await page.inputValue('#model'), messages: [{role: 'user', content: asks[2]}], stream: false})});
      await response.text();
    }
  })();
  await page.click('#tab-machine');
  await page.waitForSelector('#live:not([hidden])');
  await page.waitForTimeout(9000);
  // As high as what it shows, up to the map of experts and the words below it.
  const height = await page.evaluate(() => document.querySelector('#heat-words').getBoundingClientRect().bottom + 24);
  await page.setViewportSize({width: 1000, height: Math.ceil(height)});
  await page.screenshot({path: `${folder}/machine-${colorScheme}.png`});
  busy = false;
  await answering;
} finally {
  await browser.close();
}
