// A conversation with a model: sends, reads the stream, keeps what came.
import {lines, post} from './api.js';
import {addTurn, branch, messagesUntil, newConversation, showBranch} from './conversations.js';
import {loadPictures, saveConversation} from './database.js';
import {$, button, complain, make} from './dom.js';
import {readsPictures, shortName} from './models.js';
import {asked, askForKey, systemPrompt} from './settings.js';
import {ComingTurn, scrollToEnd, showTurns, turnElement} from './turns.js';
import {duration, number, rough, t} from './words.js';

const SAVE_EVERY = 2000;  // milliseconds, while an answer comes

let conversation = newConversation(), running = null;
let onChange = () => {};  // the list of conversations is told

export const current = () => conversation;
export const isRunning = () => running !== null;

export function setUpChat(changed) {
  onChange = changed;
  $('stop').onclick = stop;
  openConversation(conversation);
}
export const stop = () => running?.abort();

export function openConversation(other) {
  stop();
  conversation = other;
  showTurns(conversation, actions);
  say('');
  complain();
  onChange();
}

/// A message of the reader. False while an answer is on its way, or where there is no model.
export function send({content, files}) {
  if (running) return false;
  if (!$('model').value) {  // the Models view offers to fetch one; what was written stays
    $('tab-models').click();
    return false;
  }
  addUser(conversation.head, content, files);
  answer();
  return true;
}
function addUser(parent, content, files) {
  const place = addTurn(conversation, parent, {role: 'user', content, ...(files?.length ? {files} : {})});
  $('log').append(turnElement(conversation, place, actions));
}

const actions = {
  show(place) {
    if (running) return;
    showBranch(conversation, place);
    changedTree();
  },
  edit(place, content, files) {
    if (running) return;
    const {role, parent, model} = conversation.turns[place];
    if (role === 'user') {
      addUser(parent, content, files);
      changedTree();
      answer();
    } else {
      addTurn(conversation, parent, {role, content, model});
      changedTree();
    }
  },
  again(place) {
    if (running) return;
    conversation.head = conversation.turns[place].parent;
    showTurns(conversation, actions);
    answer();
  },
  results(place, texts) {
    if (running) return;
    texts.forEach((content, i) => addTurn(conversation, conversation.head, {role: 'tool', name: conversation.turns[place].calls[i].name, content}));
    changedTree();
    answer();
  },
};
function changedTree() {
  showTurns(conversation, actions);
  save(conversation);
}
export function save(which) {
  saveConversation(which).catch(error => complain(error.message));
  onChange();
}

function say(text) {
  if ($('status').textContent !== text) $('status').textContent = text;
}
function busy(is) {
  $('send').hidden = is;
  $('stop').hidden = !is;
  $('log').classList.toggle('busy', is);
}
/// `parent`: the turn that is to be answered once more.
function showError(error, parent) {
  // Browsers have a TypeError and words of their own for a stream that breaks.
  const element = make('article', 'turn error', error instanceof TypeError ? t('endedEarly') : error.message);
  element.append(' ', button(t('retry'), 'plain small', () => {
    if (running) return;
    conversation.head = parent;
    showTurns(conversation, actions);
    answer();
  }));
  element.setAttribute('role', 'alert');
  $('log').append(element);
  if (error.status === 401) askForKey();
  scrollToEnd();
}

/// How far the prompt is read, with the time that is left once there is a rate.
class Reading {
  #first = null;
  show({processed, total}) {
    const now = performance.now();
    this.#first ??= {processed, now};
    const done = processed - this.#first.processed;
    const left = done > 0 ? (now - this.#first.now) / 1000 * (total - processed) / done : 0;
    $('reading').hidden = processed >= total;
    $('progress').max = total;
    $('progress').value = processed;
    say(t('readingSome', {done: number(processed), total: number(total)}) + (left > 1 ? ', ' + t('timeLeft', {time: duration(left)}) : ''));
  }
}

async function answer() {
  const mine = conversation, parent = mine.head, model = $('model').value;
  const turn = {role: 'assistant', content: '', model: shortName(model)};
  const abort = running = new AbortController();
  busy(true);
  $('spoken').replaceChildren();
  say(t('reading'));
  const coming = new ComingTurn(speak);
  const began = performance.now();
  let failed = null, first = 0, thoughtBegan = 0, pieces = 0, saved = began, place = -1;
  const reading = new Reading();
  const keepSoFar = () => {
    if (place < 0) place = addTurn(mine, parent, turn);
    Object.assign(mine.turns[place], turn);
    save(mine);
  };
  try {
    save(mine);
    const system = systemPrompt();
    const turns = branch(mine).map(at => mine.turns[at]);
    const messages = messagesUntil(mine, parent, await loadPictures([{...mine, turns}]));
    const asks = messages.slice(messages.findLastIndex(message => message.role === 'assistant') + 1);
    if (asks.some(message => message.images) && !await readsPictures()) throw new Error(t('cannotSee', {model: shortName(model)}));
    const request = {model, prompt_progress: true, ...asked(), messages: system ? [{role: 'system', content: system}, ...messages] : messages};
    for await (const part of lines(await post('api/chat', request, abort.signal))) {
      if (part.error) throw new Error(part.error);
      if (part.prompt_progress) {
        reading.show(part.prompt_progress);
        continue;
      }
      const now = performance.now(), {content, thinking, tool_calls: calls} = part.message ?? {};
      if (!first) first = now;
      const atEnd = $('log').scrollTop + $('log').clientHeight > $('log').scrollHeight - 60;
      if (thinking) {
        thoughtBegan ||= now;
        turn.thinking = (turn.thinking ?? '') + thinking;
        coming.addThought(thinking);
      } else if (thoughtBegan && !turn.seconds) {
        turn.seconds = (now - thoughtBegan) / 1000;
      }
      if (content) coming.drawing.update(turn.content += content);
      for (const call of calls ?? []) (turn.calls ??= []).push({name: call.function.name, arguments: call.function.arguments});
      if (++pieces % 8 === 1) showRate(pieces, (now - first) / 1000, thinking);
      if (atEnd) requestAnimationFrame(scrollToEnd);
      if (now - saved > SAVE_EVERY) {
        saved = now;
        keepSoFar();
      }
      if (part.done) turn.note = summary(part, (first - began) / 1000);  // the turn shows it
    }
    say('');
    if (!turn.note) throw new Error(t('endedEarly'));
  } catch (error) {
    if (error.name !== 'AbortError') {
      failed = error;
      say('');
    } else {
      say(turn.note = t('stopped'));
    }
  }
  $('reading').hidden = true;
  if (turn.content || turn.thinking || turn.calls) {
    keepSoFar();
    await coming.finish(mine, place, actions);
  } else {
    coming.element.remove();
  }
  if (failed && mine === conversation) showError(failed, parent);  // below what came of the answer
  setTimeout(() => { if (!running) $('spoken').replaceChildren(); }, 15_000);  // when it is said
  if (running === abort) {
    running = null;
    busy(false);
  }
}

/// A finished block is said once; what is drawn anew is not.
function speak(block) {
  $('spoken').append(make('p', '', block.textContent));
}

function showRate(pieces, seconds, thinking) {
  $('reading').hidden = true;
  const words = t(thinking ? 'thinking' : 'answering');
  say(seconds > 0.3 ? `${words}, ${t('aboutRate', {rate: number(Math.round(pieces / seconds))})}` : words);
}
function summary(part, toFirst) {
  const rate = part.eval_count / (part.eval_duration / 1e9);
  const words = [t('promptTokens', {n: number(part.prompt_eval_count)}), t('answeredTokens', {n: number(part.eval_count)})];
  if (isFinite(rate)) words.push(`${rough(rate)} tok/s`);
  words.push(t('firstAfter', {time: number(toFirst, 2)}));
  if (part.done_reason === 'length') words.push(t('cut'));
  return words.join(', ');
}
