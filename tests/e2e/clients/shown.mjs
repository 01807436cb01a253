// The published clients and frameworks, unmodified, show a picture to a model that sees: node shown.mjs BASE_URL MODEL EXPECTED
// EXPECTED is JSON: the picture in base64, the question, and the model's greedy answers where the user shows the picture, in one message
// with the question or in one before it, and where a tool does.
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import {createAnthropic} from '@ai-sdk/anthropic';
import {createOpenAI} from '@ai-sdk/openai';
import {createOpenAICompatible} from '@ai-sdk/openai-compatible';
import {ChatAnthropic} from '@langchain/anthropic';
import {ChatOllama} from '@langchain/ollama';
import {ChatOpenAI} from '@langchain/openai';
import {Agent, run, setDefaultOpenAIClient, setOpenAIAPI, setTracingDisabled} from '@openai/agents';
import {generateText} from 'ai';
import {Ollama} from 'ollama';
import OpenAI from 'openai';
import {call, runAll} from './tally.mjs';

globalThis.AI_SDK_LOG_WARNINGS = false;
const [, , base, model, expected] = process.argv;
const {picture, question, tokens, answers} = JSON.parse(expected);
const url = 'data:image/png;base64,' + picture, v1 = base + '/v1';
const openai = new OpenAI({baseURL: v1, apiKey: 'none', maxRetries: 0});
const anthropic = new Anthropic({baseURL: base, apiKey: 'none', maxRetries: 0});
const asked = {role: 'user', content: question};
const imageUrl = {type: 'image_url', image_url: {url}}, inputImage = {type: 'input_image', image_url: url, detail: 'auto'};
const block = {type: 'image', source: {type: 'base64', media_type: 'image/png', data: picture}};

/// The answer is the model's own to this picture in this place.
async function shows(client, name, where, made) {
  await call(client, name, async () => assert.equal((await made()).trim(), answers[where]));
}

async function generates(provider, where, made) {
  const shown = where === 'user' ? 'an image part' : "an image in a tool's result";
  const named = client => `${shown} (${client === 'ai' ? made.provider : made.provider.split('.').at(-1)})`;
  const messages = {
    user: [{role: 'user', content: [{type: 'image', image: url}, {type: 'text', text: question}]}],
    tool: [asked, {role: 'assistant', content: [{type: 'tool-call', toolCallId: 'a', toolName: 'look', input: {}}]},
           {role: 'tool', content: [{type: 'tool-result', toolCallId: 'a', toolName: 'look',
                                     output: {type: 'content', value: [{type: 'media', data: picture, mediaType: 'image/png'}]}}]}],
  }[where];
  await shows(['ai', provider], named, where, async () => (await generateText({model: made, temperature: 0, maxOutputTokens: tokens, maxRetries: 0, messages})).text);
}

await runAll({
  async openai() {
    const call = {role: 'assistant', content: null, tool_calls: [{id: 'a', type: 'function', function: {name: 'look', arguments: '{}'}}]};
    const chat = messages => async () => (await openai.chat.completions.create({model, temperature: 0, max_tokens: tokens, messages})).choices[0].message.content;
    await shows('openai', 'image_url of a chat', 'user', chat([{role: 'user', content: [imageUrl, {type: 'text', text: question}]}]));
    await shows('openai', "image_url in a tool's result", 'tool', chat([asked, call, {role: 'tool', tool_call_id: 'a', content: [imageUrl]}]));
    const respond = input => async () => (await openai.responses.create({model, temperature: 0, max_output_tokens: tokens, input})).output_text;
    await shows('openai', 'input_image of a response', 'user', respond([{role: 'user', content: [inputImage, {type: 'input_text', text: question}]}]));
    await shows('openai', "input_image in a function's output", 'tool', respond([asked, {type: 'function_call', call_id: 'a', name: 'look', arguments: '{}'},
      {type: 'function_call_output', call_id: 'a', output: [inputImage]}]));
  },
  async anthropic() {
    const client = '@anthropic-ai/sdk';
    const create = messages => async () => (await anthropic.messages.create({model, temperature: 0, max_tokens: tokens, messages})).content[0].text;
    await shows(client, 'an image block', 'user', create([{role: 'user', content: [block, {type: 'text', text: question}]}]));
    await shows(client, "an image block in a tool's result", 'tool', create([asked, {role: 'assistant', content: [{type: 'tool_use', id: 'a', name: 'look', input: {}}]},
      {role: 'user', content: [{type: 'tool_result', tool_use_id: 'a', content: [block]}]}]));
  },
  async ollama() {
    const ollama = new Ollama({host: base}), options = {temperature: 0, num_predict: tokens};
    await shows('ollama', 'images of a chat', 'user', async () => (await ollama.chat({model, options, messages: [{...asked, images: [picture]}]})).message.content);
    await shows('ollama', 'images of generate', 'user', async () => (await ollama.generate({model, options, prompt: question, images: [picture]})).response);
  },
  async ai() {
    const provider = createOpenAI({baseURL: v1, apiKey: 'none'});
    await generates('@ai-sdk/openai-compatible', 'user', createOpenAICompatible({name: 'openai-compatible', baseURL: v1})(model));
    await generates('@ai-sdk/openai', 'user', provider.chat(model));
    for (const where of ['user', 'tool']) {
      await generates('@ai-sdk/openai', where, provider.responses(model));
      await generates('@ai-sdk/anthropic', where, createAnthropic({baseURL: v1, apiKey: 'none'})(model));
    }
  },
  async langchain() {
    const message = {role: 'user', content: [imageUrl, {type: 'text', text: question}]};
    const configuration = {baseURL: v1}, asOpenai = {model, temperature: 0, maxTokens: tokens, apiKey: 'none', configuration, maxRetries: 0};
    for (const [client, name, where, chat] of [
      ['@langchain/openai', 'image_url (chat)', 'user', new ChatOpenAI(asOpenai)],
      ['@langchain/openai', 'image_url (responses)', 'user', new ChatOpenAI({...asOpenai, useResponsesApi: true})],
      ['@langchain/anthropic', 'image_url', 'user', new ChatAnthropic({model, temperature: 0, apiKey: 'none', anthropicApiUrl: base, maxTokens: tokens, maxRetries: 0})],
      ['@langchain/ollama', 'image_url', 'apart', new ChatOllama({baseUrl: base, model, temperature: 0, numPredict: tokens})]])
      await shows(client, name, where, async () => (await chat.invoke([message])).text);
  },
  async 'openai agents'() {
    setTracingDisabled(true);
    setDefaultOpenAIClient(openai);
    for (const api of ['responses', 'chat_completions']) {
      setOpenAIAPI(api);
      const agent = new Agent({name: 'one', model, modelSettings: {temperature: 0, maxTokens: tokens}});
      await shows('@openai/agents', `input_image (${api})`, 'user', async () => (await run(agent, [{role: 'user', content: [
        {type: 'input_image', image: url}, {type: 'input_text', text: question}]}])).finalOutput);
    }
  },
});
