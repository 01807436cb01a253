// System prompt, parameters, tools and schema: kept in this browser, sent only where they are set. An empty field leaves
// the model's own value, which stands in it as a hint.
import {apiKey, post, setApiKey} from './api.js';
import {$, keep, kept, make} from './dom.js';
import {t} from './words.js';

// Name in the API, least, most, step.
const PARAMETERS = [
  ['temperature', 0, 2, 0.1], ['top_p', 0, 1, 0.05], ['top_k', 0, 1000, 1], ['min_p', 0, 1, 0.01], ['repeat_penalty', 0.5, 2, 0.05],
  ['seed', undefined, undefined, 1], ['num_predict', 1, undefined, 1], ['num_ctx', 1, undefined, 1],
];
const TEXTS = ['system', 'schema', 'tools'];

const settings = (() => {
  try { return JSON.parse(kept('settings') ?? '{}') ?? {}; } catch { return {}; }
})();
const save = () => keep('settings', JSON.stringify(settings));

function field(name, input) {
  const label = make('label');
  label.append(make('span', '', t('parameter_' + name)), input);
  return label;
}

/// Makes the fields. `onKey`: called when another API key is given.
export function setUpSettings(onKey) {
  for (const [name, least, most, step] of PARAMETERS) {
    const input = make('input');
    Object.assign(input, {id: name, type: 'number', step, min: least ?? '', max: most ?? ''});
    $('parameters').append(field(name, input));
  }
  const think = make('select');
  think.id = 'think';
  think.append(new Option(t('thinkModel'), ''), new Option(t('yes'), 'true'), new Option(t('no'), 'false'));
  $('parameters').append(field('think', think));
  for (const input of inputs()) {
    input.value = settings[input.id] ?? '';
    input.addEventListener('input', () => {
      settings[input.id] = input.value;
      save();
      if (TEXTS.includes(input.id)) check();
    });
  }
  $('settings-open').onclick = () => showSettings($('settings').hidden);
  $('settings-close').onclick = () => showSettings(false);
  $('reset').onclick = () => {
    for (const input of inputs()) input.value = settings[input.id] = '';
    save();
    check();
  };
  $('key').value = apiKey();
  $('key').onchange = () => {
    setApiKey($('key').value);
    onKey();
  };
  check();
}
/// The panel beside the conversation.
export function showSettings(open) {
  $('settings').hidden = !open;
  $('chat').classList.toggle('settings-open', open);
  $('settings-open').setAttribute('aria-expanded', open);
  (open ? $('system') : $('prompt')).focus();
}
/// The server wants a key that it was not given.
export function askForKey() {
  showSettings(true);
  $('key').focus();
}
const inputs = () => [...PARAMETERS.map(([name]) => $(name)), $('think'), ...TEXTS.map($)];

/// Shows what the model itself would take.
export async function showDefaults(model) {
  let own = {};
  try {
    const about = await (await post('api/show', {model})).json();
    own = Object.fromEntries((about.parameters ?? '').split('\n').map(line => line.trim().split(/\s+/, 2)));
    $('system').placeholder = about.system ?? '';
    if (!about.template && about.capabilities?.includes('completion')) $('status').textContent = t('noTemplate');
  } catch { /* without hints, then */ }
  for (const [name] of PARAMETERS) $(name).placeholder = own[name] ?? t('ofModel');
}

/// JSON out of a field; nothing where it is empty. Throws in the reader's words.
function json(name, good) {
  const text = $(name).value.trim();
  if (!text) return undefined;
  let value;
  try { value = JSON.parse(text); } catch (error) { throw new Error(`${t(name)}: ${error.message}`); }
  if (!good(value)) throw new Error(`${t(name)}: ${t('wrongShape')}`);
  return value;
}
const read = () => ({
  format: json('schema', value => value === 'json' || (typeof value === 'object' && value !== null && !Array.isArray(value))),
  tools: json('tools', Array.isArray),
});
function check() {
  let problem = '';
  try { read(); } catch (error) { problem = error.message; }
  $('settings-problem').textContent = problem;
}

/// What a request takes beside its messages: options, format, tools, think. Throws where a field is no JSON.
export function asked() {
  const request = {};
  const options = {};
  for (const [name] of PARAMETERS) if ($(name).value !== '' && $(name).validity.valid) options[name] = Number($(name).value);
  if (Object.keys(options).length > 0) request.options = options;
  const {format, tools} = read();
  if (format !== undefined) request.format = format;
  if (tools !== undefined) request.tools = tools;
  if ($('think').value) request.think = $('think').value === 'true';
  return request;
}
export const systemPrompt = () => $('system').value.trim();
