// Open WebUI, unmodified, in a real browser: node webui.mjs WEBUI_URL CHROMIUM MODEL OPENAI_URL GGUF_FILE
import assert from 'node:assert/strict';
import {readFileSync} from 'node:fs';
import {chromium} from 'playwright-core';
import {call, runAll} from './tally.mjs';

const [, , base, executablePath, model, openai, gguf] = process.argv;
const name = 'open-webui', question = 'What is the capital of France?', answer = 'The capital of France is Paris.';
const browser = await chromium.launch({executablePath, args: ['--no-sandbox']});
const page = await browser.newPage({viewport: {width: 1280, height: 900}});
page.setDefaultTimeout(120_000);
let headers;

/// A request as the page makes them, with the account's token.
async function post(path, request) {
  const told = await page.request.post(base + path, {headers, timeout: 120_000, ...request});
  assert.ok(told.ok(), `${path}: ${told.status()} ${await told.text()}`);
  return told.text();
}

/// How the page treats a model. Without its own 36 tools, which take 14,000 tokens of each prompt.
function settings(id, toolIds = []) {
  return {id, base_model_id: null, name: id, params: {temperature: 0, max_tokens: 60, function_calling: 'native'},
          meta: {capabilities: {builtin_tools: false, file_context: true, citations: false}, toolIds}, access_grants: [], is_active: true};
}

/// A new chat with the model: what it says to the question.
async function chat(id, text, before = async () => {}) {
  await page.goto(`${base}/?models=${encodeURIComponent(id)}`);
  await page.locator('#chat-input').waitFor();
  await page.addLocatorHandler(page.getByText("Okay, Let's Go!"), button => button.click());
  await before();
  await page.locator('#chat-input').click();
  await page.keyboard.type(text);
  await page.keyboard.press('Enter');
  const said = page.locator('.chat-assistant .markdown-prose, .chat-assistant #response-content-container').last();
  await said.waitFor();
  const done = page.locator('button[aria-label="Regenerate"], button.regenerate-response-button').last();
  await done.waitFor({state: 'attached'});
  return (await page.locator('.chat-assistant').last().innerText()).trim();
}

await runAll({
  async 'sign up'() {
    await call(name, 'sign up', async () => {
      await page.goto(base);
      await page.getByText('Get started').click();
      await page.locator('input[autocomplete=name]').fill('Ann');
      await page.locator('input[type=email]').fill('ann@example.com');
      await page.locator('input[type=password]').fill('a-long-pass-word-1');
      await page.locator('button[type=submit]').click();
      await page.locator('#chat-input').waitFor();
    });
    headers = {Authorization: 'Bearer ' + await page.evaluate(() => localStorage.token)};
  },
  async 'both connections'() {
    await post('/openai/config/update', {data: {ENABLE_OPENAI_API: true, OPENAI_API_BASE_URLS: [openai], OPENAI_API_KEYS: ['none'],
                                                OPENAI_API_CONFIGS: {0: {enable: true, prefix_id: 'openai'}}}});
    await call(name, 'the models of both connections', async () => {
      const {data} = await (await page.request.get(base + '/api/models', {headers})).json();
      for (const id of [model, 'openai.' + model]) assert.ok(data.some(one => one.id === id), JSON.stringify(data.map(one => one.id)));
    });
    await post('/api/v1/tools/create', {data: {id: 'weather', name: 'Weather', meta: {description: 'The weather of a city'}, access_grants: [], content:
      'class Tools:\n    def weather(self, city: str) -> str:\n        """The weather of a city\n\n        :param city: the city\n        """\n        return "Sunny in " + city\n'}});
    for (const id of [model, 'openai.' + model]) await post('/api/v1/models/create', {data: settings(id)});
  },
  async 'chat as Ollama'() {
    await call(name, 'chat as Ollama', async () => assert.ok((await chat(model, question)).includes(answer)));
  },
  async 'chat as OpenAI'() {
    await call(name, 'chat as OpenAI', async () => assert.ok((await chat('openai.' + model, question)).includes(answer)));
  },
  async 'a file with retrieval'() {
    await call(name, 'a file with retrieval', () => chat('openai.' + model, 'What is in the note?', async () => {
      const told = page.waitForResponse(response => response.url().includes('/api/v1/files/') && response.request().method() === 'POST');
      await page.locator('input[type=file]').first().setInputFiles({name: 'note.txt', mimeType: 'text/plain', buffer: Buffer.from('The lantern has number 4711.\n')});
      assert.ok((await told).ok());
      await page.getByText('note.txt').first().waitFor();
      await page.waitForTimeout(5000);  // until it is embedded
    }));
  },
  async 'a tool'() {
    await post('/api/v1/models/model/update', {data: settings('openai.' + model, ['weather'])});
    await call(name, 'a tool', () => chat('openai.' + model, 'What is the weather in Paris?'));
  },
  async 'upload of a GGUF file'() {
    await call(name, 'upload of a GGUF file', async () => {
      const told = await post('/ollama/models/upload', {multipart: {file: {name: 'sent.gguf', mimeType: 'application/octet-stream', buffer: readFileSync(gguf)}}});
      assert.match(told, /"done": ?true/);
      assert.ok((await chat('sent:latest', question)).length > 0);
    });
  },
});
