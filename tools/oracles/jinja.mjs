// Renders the chat templates of published tokenizers with @huggingface/jinja and writes what came out as JSON, for
// tests/text/published_templates_test.cpp to render the same.
// Usage: node jinja.mjs FOLDER OUT.json, where FOLDER has node_modules with the packages below.
import {createRequire} from 'node:module';
import {readFileSync, readdirSync, existsSync, writeFileSync} from 'node:fs';
import {join, resolve} from 'node:path';

const folder = resolve(process.argv[2]);
const {Template} = createRequire(join(folder, 'index.js'))('@huggingface/jinja');

const tools = [{type: 'function', function: {name: 'get_weather', description: 'The weather in a "city"', parameters: {
  type: 'object', properties: {city: {type: 'string', description: 'Where'}, days: {type: 'integer', default: 1.5}}, required: ['city']}}}];
const call = (args) => ({id: 'call_1', type: 'function', function: {name: 'get_weather', arguments: args}});
const conversations = {
  question: {messages: [{role: 'user', content: ' Hi <|im_end|> there \n'}]},
  system: {messages: [{role: 'system', content: 'Be kind.'}, {role: 'user', content: 'Grüße, 世界'}]},
  turns: {messages: [{role: 'user', content: 'a'}, {role: 'assistant', content: 'b'}, {role: 'user', content: 'c'}]},
  closed: {messages: [{role: 'user', content: 'a'}, {role: 'assistant', content: 'b'}], add_generation_prompt: false},
  thoughts: {messages: [{role: 'user', content: 'a'}, {role: 'assistant', content: '<think>\nhm\n</think>\n\nb'}, {role: 'user', content: 'c'},
    {role: 'assistant', content: 'd', reasoning_content: '\nhm\n'}]},
  no_thinking: {messages: [{role: 'user', content: 'a'}], enable_thinking: false},
  tools: {messages: [{role: 'system', content: 'x'}, {role: 'user', content: 'Rome?'}], tools},
  calls: {messages: [{role: 'user', content: 'Rome?'}, {role: 'assistant', content: '', tool_calls: [call({city: 'Rome', n: [1, 2.5, null, true]})]},
    {role: 'tool', content: 'sunny'}, {role: 'tool', content: 'warm'}, {role: 'assistant', content: 'Sunny.'}, {role: 'user', content: 'ok'}], tools},
  call_text: {messages: [{role: 'user', content: 'Rome?'}, {role: 'assistant', content: null, tool_calls: [call('{"city": "Rome"}'), call('{}')]},
    {role: 'tool', content: 'sunny'}], tools},
  two_users: {messages: [{role: 'user', content: 'a'}, {role: 'user', content: 'b'}]},
  parts: {messages: [{role: 'user', content: [{type: 'text', text: ' a '}, {type: 'text', text: 'b'}]}]},
};

const text = (token) => token && typeof token === 'object' ? token.content : token ?? undefined;
const cases = [];
const scope = join(folder, 'node_modules/@lenml');
for (const name of readdirSync(scope).filter((entry) => entry.startsWith('tokenizer-'))) {
  const file = join(scope, name, 'models/tokenizer_config.json');
  const config = existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : {};
  const given = typeof config.chat_template === 'string' ? [{name: 'default', template: config.chat_template}] : config.chat_template ?? [];
  if (given.length === 0) console.log(`${name}: has no chat template`);
  for (const {name: variant, template} of given) {
    for (const [title, conversation] of Object.entries(conversations)) {
      // This engine joins a string and a list with +, which Python's does not.
      if (title === 'parts' && name.includes('deepseek')) continue;
      const inputs = {tools: null, documents: null, add_generation_prompt: true, ...conversation};
      for (const key of ['bos_token', 'eos_token']) if (text(config[key])) inputs[key] = text(config[key]);
      const one = {name: `${name} ${variant} ${title}`, template, inputs};
      try {
        one.expected = new Template(template).render(inputs);
      } catch (problem) {
        // Its filters refuse values of which Python's take the text.
        if (/filter/.test(problem.message)) continue;
        one.fails = String(problem.message);
      }
      cases.push(one);
    }
  }
}
writeFileSync(process.argv[3], JSON.stringify({cases}));
console.log(`${cases.length} cases, ${cases.filter((one) => 'fails' in one).length} of them fail to render`);
