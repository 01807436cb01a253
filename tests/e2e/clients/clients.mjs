// The published clients, unmodified, against a running server: node clients.mjs BASE_URL MODEL FEATURES
// FEATURES: what this build's model can do beyond chat ("tools", "schema", "embeddings"), joined by commas.
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import {ChatOllama, OllamaEmbeddings} from '@langchain/ollama';
import Ajv from 'ajv';
import {Ollama} from 'ollama';
import OpenAI from 'openai';

const [, , base, model, featureList = ''] = process.argv;
const features = new Set(featureList.split(','));
const question = [{role: 'user', content: 'What is the capital of France?'}];
const answer = 'The capital of France is Paris.';
const story = [{role: 'user', content: 'Tell me a story about a fox and a lantern.'}];
const schema = {
  type: 'object',
  properties: {city: {type: 'string', maxLength: 12}, count: {type: 'integer', minimum: 0, maximum: 99},
               kinds: {type: 'array', items: {enum: ['a', 'b']}, maxItems: 3}},
  required: ['city', 'count', 'kinds'],
  additionalProperties: false,
};
const parameters = {type: 'object', properties: {city: {type: 'string', maxLength: 12}}, required: ['city'], additionalProperties: false};
const valid = new Ajv().compile(schema), validArguments = new Ajv().compile(parameters);

const ollama = new Ollama({host: base});
const openai = new OpenAI({baseURL: base + '/v1', apiKey: 'none', maxRetries: 0});
const anthropic = new Anthropic({baseURL: base, apiKey: 'none', maxRetries: 0});
const greedy = {temperature: 0};

const tests = {
  async 'ollama: chat, stream, generate'() {
    const whole = await ollama.chat({model, messages: question, options: greedy});
    assert.equal(whole.message.content, answer);
    let text = '';
    for await (const part of await ollama.chat({model, messages: question, stream: true, options: greedy})) text += part.message.content;
    assert.equal(text, answer);
    const generated = await ollama.generate({model, prompt: question[0].content, options: greedy});
    assert.equal(generated.response, answer);
  },
  async 'ollama: list, show, ps, version, copy, create, delete'() {
    assert.ok((await ollama.list()).models.some(m => m.name.startsWith(model)));
    const shown = await ollama.show({model});
    assert.equal(shown.details.format, 'gguf');
    assert.ok(Array.isArray(shown.capabilities));
    assert.ok((await ollama.ps()).models.length >= 1);
    assert.match((await ollama.version()).version, /^\d+\.\d+\.\d+$/);
    await ollama.copy({source: model, destination: 'a-copy'});
    let last;
    for await (const part of await ollama.create({model: 'made', from: 'a-copy', system: 'You are brief.', stream: true})) last = part;
    assert.equal(last.status, 'success');
    assert.ok((await ollama.list()).models.some(m => m.name === 'made:latest'));
    const made = await ollama.chat({model: 'made', messages: question, options: {...greedy, num_predict: 8}});
    assert.ok(made.message.content.length > 0);
    await ollama.delete({model: 'made'});
    await ollama.delete({model: 'a-copy'});
    assert.ok(!(await ollama.list()).models.some(m => m.name === 'made:latest'));
  },
  async 'ollama: pull with progress'() {
    const name = 'hf.co/someone/tiny-GGUF:Q8_0';
    const told = [];
    for await (const part of await ollama.pull({model: name, stream: true})) told.push(part);
    assert.equal(told.at(-1).status, 'success');
    const bytes = told.filter(part => part.total > 0);
    assert.ok(bytes.length > 0 && bytes.every(part => part.digest && (part.completed ?? 0) <= part.total), JSON.stringify(told));
    assert.equal(bytes.at(-1).completed, bytes.at(-1).total);
    const answer = await ollama.generate({model: name, prompt: 'What is', raw: true, options: {num_predict: 3, temperature: 0}});
    assert.ok(answer.eval_count > 0);
    assert.equal((await ollama.pull({model: name})).status, 'success');
    await assert.rejects(ollama.pull({model: 'hf.co/someone/tiny-GGUF:Q2_K'}), /Q2_K/);
    await ollama.delete({model: name});
  },
  async 'ollama: errors and abort'() {
    await assert.rejects(ollama.chat({model: 'nothing', messages: question}), error => error.status_code === 404 && /not found/.test(error.message));
    await assert.rejects(ollama.delete({model: 'nothing'}), /not found/);
    const own = new Ollama({host: base});
    const stream = await own.chat({model, messages: story, stream: true, options: {num_predict: 2000}});
    await assert.rejects(async () => { for await (const _ of stream) own.abort(); }, {name: 'AbortError'});
  },
  async 'openai: chat, stream, usage, logprobs'() {
    const whole = await openai.chat.completions.create({model, messages: question, temperature: 0, logprobs: true, top_logprobs: 2});
    assert.equal(whole.choices[0].message.content, answer);
    assert.equal(whole.choices[0].logprobs.content[0].top_logprobs.length, 2);
    let text = '', usage;
    for await (const chunk of await openai.chat.completions.create({model, messages: question, temperature: 0, stream: true, stream_options: {include_usage: true}})) {
      text += chunk.choices[0]?.delta?.content ?? '';
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, answer);
    assert.ok(usage.completion_tokens > 3);
    const helper = openai.chat.completions.stream({model, messages: question, temperature: 0});
    assert.equal((await helper.finalChatCompletion()).choices[0].message.content, answer);
    const completed = await openai.completions.create({model, prompt: 'Once upon', max_tokens: 4, temperature: 0});
    assert.ok(completed.choices[0].text.length > 0);
  },
  async 'openai: models, errors, abort'() {
    const ids = [];
    for await (const one of openai.models.list()) ids.push(one.id);
    assert.ok(ids.some(id => id.startsWith(model)));
    await assert.rejects(openai.chat.completions.create({model: 'nothing', messages: question}), OpenAI.NotFoundError);
    await assert.rejects(openai.chat.completions.create({model, messages: question, temperature: 7}),
                         error => error instanceof OpenAI.BadRequestError && error.param === 'temperature');
    const stream = await openai.chat.completions.create({model, messages: story, stream: true, max_tokens: 2000});
    let chunks = 0;
    for await (const _ of stream) if (++chunks === 3) stream.controller.abort();
    assert.ok(chunks < 50);
  },
  async 'openai: responses'() {
    const whole = await openai.responses.create({model, input: question[0].content, temperature: 0});
    assert.equal(whole.output_text, answer);
    let text = '', completed;
    for await (const event of await openai.responses.create({model, input: question, temperature: 0, stream: true})) {
      if (event.type === 'response.output_text.delta') text += event.delta;
      if (event.type === 'response.completed') completed = event.response;
    }
    assert.equal(text, answer);
    assert.equal(completed.status, 'completed');
    const next = await openai.responses.create({model, input: 'And?', previous_response_id: completed.id, temperature: 0, max_output_tokens: 4});
    assert.equal(next.previous_response_id, completed.id);
    assert.ok(next.usage.input_tokens > whole.usage.input_tokens);
    assert.equal((await openai.responses.retrieve(next.id)).output_text, next.output_text);
    assert.equal((await openai.responses.inputItems.list(next.id)).data[0].content, 'And?');
    await openai.responses.delete(next.id);
    await assert.rejects(openai.responses.retrieve(next.id), OpenAI.NotFoundError);
  },
  async 'anthropic: messages, stream, count, errors'() {
    const whole = await anthropic.messages.create({model, max_tokens: 50, temperature: 0, messages: question});
    assert.equal(whole.content[0].text, answer);
    assert.equal(whole.stop_reason, 'end_turn');
    const streamed = await anthropic.messages.stream({model, max_tokens: 3, temperature: 0, messages: question}).finalMessage();
    assert.equal(streamed.content[0].text, 'The capital of');
    assert.equal(streamed.stop_reason, 'max_tokens');
    assert.equal((await anthropic.messages.countTokens({model, messages: question})).input_tokens,
      whole.usage.input_tokens + whole.usage.cache_read_input_tokens);
    await assert.rejects(anthropic.messages.create({model: 'nothing', max_tokens: 5, messages: question}), Anthropic.NotFoundError);
  },
  async 'langchain: chat and stream'() {
    const chat = new ChatOllama({baseUrl: base, model, temperature: 0});
    assert.equal((await chat.invoke(question[0].content)).content, answer);
    let text = '';
    for await (const chunk of await chat.stream(question[0].content)) text += chunk.content;
    assert.equal(text, answer);
  },
};

const tool = {type: 'function', function: {name: 'weather', description: 'The weather of a city', parameters}};
if (features.has('schema')) {
  tests['schema: ollama and openai keep it'] = async () => {
    const told = await ollama.chat({model, messages: question, format: schema, options: {...greedy, num_predict: 200}});
    const first = JSON.parse(told.message.content);
    assert.ok(valid(first), JSON.stringify(valid.errors));
    const other = await openai.chat.completions.create({model, messages: question, temperature: 1, seed: 3, max_tokens: 200,
      response_format: {type: 'json_schema', json_schema: {name: 'it', strict: true, schema}}});
    assert.ok(valid(JSON.parse(other.choices[0].message.content)), JSON.stringify(valid.errors));
  };
  tests['tools: a call that must be made'] = async () => {
    const told = await openai.chat.completions.create({model, messages: question, temperature: 0, tools: [tool], tool_choice: 'required', max_tokens: 200});
    const [call] = told.choices[0].message.tool_calls;
    assert.equal(told.choices[0].finish_reason, 'tool_calls');
    assert.equal(call.function.name, 'weather');
    assert.ok(validArguments(JSON.parse(call.function.arguments)));
    const again = await openai.chat.completions.create({model, temperature: 0, max_tokens: 20, tools: [tool], messages: [
      ...question, told.choices[0].message, {role: 'tool', tool_call_id: call.id, content: 'Sunny.'}]});
    assert.ok(again.choices[0].message);
    const helper = openai.chat.completions.stream({model, messages: question, temperature: 0, tools: [tool], tool_choice: {type: 'function', function: {name: 'weather'}}, max_tokens: 200});
    assert.equal((await helper.finalChatCompletion()).choices[0].message.tool_calls[0].function.name, 'weather');
    const claude = await anthropic.messages.create({model, max_tokens: 200, temperature: 0, messages: question,
      tools: [{name: 'weather', input_schema: parameters}], tool_choice: {type: 'any'}});
    assert.equal(claude.stop_reason, 'tool_use');
    assert.ok(validArguments(claude.content.find(block => block.type === 'tool_use').input));
  };
}
if (features.has('embeddings')) {
  tests['embeddings: ollama, openai, langchain'] = async () => {
    const own = await ollama.embed({model, input: ['a fox', 'a lantern']});
    assert.equal(own.embeddings.length, 2);
    const other = await openai.embeddings.create({model, input: ['a fox', 'a lantern']});
    assert.equal(other.data[1].embedding.length, own.embeddings[1].length);
    for (let i = 0; i < 4; ++i) assert.ok(Math.abs(other.data[1].embedding[i] - own.embeddings[1][i]) < 1e-5);
    const chain = new OllamaEmbeddings({baseUrl: base, model});
    assert.equal((await chain.embedQuery('a fox')).length, own.embeddings[0].length);
  };
}

let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  try {
    await test();
    console.log(`ok    ${name}`);
  } catch (error) {
    ++failed;
    console.log(`FAIL  ${name}\n${error.stack ?? error}`);
  }
}
process.exit(failed ? 1 : 0);
