// Published frameworks, unmodified, against a running server: node frameworks.mjs BASE_URL MODEL
import assert from 'node:assert/strict';
import {createAnthropic} from '@ai-sdk/anthropic';
import {createOpenAI} from '@ai-sdk/openai';
import {createOpenAICompatible} from '@ai-sdk/openai-compatible';
import {ChatAnthropic} from '@langchain/anthropic';
import {ChatOllama, OllamaEmbeddings} from '@langchain/ollama';
import {ChatOpenAI, OpenAIEmbeddings} from '@langchain/openai';
import {Agent, run, setDefaultOpenAIClient, setOpenAIAPI, setTracingDisabled, tool as agentTool} from '@openai/agents';
import {generateObject, generateText, streamText, tool} from 'ai';
import OpenAI from 'openai';
import {z} from 'zod';
import {call, refused, runAll} from './tally.mjs';

globalThis.AI_SDK_LOG_WARNINGS = false;
const [, , base, model] = process.argv;
const prompt = 'What is the capital of France?', answer = 'The capital of France is Paris.';
const dot = 'data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==';
const city = z.object({city: z.string().max(12)});
const openai = new OpenAI({baseURL: base + '/v1', apiKey: 'none', maxRetries: 0});

/// generateText and streamText say the same, and neither takes pictures.
async function bothWays(provider, api, made) {
  const named = what => client => {
    const by = client === 'ai' ? [provider.replace('@ai-sdk/', ''), api] : [api];
    return what + by.filter(Boolean).map(word => ` (${word})`).join('');
  };
  await call(['ai', provider], named('generateText'), async () => assert.equal(
    (await generateText({model: made, prompt, temperature: 0, maxOutputTokens: 60})).text, answer));
  await call(['ai', provider], named('streamText'), async () => {
    const stream = streamText({model: made, prompt, temperature: 0, maxOutputTokens: 60});
    let text = '';
    for await (const part of stream.textStream) text += part;
    assert.equal(text, answer);
    assert.ok((await stream.usage).outputTokens > 0);
  });
  await refused(['ai', provider], named('pictures'), /image/, () => generateText({model: made, maxRetries: 0,
    messages: [{role: 'user', content: [{type: 'image', image: dot}]}]}));
}

/// invoke and stream of LangChain say the same.
async function chained(client, by, chat) {
  await call(client, `invoke${by}`, async () => assert.equal((await chat.invoke(prompt)).text, answer));
  await call(client, `stream${by}`, async () => {
    let text = '';
    for await (const chunk of await chat.stream(prompt)) text += chunk.text;
    assert.equal(text, answer);
  });
  await refused(client, `pictures${by}`, /image/, () => chat.invoke([{role: 'user', content: [{type: 'image_url', image_url: {url: dot}}]}]));
}

await runAll({
  async 'ai, openai-compatible: text, stream, object, tool'() {
    const provider = '@ai-sdk/openai-compatible', both = ['ai', provider];
    const made = createOpenAICompatible({name: 'here', baseURL: base + '/v1', supportsStructuredOutputs: true, includeUsage: true})(model);
    await bothWays(provider, '', made);
    await call(both, 'generateObject', async () => assert.ok((await generateObject({model: made, prompt, schema: city})).object.city.length <= 12));
    const weather = tool({description: 'The weather of a city', inputSchema: city});
    const called = await call(both, 'a tool that must be called', () => generateText({model: made, prompt, temperature: 0, toolChoice: 'required', tools: {weather}}));
    assert.equal(called.toolCalls[0].toolName, 'weather');
    assert.ok(city.safeParse(called.toolCalls[0].input).success);
  },
  async 'ai, openai: responses and chat'() {
    const provider = createOpenAI({baseURL: base + '/v1', apiKey: 'none'});
    await bothWays('@ai-sdk/openai', 'responses', provider.responses(model));
    await bothWays('@ai-sdk/openai', 'chat', provider.chat(model));
  },
  async 'ai, anthropic'() {
    await bothWays('@ai-sdk/anthropic', '', createAnthropic({baseURL: base + '/v1', apiKey: 'none'})(model));
  },
  async 'langchain, ollama: chat, embeddings'() {
    await chained('@langchain/ollama', '', new ChatOllama({baseUrl: base, model, temperature: 0}));
    const vector = await call('@langchain/ollama', 'embedQuery', () => new OllamaEmbeddings({baseUrl: base, model}).embedQuery('a fox'));
    const own = await openai.embeddings.create({model, input: 'a fox'});
    assert.equal(vector.length, own.data[0].embedding.length);
  },
  async 'langchain, openai: chat, responses, structured output, embeddings'() {
    const client = '@langchain/openai', configuration = {baseURL: base + '/v1'};
    const chat = new ChatOpenAI({model, temperature: 0, apiKey: 'none', configuration, maxRetries: 0});
    await chained(client, ' (chat)', chat);
    const made = await call(client, 'withStructuredOutput', () => chat.withStructuredOutput(city, {method: 'jsonSchema'}).invoke(prompt));
    assert.ok(made.city.length <= 12);
    await chained(client, ' (responses)', new ChatOpenAI({model, temperature: 0, apiKey: 'none', useResponsesApi: true, configuration, maxRetries: 0}));
    const vector = await call(client, 'embedQuery', () => new OpenAIEmbeddings({model, apiKey: 'none', configuration}).embedQuery('a fox'));
    assert.ok(vector.length > 10);
  },
  async 'langchain, anthropic'() {
    await chained('@langchain/anthropic', '', new ChatAnthropic({model, temperature: 0, apiKey: 'none', anthropicApiUrl: base, maxTokens: 60, maxRetries: 0}));
  },
  async 'openai agents: responses and chat'() {
    const client = '@openai/agents';
    setTracingDisabled(true);
    setDefaultOpenAIClient(openai);
    for (const api of ['responses', 'chat_completions']) {
      setOpenAIAPI(api);
      const agent = new Agent({name: 'one', model, modelSettings: {temperature: 0}});
      await call(client, `run (${api})`, async () => assert.equal((await run(agent, prompt)).finalOutput, answer));
      await call(client, `run as a stream (${api})`, async () => {
        const stream = await run(agent, prompt, {stream: true});
        await stream.completed;
        assert.equal(stream.finalOutput, answer);
      });
      const asked = [];
      const weather = agentTool({name: 'weather', description: 'The weather of a city', parameters: city,
                                 execute: input => { asked.push(input); return 'Sunny.'; }});
      await call(client, `run with a tool that must be called (${api})`, () => run(
        new Agent({name: 'two', model, modelSettings: {temperature: 0, toolChoice: 'required', maxTokens: 200}, tools: [weather]}), prompt));
      assert.ok(asked.length === 1 && city.safeParse(asked[0]).success, JSON.stringify(asked));
      await refused(client, `pictures (${api})`, /image/, () => run(agent, [{role: 'user', content: [{type: 'input_image', image: dot}]}]));
    }
  },
});
