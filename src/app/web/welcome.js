// What a conversation shows before its first message: which model answers, how much it remembers, how fast it is expected
// to be, and three questions to try.
import {post} from './api.js';
import {$, button} from './dom.js';
import {shortName} from './models.js';
import {number, rough, t} from './words.js';

const EXAMPLES = ['exampleExplain', 'exampleCode', 'examplePlan'];

let asked = '';  // the model whose words are shown, or are on their way

/// Shows it where no turn is there, and hides it where one is.
export function refreshWelcome() {
  const empty = $('log').childElementCount === 0, appears = empty && $('welcome').hidden;
  $('welcome').hidden = !empty;
  $('log').hidden = empty;
  if (empty && (appears || asked !== $('model').value)) describe($('model').value);
}

async function describe(model) {
  asked = model;
  $('welcome-title').textContent = model ? t('welcomeModel', {model: shortName(model)}) : t('welcomeNone');
  $('welcome-words').textContent = model ? '' : t('welcomeNoneWords');
  $('examples').hidden = !model;
  if (!model) return;
  let words;
  try {
    words = wordsOf(await (await post('api/millrace/fit', {model})).json());
  } catch (error) {
    words = error.message;  // it does not fit, say: the server knows what to do
  }
  if (asked === model) $('welcome-words').textContent = words;
}
function wordsOf({loaded, context_tokens: context, tokens_per_second: speed, bound}) {
  const words = [t(loaded ? 'welcomeLoaded' : 'welcomeLoads'), t('welcomeContext', {n: number(context)})];
  words.push(speed > 0 ? t('speedExpected', {expected: rough(speed), bound: t('bound_' + bound)}) : t('welcomeUnmeasured'));
  return words.join(' ');
}

/// `ask`: called with the text of the example that was chosen.
export function setUpWelcome(ask) {
  $('examples').replaceChildren(...EXAMPLES.map(key => button(t(key), 'plain example', () => ask(t(key)))));
  new MutationObserver(refreshWelcome).observe($('log'), {childList: true});
  $('model').addEventListener('change', refreshWelcome);
  refreshWelcome();
}
/// The model may have come, gone or been loaded.
export function renewWelcome() {
  asked = null;
  refreshWelcome();
}
