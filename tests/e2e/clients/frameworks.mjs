// Published frameworks, unmodified, against a running server: node frameworks.mjs BASE_URL MODEL
import assert from 'node:assert/strict';
import {createAnthropic} from '@ai-sdk/anthropic';
import {createOpenAI} from '@ai-sdk/openai';
import {createOpenAICompatible} from '@ai-sdk/openai-compatible';
import {ChatAnthropic} from '@langchain/anthropic';
import {ChatOpenAI, OpenAIEmbeddings} from '@langchain/openai';
import {Agent, run, setDefaultOpenAIClient, setOpenAIAPI, setTracingDisabled} from '@openai/agents';
import {generateObject, generateText, streamText, tool} from 'ai';
import OpenAI from 'openai';
import {z} from 'zod';

globalThis.AI_SDK_LOG_WARNINGS = false;
const [, , base, model] = process.argv;
const prompt = 'What is the capital of France?', answer = 'The capital of France is Paris.';
const city = z.object({city: z.string().max(12)});
const openai = new OpenAI({baseURL: base + '/v1', apiKey: 'none', maxRetries: 0});

/// generateText and streamText say the same.
async function bothWays(made) {
  assert.equal((await generateText({model: made, prompt, temperature: 0, maxOutputTokens: 60})).text, answer);
  const stream = streamText({model: made, prompt, temperature: 0, maxOutputTokens: 60});
  let text = '';
  for await (const part of stream.textStream) text += part;
  assert.equal(text, answer);
  assert.ok((await stream.usage).outputTokens > 0);
}

/// invoke and stream of LangChain say the same.
async function chained(chat) {
  assert.equal((await chat.invoke(prompt)).text, answer);
  let text = '';
  for await (const chunk of await chat.stream(prompt)) text += chunk.text;
  assert.equal(text, answer);
}

const tests = {
  async 'ai, openai-compatible: text, stream, object, tool'() {
    const made = createOpenAICompatible({name: 'here', baseURL: base + '/v1', supportsStructuredOutputs: true, includeUsage: true})(model);
    await bothWays(made);
    assert.ok((await generateObject({model: made, prompt, schema: city})).object.city.length <= 12);
    const weather = tool({description: 'The weather of a city', inputSchema: city});
    const called = await generateText({model: made, prompt, temperature: 0, toolChoice: 'required', tools: {weather}});
    assert.equal(called.toolCalls[0].toolName, 'weather');
    assert.ok(city.safeParse(called.toolCalls[0].input).success);
  },
  async 'ai, openai: responses and chat'() {
    const provider = createOpenAI({baseURL: base + '/v1', apiKey: 'none'});
    for (const made of [provider.responses(model), provider.chat(model)]) await bothWays(made);
  },
  async 'ai, anthropic'() { await bothWays(createAnthropic({baseURL: base + '/v1', apiKey: 'none'})(model)); },
  async 'langchain, openai: chat, responses, structured output, embeddings'() {
    const configuration = {baseURL: base + '/v1'};
    const chat = new ChatOpenAI({model, temperature: 0, apiKey: 'none', configuration});
    await chained(chat);
    assert.ok((await chat.withStructuredOutput(city, {method: 'jsonSchema'}).invoke(prompt)).city.length <= 12);
    await chained(new ChatOpenAI({model, temperature: 0, apiKey: 'none', useResponsesApi: true, configuration}));
    assert.ok((await new OpenAIEmbeddings({model, apiKey: 'none', configuration}).embedQuery('a fox')).length > 10);
  },
  async 'langchain, anthropic'() {
    await chained(new ChatAnthropic({model, temperature: 0, apiKey: 'none', anthropicApiUrl: base, maxTokens: 60}));
  },
  async 'openai agents: responses and chat'() {
    setTracingDisabled(true);
    setDefaultOpenAIClient(openai);
    for (const api of ['responses', 'chat_completions']) {
      setOpenAIAPI(api);
      assert.equal((await run(new Agent({name: 'one', model, modelSettings: {temperature: 0}}), prompt)).finalOutput, answer);
    }
  },
  async 'openai: custom tools keep their grammars'() {
    const regex = {type: 'grammar', syntax: 'regex', definition: '(up|down) [0-9]'};
    const told = await openai.responses.create({model, input: prompt, tools: [{type: 'custom', name: 'move', format: regex}],
                                                tool_choice: {type: 'custom', name: 'move'}});
    assert.match(told.output.find(item => item.type === 'custom_tool_call').input, /^(up|down) [0-9]$/);
    const lark = {type: 'grammar', grammar: {syntax: 'lark', definition: 'start: "up" | "down"'}};
    const chat = await openai.chat.completions.create({model, messages: [{role: 'user', content: prompt}],
      tools: [{type: 'custom', custom: {name: 'move', format: lark}}], tool_choice: {type: 'custom', custom: {name: 'move'}}});
    assert.match(chat.choices[0].message.tool_calls[0].custom.input, /^(up|down)$/);
  },
};

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
