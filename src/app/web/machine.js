// The Machine view: where the weights are, how fast they move, what was predicted, and what would help.
import {getJson, post} from './api.js';
import {advise} from './advice.js';
import {$, make} from './dom.js';
import {drawHeat} from './heat.js';
import {History} from './history.js';
import {Meter, drawPlan} from './plan.js';
import {bytes, number, rough, t} from './words.js';

const EVERY = 700;  // milliseconds between two looks

let looking = false, before = null;
const about = new Map();  // by model: {parameters, size}
const meter = new Meter(), history = new History();

/// Looks until the view is left.
export async function lookAtMachine() {
  if (looking) return;
  looking = true;
  while (!$('machine').hidden) {
    if (!document.hidden) await look();
    await new Promise(done => setTimeout(done, EVERY));
  }
  looking = false;
}

async function look() {
  try {
    const {models} = await getJson('api/millrace/live');
    const now = models.find(model => model.model === $('model').value) ?? models[0];
    $('idle').hidden = Boolean(now || before);
    $('live').hidden = !now && !before;  // the last figures stay when the model goes
    if (now) await show(now);
  } catch (error) {
    $('idle').hidden = false;
    $('idle').textContent = error.message;
  }
}

async function aboutModel(name) {
  if (!about.has(name)) {
    const [shown, {models}] = await Promise.all([post('api/show', {model: name}).then(response => response.json()), getJson('api/tags')]);
    about.set(name, {parameters: shown.model_info['general.parameter_count'] ?? 0, size: models.find(model => model.name === name)?.size ?? 0});
  }
  return about.get(name);
}

async function show(now) {
  if (before?.model !== now.model || now.time_ns < before.time_ns) {
    before = null;
    meter.reset();
    history.reset();
  }
  $('live-name').textContent = t('modelOn', {model: now.model.replace(/:latest$/, ''), device: now.executor});
  const measured = meter.add(before, now);
  showSpeed(now, measured);
  drawPlan($('plan'), now, measured);
  showSplit(measured);
  history.add(before, now);
  history.draw($('history'), now);
  showAdvice(advise(now, await aboutModel(now.model)));
  drawHeat($('heat-frame'), now.experts, before?.experts);
  showHits(now);
  showGuesses(now);
  showNumbers(now);
  before = now;
}

function showSpeed(now, measured) {
  const predicted = now.plan.tokens_per_second;
  const words = [measured.tokensPerSecond > 0 ? t('speedNow', {rate: rough(measured.tokensPerSecond)}) : t('speedNone')];
  if (predicted > 0) words.push(t('speedPredicted', {rate: rough(predicted), bound: t('bound_' + now.plan.bound)}));
  $('speed').textContent = words.join(' ');
}

function showSplit({passMs, waitMs}) {
  const ms = value => number(value, 2) + ' ms';
  $('split-words').textContent = passMs > 0 ? t('passWords', {pass: ms(passMs), compute: ms(passMs - waitMs), wait: ms(waitMs)}) : '';
}

function showAdvice(list) {
  const lines = list.map(({key, values}) => t(key, values));
  if (lines.join() === [...$('advice').children].map(item => item.textContent).join()) return;
  $('advice').replaceChildren(...lines.map(line => make('li', '', line)));
}

function showHits(now) {
  if (now.experts.length === 0) {
    $('heat-words').textContent = t('noExperts');
    return;
  }
  const all = now.experts.map(row => row.present).join('');
  const asked = now.hits + now.misses;
  $('heat-words').textContent = t('expertsIn', {here: number(all.replaceAll('0', '').length), all: number(all.length)}) +
    (asked ? ' ' + t('hits', {hits: number(now.hits), misses: number(now.misses), percent: number(100 * now.hits / asked, 1)}) : '');
}

/// A line for each drafter that had its turn.
function showGuesses(now) {
  const lines = now.drafts.filter(one => one.drafted > 0).map(one => {
    const share = (right, all) => number(100 * right / all, 0) + ' %';
    const ms = seconds => number(1000 * seconds / Math.max(1, one.passes), 2) + ' ms';
    return t('guessWords', {drafter: one.drafter, right: number(one.right), all: number(one.drafted), percent: share(one.right, one.drafted),
                            places: one.drafted_at.map((all, place) => share(one.right_at[place], all)).join(' · '),
                            guessing: ms(one.seconds), verifying: ms(one.verify_seconds)});
  });
  if (lines.length > 0) lines.unshift(t('tokensAPass', {tokens: number(now.tokens_a_turn, 2)}));
  $('guesses').replaceChildren(...(lines.length > 0 ? lines : [t('noGuesses')]).map(line => make('p', '', line)));
}

function showNumbers(now) {
  const numbers = {
    requests: t('someOf', {done: number(now.live), total: number(now.max_sequences)}), queued: number(now.queued),
    lastRows: number(now.last_rows), kvBlocks: t('someOf', {done: number(now.kv_blocks), total: number(now.kv_blocks_bound)}),
    kvCached: number(now.kv_blocks_cached), shared: number(now.shared_tokens), context: number(now.context_tokens),
    memory: now.memory_cap < 1e18 ? t('someOf', {done: bytes(now.memory), total: bytes(now.memory_cap)}) : bytes(now.memory),
  };
  $('numbers').replaceChildren(...Object.entries(numbers).map(([name, value]) => {
    const box = make('div');
    box.title = t('about_' + name);
    box.append(make('dt', '', t('number_' + name)), make('dd', '', value));
    return box;
  }));
}
