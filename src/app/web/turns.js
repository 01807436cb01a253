// The turns of a conversation as elements, with what can be done to each: copy, edit, answer once more, go to another branch.
import {branch, siblings} from './conversations.js';
import {$, button, copyText, icon, iconButton, make} from './dom.js';
import {fileElement, listFiles} from './files.js';
import {Drawing} from './markdown.js';
import {duration, number, t} from './words.js';

/// Draws the branch that is shown. `actions`: edit(place, text, files), again(place), show(place), results(place, [text, ...]).
export function showTurns(conversation, actions) {
  $('log').replaceChildren(...branch(conversation).map(place => turnElement(conversation, place, actions)));
  scrollToEnd();
}
export function scrollToEnd() {
  $('log').scrollTop = $('log').scrollHeight;
}

export function turnElement(conversation, place, actions) {
  const turn = conversation.turns[place];
  const element = make('article', 'turn ' + turn.role);
  element.setAttribute('aria-label', turn.role === 'user' ? t('you') : turn.name ?? turn.model ?? t('model'));
  if (turn.thinking) element.append(thoughtElement(turn));
  const body = make('div', 'text');
  element.append(body);
  if (turn.role === 'assistant') {
    element.drawn = new Drawing(body).finish(turn.content);
    appendCalls(element, conversation, place, actions);
  } else {
    for (const file of turn.files ?? []) body.append(fileElement(conversation, file));
    if (turn.name) body.append(make('b', '', t('resultOf', {name: turn.name})));
    const said = make('div', 'said', turn.content);
    said.dir = 'auto';
    body.append(said);
  }
  appendTools(element, conversation, place, actions);
  return element;
}

/// An answer that is about to come: add() takes its pieces, finish() its last state.
export class ComingTurn {
  #thought = null;
  #thoughtText = null;

  constructor(onBlock) {
    this.element = make('article', 'turn assistant');
    this.element.setAttribute('aria-busy', 'true');
    const body = make('div', 'text');
    this.element.append(body);
    this.drawing = new Drawing(body, onBlock);
    $('log').append(this.element);
    scrollToEnd();
  }
  addThought(piece) {
    if (!this.#thought) {
      this.#thought = thoughtElement({thinking: ''});
      this.#thoughtText = this.#thought.lastElementChild.appendChild(document.createTextNode(''));
      this.element.prepend(this.#thought);
    }
    this.#thoughtText.appendData(piece);
  }
  async finish(conversation, place, actions) {
    const turn = conversation.turns[place];
    if (this.#thought) this.#thought.firstElementChild.textContent = thoughtTitle(turn);
    await this.drawing.finish(turn.content);
    this.element.removeAttribute('aria-busy');
    this.element.setAttribute('aria-label', turn.model ?? t('model'));
    appendCalls(this.element, conversation, place, actions);
    appendTools(this.element, conversation, place, actions);
  }
}

const thoughtTitle = turn => turn.seconds ? t('thoughtFor', {time: duration(turn.seconds)}) : t('thinking');
function thoughtElement(turn) {
  const thought = make('details', 'thought');
  const text = make('div', '', turn.thinking);
  text.dir = 'auto';
  thought.append(make('summary', '', thoughtTitle(turn)), text);
  return thought;
}

/// The calls of an answer; where it is the last turn, with a field for each result.
function appendCalls(element, conversation, place, actions) {
  const turn = conversation.turns[place];
  if (!turn.calls?.length) return;
  const form = make('form', 'calls');
  const open = conversation.head === place;
  const fields = turn.calls.map(call => {
    form.append(make('code', 'call', `${call.name}(${JSON.stringify(call.arguments)})`));
    const field = make('textarea');
    field.rows = 2;
    field.dir = 'auto';
    field.setAttribute('aria-label', t('resultOf', {name: call.name}));
    field.placeholder = t('resultOf', {name: call.name});
    if (open) form.append(field);
    return field;
  });
  form.onsubmit = event => {
    event.preventDefault();
    actions.results(place, fields.map(field => field.value));
  };
  if (open) form.append(make('button', 'small', t('sendResults')));
  element.append(form);
}

function appendTools(element, conversation, place, actions) {
  const turn = conversation.turns[place], tools = make('footer', 'turn-tools');
  const others = siblings(conversation, place), at = others.indexOf(place);
  if (others.length > 1) {
    const previous = button('‹', 'quiet', () => actions.show(others[at - 1]), t('previousBranch'));
    const next = button('›', 'quiet', () => actions.show(others[at + 1]), t('nextBranch'));
    previous.disabled = at === 0;
    next.disabled = at + 1 === others.length;
    tools.append(previous, make('span', 'words', `${number(at + 1)}/${number(others.length)}`), next);
  }
  const copy = iconButton('copy', 'copy', async () => {
    await copyText(turn.content);
    copy.replaceChildren(icon('done'));
    setTimeout(() => copy.replaceChildren(icon('copy')), 1500);
  }, t('copy'));
  if (turn.content) tools.append(copy);
  if (turn.role !== 'tool') tools.append(iconButton('edit', 'edit', () => editTurn(element, conversation, place, actions), t('edit')));
  if (turn.role === 'assistant') tools.append(iconButton('again', 'again', () => actions.again(place), t('again')));
  if (turn.note) tools.append(make('span', 'words note', turn.note));
  element.append(tools);
}

/// Another text instead, and fewer files: the old turn stays as a branch.
function editTurn(element, conversation, place, actions) {
  const turn = conversation.turns[place];
  const form = make('form', 'editor'), list = make('ul', 'files'), field = make('textarea');
  let files = turn.files ?? [];
  listFiles(list, conversation, files, function remove(file) {
    files = files.filter(other => other !== file);
    listFiles(list, conversation, files, remove);
    if (files.length === 0) field.focus();
  });
  field.value = turn.content;
  field.rows = Math.min(12, turn.content.split('\n').length + 1);
  field.dir = 'auto';
  field.setAttribute('aria-label', t('edit'));
  const row = make('div', 'row');
  row.append(make('button', 'small', t(turn.role === 'user' ? 'send' : 'save')), button(t('cancel'), 'plain small', () => form.replaceWith(...old)));
  form.append(list, field, row);
  form.onsubmit = event => {
    event.preventDefault();
    const content = field.value.trim();
    if (turn.role !== 'user' || content || files.length > 0) actions.edit(place, content, files);
  };
  const old = [...element.childNodes];
  element.replaceChildren(form);
  field.focus();
}
