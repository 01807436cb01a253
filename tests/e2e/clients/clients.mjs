// The published clients, unmodified, against a running server: node clients.mjs BASE_URL MODEL
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import {betaTool} from '@anthropic-ai/sdk/helpers/beta/json-schema';
import Ajv from 'ajv';
import {Ollama} from 'ollama';
import OpenAI, {toFile} from 'openai';
import {zodResponseFormat, zodTextFormat} from 'openai/helpers/zod';
import {z} from 'zod';
import {call, fails, refused, runAll} from './tally.mjs';

const [, , base, model] = process.argv;
const question = [{role: 'user', content: 'What is the capital of France?'}];
const answer = 'The capital of France is Paris.';
const story = [{role: 'user', content: 'Tell me a story about a fox and a lantern.'}];
const dot = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==';  // a PNG of one pixel
const schema = {
  type: 'object',
  properties: {city: {type: 'string', maxLength: 12}, count: {type: 'integer', minimum: 0, maximum: 99},
               kinds: {type: 'array', items: {enum: ['a', 'b']}, maxItems: 3}},
  required: ['city', 'count', 'kinds'],
  additionalProperties: false,
};
const parameters = {type: 'object', properties: {city: {type: 'string', maxLength: 12}}, required: ['city'], additionalProperties: false};
const tool = {type: 'function', function: {name: 'weather', description: 'The weather of a city', parameters}};
const valid = new Ajv().compile(schema), validArguments = new Ajv().compile(parameters);

const ollama = new Ollama({host: base});
const openai = new OpenAI({baseURL: base + '/v1', apiKey: 'none', maxRetries: 0});
const anthropic = new Anthropic({baseURL: base, apiKey: 'none', maxRetries: 0});
const greedy = {temperature: 0};

await runAll({
  async 'ollama: chat, stream, generate'() {
    const whole = await call('ollama', 'chat', () => ollama.chat({model, messages: question, options: greedy}));
    assert.equal(whole.message.content, answer);
    await call('ollama', 'chat as a stream', async () => {
      let text = '';
      for await (const part of await ollama.chat({model, messages: question, stream: true, options: greedy})) text += part.message.content;
      assert.equal(text, answer);
    });
    const generated = await call('ollama', 'generate', () => ollama.generate({model, prompt: question[0].content, options: greedy}));
    assert.equal(generated.response, answer);
  },
  async 'ollama: list, show, ps, version, copy, create, delete'() {
    const list = await call('ollama', 'list', () => ollama.list());
    assert.ok(list.models.some(m => m.name.startsWith(model)));
    const shown = await call('ollama', 'show', () => ollama.show({model}));
    assert.equal(shown.details.format, 'gguf');
    assert.ok(Array.isArray(shown.capabilities));
    assert.ok((await call('ollama', 'ps', () => ollama.ps())).models.length >= 1);
    assert.match((await call('ollama', 'version', () => ollama.version())).version, /^\d+\.\d+\.\d+$/);
    await call('ollama', 'copy', () => ollama.copy({source: model, destination: 'a-copy'}));
    await call('ollama', 'create', async () => {
      let last;
      for await (const part of await ollama.create({model: 'made', from: 'a-copy', system: 'You are brief.', stream: true})) last = part;
      assert.equal(last.status, 'success');
    });
    assert.ok((await ollama.list()).models.some(m => m.name === 'made:latest'));
    const made = await ollama.chat({model: 'made', messages: question, options: {...greedy, num_predict: 8}});
    assert.ok(made.message.content.length > 0);
    await call('ollama', 'delete', () => ollama.delete({model: 'made'}));
    await ollama.delete({model: 'a-copy'});
    assert.ok(!(await ollama.list()).models.some(m => m.name === 'made:latest'));
  },
  async 'ollama: pull with progress'() {
    const name = 'hf.co/someone/tiny-GGUF:Q8_0';
    const told = [];
    await call('ollama', 'pull with progress', async () => {
      for await (const part of await ollama.pull({model: name, stream: true})) told.push(part);
    });
    assert.equal(told.at(-1).status, 'success');
    const bytes = told.filter(part => part.total > 0);
    assert.ok(bytes.length > 0 && bytes.every(part => part.digest && (part.completed ?? 0) <= part.total), JSON.stringify(told));
    assert.equal(bytes.at(-1).completed, bytes.at(-1).total);
    const answer = await ollama.generate({model: name, prompt: 'What is', raw: true, options: {num_predict: 3, temperature: 0}});
    assert.ok(answer.eval_count > 0);
    assert.equal((await call('ollama', 'pull', () => ollama.pull({model: name}))).status, 'success');
    await assert.rejects(ollama.pull({model: 'hf.co/someone/tiny-GGUF:Q2_K'}), /Q2_K/);
    await ollama.delete({model: name});
  },
  async 'ollama: abort, refusals'() {
    await call('ollama', 'abort', async () => {
      const own = new Ollama({host: base});
      const stream = await own.chat({model, messages: story, stream: true, options: {num_predict: 2000}});
      await assert.rejects(async () => { for await (const _ of stream) own.abort(); }, {name: 'AbortError'});
    });
    const error = await fails('ollama', 'a model that is not there', /not found/, () => ollama.chat({model: 'nothing', messages: question}));
    assert.equal(error.status_code, 404);
    await assert.rejects(ollama.delete({model: 'nothing'}), /not found/);
    await refused('ollama', 'pictures', /image/, () => ollama.chat({model, messages: [{...question[0], images: [dot]}]}));
    await refused('ollama', 'push', /path/, () => ollama.push({model}));
  },
  async 'openai: chat, stream, usage, logprobs'() {
    const whole = await call('openai', 'chat with log probabilities', () => openai.chat.completions.create(
      {model, messages: question, temperature: 0, logprobs: true, top_logprobs: 2}));
    assert.equal(whole.choices[0].message.content, answer);
    assert.equal(whole.choices[0].logprobs.content[0].top_logprobs.length, 2);
    await call('openai', 'chat as a stream with usage', async () => {
      let text = '', usage;
      for await (const chunk of await openai.chat.completions.create({model, messages: question, temperature: 0, stream: true, stream_options: {include_usage: true}})) {
        text += chunk.choices[0]?.delta?.content ?? '';
        usage = chunk.usage ?? usage;
      }
      assert.equal(text, answer);
      assert.ok(usage.completion_tokens > 3);
    });
    const helped = await call('openai', 'chat by the stream helper', () => openai.chat.completions.stream(
      {model, messages: question, temperature: 0}).finalChatCompletion());
    assert.equal(helped.choices[0].message.content, answer);
    const completed = await call('openai', 'completions', () => openai.completions.create({model, prompt: 'Once upon', max_tokens: 4, temperature: 0}));
    assert.ok(completed.choices[0].text.length > 0);
  },
  async 'openai: models, abort, refusals'() {
    await call('openai', 'models', async () => {
      const ids = [];
      for await (const one of openai.models.list()) ids.push(one.id);
      assert.ok(ids.some(id => id.startsWith(model)));
    });
    await call('openai', 'abort', async () => {
      const stream = await openai.chat.completions.create({model, messages: story, stream: true, max_tokens: 2000});
      let chunks = 0;
      for await (const _ of stream) if (++chunks === 3) stream.controller.abort();
      assert.ok(chunks < 50);
    });
    const missing = await fails('openai', 'a model that is not there', /nothing/, () => openai.chat.completions.create({model: 'nothing', messages: question}));
    assert.ok(missing instanceof OpenAI.NotFoundError);
    const hot = await fails('openai', 'temperature 7', /temperature/, () => openai.chat.completions.create({model, messages: question, temperature: 7}));
    assert.ok(hot instanceof OpenAI.BadRequestError && hot.param === 'temperature');
    const url = 'data:image/png;base64,' + dot;
    await refused('openai', 'pictures', /image/, () => openai.chat.completions.create(
      {model, messages: [{role: 'user', content: [{type: 'image_url', image_url: {url}}]}]}));
    await refused('openai', 'pictures in responses', /image/, () => openai.responses.create(
      {model, input: [{role: 'user', content: [{type: 'input_image', image_url: url, detail: 'auto'}]}]}));
    await refused('openai', 'answers in sound', /audio|modalities/, () => openai.chat.completions.create(
      {model, messages: question, modalities: ['text', 'audio'], audio: {voice: 'alloy', format: 'wav'}}));
    await refused('openai', 'responses in the background', /background/, () => openai.responses.create({model, input: 'Hello', background: true}));
    await refused('openai', 'images', /path/, () => openai.images.generate({model, prompt: 'A fox'}));
    await refused('openai', 'speech', /path/, () => openai.audio.speech.create({model, input: 'Hello', voice: 'alloy'}));
    await refused('openai', 'transcriptions', /path/, async () => openai.audio.transcriptions.create({model, file: await toFile(Buffer.from('RIFF'), 'a.wav')}));
    await refused('openai', 'files', /path/, () => openai.files.list());
    await refused('openai', 'batches', /path/, () => openai.batches.list());
  },
  async 'openai: responses'() {
    const whole = await call('openai', 'responses', () => openai.responses.create({model, input: question[0].content, temperature: 0}));
    assert.equal(whole.output_text, answer);
    let text = '', completed;
    await call('openai', 'responses as a stream', async () => {
      for await (const event of await openai.responses.create({model, input: question, temperature: 0, stream: true})) {
        if (event.type === 'response.output_text.delta') text += event.delta;
        if (event.type === 'response.completed') completed = event.response;
      }
    });
    assert.equal(text, answer);
    assert.equal(completed.status, 'completed');
    const next = await call('openai', 'responses that go on from one', () => openai.responses.create(
      {model, input: 'And?', previous_response_id: completed.id, temperature: 0, max_output_tokens: 4}));
    assert.equal(next.previous_response_id, completed.id);
    assert.ok(next.usage.input_tokens > whole.usage.input_tokens);
    assert.equal((await call('openai', 'retrieve a response', () => openai.responses.retrieve(next.id))).output_text, next.output_text);
    const items = await call('openai', "list a response's input", () => openai.responses.inputItems.list(next.id));
    assert.deepEqual(items.data[0].content, [{type: 'input_text', text: 'And?'}]);
    await call('openai', 'delete a response', () => openai.responses.delete(next.id));
    await assert.rejects(openai.responses.retrieve(next.id), OpenAI.NotFoundError);
  },
  async 'openai: helpers'() {
    const City = z.object({city: z.string().max(12), kind: z.enum(['town', 'village'])});
    const asked = {model, messages: question, temperature: 0, max_tokens: 200};
    const parsed = await call('openai', 'parse with zod', () => openai.chat.completions.parse({...asked, response_format: zodResponseFormat(City, 'it')}));
    assert.ok(City.safeParse(parsed.choices[0].message.parsed).success);
    const object = await call('openai', 'responses.parse with zod', () => openai.responses.parse(
      {model, input: question, temperature: 0, max_output_tokens: 200, text: {format: zodTextFormat(City, 'it')}}));
    assert.ok(City.safeParse(object.output_parsed).success);
    const calls = [];
    await call('openai', 'runTools', async () => {
      const own = {...tool, function: {...tool.function, parse: JSON.parse, function: made => { calls.push(made); return 'Sunny.'; }}};
      await openai.chat.completions.runTools({...asked, tools: [own], tool_choice: {type: 'function', function: {name: 'weather'}}}).finalFunctionToolCallResult();
    });
    assert.ok(validArguments(calls[0]));
    const several = await call('openai', 'several answers', () => openai.chat.completions.create({...asked, n: 2}));
    assert.deepEqual(several.choices.map(one => one.message.content), [answer, answer]);
    const cut = await call('openai', 'a stop text', () => openai.chat.completions.create({...asked, stop: ' France'}));
    assert.equal(cut.choices[0].message.content, 'The capital of');
    const {data, response} = await call('openai', 'withResponse', () => openai.chat.completions.create(asked).withResponse());
    assert.ok(data.choices[0].message.content === answer && response.headers.get('x-request-id') === data._request_id);
    assert.equal((await call('openai', 'one model', () => openai.models.retrieve(model))).object, 'model');
    const echoed = await call('openai', 'completions with echo and log probabilities', () => openai.completions.create(
      {model, prompt: 'Once upon a time', max_tokens: 1, echo: true, logprobs: 1, temperature: 0}));
    assert.equal(echoed.choices[0].logprobs.token_logprobs[0], null);
    await fails('openai', 'a prompt that is too long', /maximum context length/, () => openai.chat.completions.create({...asked, messages: [{role: 'user', content: 'word '.repeat(9000)}]}));
  },
  async 'openai: more of responses'() {
    const asked = {model, input: question, temperature: 0};
    const helped = await call('openai', 'responses by the stream helper', () => openai.responses.stream(asked).finalResponse());
    assert.equal(helped.output_text, answer);
    const counted = await call('openai', "count a response's tokens", () => openai.responses.inputTokens.count({model, input: question}));
    assert.equal(counted.input_tokens, helped.usage.input_tokens);
    const compact = await call('openai', 'compact', () => openai.responses.compact({model, input: question}));
    assert.equal(compact.object, 'response.compaction');
    const called = await call('openai', 'a tool that must be called in responses', () => openai.responses.create(
      {...asked, tools: [{type: 'function', ...tool.function, strict: true}], tool_choice: 'required', max_output_tokens: 200}));
    assert.ok(validArguments(JSON.parse(called.output.find(item => item.type === 'function_call').arguments)));
    for (const type of ['local_shell', 'apply_patch']) {
      const made = await call('openai', `${type}, which the client runs`, () => openai.responses.create({...asked, tools: [{type}], tool_choice: 'required', max_output_tokens: 200}));
      assert.equal(made.output[0].type, type + '_call');
    }
    await call('openai', "a kept response's events", async () => {
      const types = [];
      for await (const event of await openai.responses.retrieve(helped.id, {stream: true})) types.push(event.type);
      assert.equal(types.at(-1), 'response.completed');
    });
    const hosted = {...asked, tools: [{type: 'web_search'}]};
    assert.equal((await call('openai', 'a search that may be made', () => openai.responses.create(hosted))).output_text, answer);
    await refused('openai', 'a search that must be made', /runs none of the tools/, () => openai.responses.create({...hosted, tool_choice: 'required'}));
    for (const [what, made] of Object.entries({conversations: () => openai.conversations.create(), 'vector stores': () => openai.vectorStores.create({name: 'a'}),
      assistants: () => openai.beta.assistants.create({model}), moderations: () => openai.moderations.create({input: 'a'}), 'fine tuning': () => openai.fineTuning.jobs.list(),
      'file uploads': async () => openai.files.create({file: await toFile(Buffer.from('{}'), 'a.jsonl'), purpose: 'batch'})}))
      await refused('openai', what, /path/, made);
  },
  async 'anthropic: helpers'() {
    const client = '@anthropic-ai/sdk', asked = {model, max_tokens: 200, messages: question};
    const calls = [];
    const weather = betaTool({name: 'weather', description: 'The weather of a city', inputSchema: parameters, run: made => { calls.push(made); return 'Sunny.'; }});
    await call(client, 'toolRunner', () => anthropic.beta.messages.toolRunner({...asked, tools: [weather], tool_choice: {type: 'any'}, max_iterations: 2}).runUntilDone());
    assert.ok(validArguments(calls[0]), JSON.stringify(calls));
    const formed = await call(client, 'output_config', () => anthropic.messages.create({...asked, output_config: {format: {type: 'json_schema', schema}}}));
    assert.ok(valid(JSON.parse(formed.content[0].text)));
    const cut = await call(client, 'stop_sequences', () => anthropic.messages.create({...asked, temperature: 0, stop_sequences: [' France']}));
    assert.deepEqual([cut.stop_reason, cut.stop_sequence], ['stop_sequence', ' France']);
    const typed = await call(client, "bash, whose schema is Anthropic's", () => anthropic.messages.create({...asked, tools: [{type: 'bash_20250124', name: 'bash'}], tool_choice: {type: 'any'}}));
    const {input} = typed.content.find(block => block.type === 'tool_use');
    assert.ok('command' in input || 'restart' in input);
    assert.equal((await call(client, 'one model', () => anthropic.models.retrieve(model))).type, 'model');
    await fails(client, 'a prompt that is too long', /prompt is too long:/, () => anthropic.messages.create({...asked, messages: [{role: 'user', content: 'word '.repeat(9000)}]}));
    await refused(client, 'MCP servers', /mcp_servers/, () => anthropic.beta.messages.create({...asked, mcp_servers: [{type: 'url', url: 'https://a.example', name: 'a'}]}));
    await refused(client, 'files', /path/, () => anthropic.beta.files.list());
    await refused(client, 'skills', /path/, () => anthropic.beta.skills.list());
  },
  async 'anthropic: messages, stream, count, refusals'() {
    const client = '@anthropic-ai/sdk';
    const whole = await call(client, 'messages', () => anthropic.messages.create({model, max_tokens: 50, temperature: 0, messages: question}));
    assert.equal(whole.content[0].text, answer);
    assert.equal(whole.stop_reason, 'end_turn');
    const streamed = await call(client, 'messages as a stream', () => anthropic.messages.stream({model, max_tokens: 3, temperature: 0, messages: question}).finalMessage());
    assert.equal(streamed.content[0].text, 'The capital of');
    assert.equal(streamed.stop_reason, 'max_tokens');
    const counted = await call(client, 'count tokens', () => anthropic.messages.countTokens({model, messages: question}));
    assert.equal(counted.input_tokens, whole.usage.input_tokens + whole.usage.cache_read_input_tokens);
    await call(client, 'models', async () => {
      const ids = [];
      for await (const one of anthropic.models.list()) ids.push(one.id);
      assert.ok(ids.some(id => id.startsWith(model)));
    });
    const ask = content => () => anthropic.messages.create({model, max_tokens: 5, messages: [{role: 'user', content}]});
    const missing = await fails(client, 'a model that is not there', /nothing/, () => anthropic.messages.create({model: 'nothing', max_tokens: 5, messages: question}));
    assert.ok(missing instanceof Anthropic.NotFoundError);
    await refused(client, 'pictures', /image/, ask([{type: 'image', source: {type: 'base64', media_type: 'image/png', data: dot}}]));
    await refused(client, 'PDF documents', /document/, ask([{type: 'document', source: {type: 'base64', media_type: 'application/pdf', data: 'JVBERi0='}}]));
    await refused(client, 'batches', /path/, () => anthropic.messages.batches.list());
  },
  async 'schemas are kept'() {
    const told = await call('ollama', 'a JSON schema', () => ollama.chat({model, messages: question, format: schema, options: {...greedy, num_predict: 200}}));
    const first = JSON.parse(told.message.content);
    assert.ok(valid(first), JSON.stringify(valid.errors));
    const other = await call('openai', 'a JSON schema', () => openai.chat.completions.create({model, messages: question, temperature: 1, seed: 3,
      max_tokens: 200, response_format: {type: 'json_schema', json_schema: {name: 'it', strict: true, schema}}}));
    assert.ok(valid(JSON.parse(other.choices[0].message.content)), JSON.stringify(valid.errors));
  },
  async 'tools: a call that must be made'() {
    const told = await call('openai', 'a tool that must be called', () => openai.chat.completions.create(
      {model, messages: question, temperature: 0, tools: [tool], tool_choice: 'required', max_tokens: 200}));
    const [made] = told.choices[0].message.tool_calls;
    assert.equal(told.choices[0].finish_reason, 'tool_calls');
    assert.equal(made.function.name, 'weather');
    assert.ok(validArguments(JSON.parse(made.function.arguments)));
    const again = await call('openai', "a tool's result", () => openai.chat.completions.create({model, temperature: 0, max_tokens: 20, tools: [tool], messages: [
      ...question, told.choices[0].message, {role: 'tool', tool_call_id: made.id, content: 'Sunny.'}]}));
    assert.ok(again.choices[0].message);
    const helped = await call('openai', 'a named tool as a stream', () => openai.chat.completions.stream({model, messages: question, temperature: 0,
      tools: [tool], tool_choice: {type: 'function', function: {name: 'weather'}}, max_tokens: 200}).finalChatCompletion());
    assert.equal(helped.choices[0].message.tool_calls[0].function.name, 'weather');
    const claude = await call('@anthropic-ai/sdk', 'a tool that must be called', () => anthropic.messages.create({model, max_tokens: 200,
      temperature: 0, messages: question, tools: [{name: 'weather', input_schema: parameters}], tool_choice: {type: 'any'}}));
    assert.equal(claude.stop_reason, 'tool_use');
    assert.ok(validArguments(claude.content.find(block => block.type === 'tool_use').input));
  },
  async 'openai: custom tools keep their grammars'() {
    const regex = {type: 'grammar', syntax: 'regex', definition: '(up|down) [0-9]'};
    const told = await call('openai', 'a custom tool with a regular expression', () => openai.responses.create({model, input: question[0].content,
      tools: [{type: 'custom', name: 'move', format: regex}], tool_choice: {type: 'custom', name: 'move'}}));
    assert.match(told.output.find(item => item.type === 'custom_tool_call').input, /^(up|down) [0-9]$/);
    const lark = {type: 'grammar', grammar: {syntax: 'lark', definition: 'start: "up" | "down"'}};
    const chat = await call('openai', 'a custom tool with a Lark grammar', () => openai.chat.completions.create({model, messages: question,
      tools: [{type: 'custom', custom: {name: 'move', format: lark}}], tool_choice: {type: 'custom', custom: {name: 'move'}}}));
    assert.match(chat.choices[0].message.tool_calls[0].custom.input, /^(up|down)$/);
  },
  async 'embeddings agree'() {
    const own = await call('ollama', 'embeddings', () => ollama.embed({model, input: ['a fox', 'a lantern']}));
    assert.equal(own.embeddings.length, 2);
    const other = await call('openai', 'embeddings', () => openai.embeddings.create({model, input: ['a fox', 'a lantern']}));
    assert.equal(other.data[1].embedding.length, own.embeddings[1].length);
    for (let i = 0; i < 4; ++i) assert.ok(Math.abs(other.data[1].embedding[i] - own.embeddings[1][i]) < 1e-5);
  },
});
