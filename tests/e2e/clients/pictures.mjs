// Pictures of the page: node pictures.mjs BASE_URL CHROMIUM FOLDER WHAT
// WHAT: first-run (a server without models), or light, dark (a server whose model streams). The answer with code, a table and a
// formula is put under the page by this script, since the bundled model writes only stories; everything else is real.
import {chromium} from 'playwright-core';

const [, , base, executablePath, folder, what] = process.argv;
const browser = await chromium.launch({executablePath, args: ['--no-sandbox']});
const ANSWER = `A prime has no divisor but 1 and itself. The **sieve of Eratosthenes** crosses out the multiples of each prime:

\`\`\`python
def primes(n):
    sieve = bytearray([1]) * n
    for p in range(2, int(n**0.5) + 1):
        if sieve[p]:
            sieve[p*p::p] = bytes(len(range(p*p, n, p)))
    return [i for i in range(2, n) if sieve[i]]
\`\`\`

| n | primes below n | $n / \\ln n$ |
|---:|---:|---:|
| 1,000 | 168 | 145 |
| 1,000,000 | 78,498 | 72,382 |

The last column is the prime number theorem:

$$\\pi(n) \\sim \\frac{n}{\\ln n}, \\qquad \\sum_{p \\le n} \\frac{1}{p} = \\ln \\ln n + M + o(1)$$
`;
const LOOKS = {viewport: {width: 1000, height: 640}, deviceScaleFactor: 1.5, locale: 'en-GB'};
const settled = page => page.waitForFunction(() => !document.querySelector('#send').hidden, null, {timeout: 60000});
async function open(options) {
  const page = await (await browser.newContext({...LOOKS, ...options})).newPage();
  await page.goto(base);
  await page.waitForSelector('#fitting li, #model option', {state: 'attached'});
  await page.waitForTimeout(500);
  return page;
}
async function say(page, text) {
  await page.fill('#prompt', text);
  await page.click('#send');
  await settled(page);
  await page.evaluate(() => document.fonts.ready);
  await page.waitForTimeout(300);
}
const take = (page, name) => page.screenshot({path: `${folder}/${name}.png`, animations: 'disabled'});
const answerWith = (page, text) => page.route('**/api/chat', route => route.fulfill({contentType: 'application/x-ndjson', body: [
  {message: {content: text}}, {message: {content: ''}, done: true, prompt_eval_count: 21, eval_count: 308, eval_duration: 24e9}].map(line => JSON.stringify(line)).join('\n') + '\n'}));

async function firstRun() {
  const page = await open({colorScheme: 'light'});
  await page.waitForSelector('#fitting li');
  await take(page, 'first-run');
}

async function chats(colorScheme) {
  const page = await open({colorScheme});
  if (colorScheme === 'light') await take(page, 'welcome');
  await page.click('#settings-open');
  await page.fill('#temperature', '0');
  await page.click('#settings-close');
  await say(page, 'What is the capital of Italy?');
  await page.click('#new');
  await page.setViewportSize({width: 1000, height: 900});
  await answerWith(page, ANSWER);
  await say(page, 'How do I find all primes below n, and how many are there?');
  await page.mouse.move(640, 500);  // the buttons of a turn are seen where the pointer is
  await take(page, 'chat-' + colorScheme);
  if (colorScheme === 'light') await phoneAndError(page);
  await page.unroute('**/api/chat');
  return page;
}
async function phoneAndError(page) {
  const phone = await open({viewport: {width: 360, height: 720}, deviceScaleFactor: 2, hasTouch: true, isMobile: true, colorScheme: 'dark'});
  await answerWith(phone, ANSWER);
  await say(phone, 'How do I find all primes below n?');
  await take(phone, 'phone');
  await phone.context().close();
  await page.click('#new');
  await page.setViewportSize({width: 1000, height: 400});
  await page.unroute('**/api/chat');
  await page.route('**/api/chat', route => route.fulfill({body: '{"message": {"content": "Once upon a time there was a fox"}}\n'}));
  await say(page, 'Tell me a story about a fox and a lantern.');
  await take(page, 'error');
}

/// After chats of somebody else: the tab is opened when they are over.
async function machine(page, colorScheme) {
  for (let i = 0; i < 3; ++i) {
    const response = await fetch(base + '/api/chat', {method: 'POST', body: JSON.stringify({
      model: await page.inputValue('#model'), messages: [{role: 'user', content: 'Tell me a story about a fox and a lantern.'}], stream: false})});
    await response.text();
    await page.waitForTimeout(1500);
  }
  await page.setViewportSize({width: 1000, height: 640});
  await page.click('#tab-machine');
  await page.waitForSelector('#live:not([hidden])');
  await page.waitForTimeout(2500);
  // As high as what it shows, up to the map of experts and the words below it.
  const height = await page.evaluate(() => document.querySelector('#heat-words').getBoundingClientRect().bottom + 24);
  await page.setViewportSize({width: 1000, height: Math.ceil(height)});
  await page.waitForTimeout(1500);
  await take(page, 'machine-' + colorScheme);
}

try {
  if (what === 'first-run') await firstRun();
  else await machine(await chats(what), what);
} finally {
  await browser.close();
}
