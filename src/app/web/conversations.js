// Conversations as plain data. A conversation is a tree: an edited message or a second answer is a sibling of the first,
// and `head` says where the branch ends that is shown.
//
//   {id, title, created, changed, turns: [{parent, role, content, ...}], head}
//
// A turn's name is its place in `turns`; `parent` is the place of the turn before it, always a smaller one, or -1.
// Roles: user (maybe `files` [{name, text}]), assistant (maybe `thinking`, `seconds` of thought, `calls`
// [{name, arguments}], `model`, `note`), tool (`name`).

export const FORMAT = 'millrace-conversations';

const fresh = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 10);

export function newConversation() {
  const now = Date.now();
  return {id: fresh(), title: '', created: now, changed: now, turns: [], head: -1};
}

/// Puts a turn behind `parent`, and shows its branch. Its place.
export function addTurn(conversation, parent, turn) {
  conversation.turns.push({...turn, parent});
  conversation.head = conversation.turns.length - 1;
  conversation.changed = Date.now();
  if (!conversation.title && turn.role === 'user') conversation.title = titleOf(turn);
  return conversation.head;
}
function titleOf(turn) {
  const text = (turn.content || turn.files?.[0]?.name || '').replace(/\s+/g, ' ').trim();
  return text.length > 60 ? [...text].slice(0, 59).join('') + '…' : text;
}

/// The places of the branch that is shown, from its first turn on.
export function branch(conversation) {
  const places = [];
  for (let at = conversation.head; at >= 0; at = conversation.turns[at].parent) places.unshift(at);
  return places;
}
/// The places of the turns that stand where `place` stands, itself among them.
export function siblings(conversation, place) {
  const {parent, role} = conversation.turns[place];
  return conversation.turns.flatMap((turn, at) => turn.parent === parent && turn.role === role ? [at] : []);
}
/// Shows the newest branch through `place`.
export function showBranch(conversation, place) {
  let head = place;
  conversation.turns.forEach((turn, at) => { if (turn.parent === head) head = at; });
  conversation.head = head;
}

/// A fence that no line of the text closes.
function fenced(name, text) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map(run => run.length));
  const fence = '`'.repeat(longest + 1);
  const kind = /\.(\w+)$/.exec(name)?.[1] ?? '';
  return `${name}\n${fence}${kind}\n${text.replace(/\n?$/, '\n')}${fence}`;
}

/// What the API is sent of the branch that is shown, up to and with `place`.
export function messagesUntil(conversation, place) {
  const places = branch(conversation);
  return places.slice(0, places.indexOf(place) + 1).map(at => {
    const turn = conversation.turns[at];
    if (turn.role === 'tool') return {role: 'tool', tool_name: turn.name, content: turn.content};
    const content = [...(turn.files ?? []).map(file => fenced(file.name, file.text)), turn.content].filter(Boolean).join('\n\n');
    const message = {role: turn.role, content};
    if (turn.calls?.length) message.tool_calls = turn.calls.map(call => ({function: {name: call.name, arguments: call.arguments}}));
    return message;
  });
}

export function matches(conversation, words) {
  const wanted = words.toLowerCase();
  return [conversation.title, ...conversation.turns.map(turn => turn.content)].some(text => text.toLowerCase().includes(wanted));
}

export function toMarkdown(conversation) {
  const parts = branch(conversation).map(at => {
    const turn = conversation.turns[at];
    const files = (turn.files ?? []).map(file => fenced(file.name, file.text) + '\n\n').join('');
    const calls = (turn.calls ?? []).map(call => '\n\n' + fenced(call.name, JSON.stringify(call.arguments))).join('');
    return `## ${turn.model ?? turn.name ?? turn.role}\n\n${files}${turn.content}${calls}`;
  });
  return `# ${conversation.title}\n\n${parts.join('\n\n')}\n`;
}

export const toJson = conversations => JSON.stringify({format: FORMAT, version: 1, conversations}, null, 1);

/// Conversations out of a file, which anybody may have written: what is none is left out. Throws where it holds none.
export function fromJson(text) {
  const file = JSON.parse(text);
  const list = Array.isArray(file) ? [{turns: linked(file)}] : file?.format === FORMAT ? file.conversations : [];
  const good = (Array.isArray(list) ? list : []).map(checked).filter(conversation => conversation.turns.length > 0);
  if (good.length === 0) throw new Error('no conversations');
  return good;
}
/// A bare list of messages, as APIs take them.
const linked = messages => messages.map((message, i) => ({...message, parent: i - 1}));

const text = value => typeof value === 'string' ? value : '';
function checked(given) {
  const conversation = newConversation();
  for (const turn of Array.isArray(given?.turns) ? given.turns : []) {
    const parent = turn?.parent;
    if (!['user', 'assistant', 'tool'].includes(turn?.role)) break;
    if (!Number.isInteger(parent) || parent < -1 || parent >= conversation.turns.length) break;
    const one = {role: turn.role, content: text(turn.content)};
    for (const name of ['thinking', 'model', 'name', 'note']) if (text(turn[name])) one[name] = turn[name];
    if (Number.isFinite(turn.seconds)) one.seconds = turn.seconds;
    if (Array.isArray(turn.files)) one.files = turn.files.map(file => ({name: text(file?.name), text: text(file?.text)}));
    if (Array.isArray(turn.calls)) one.calls = turn.calls.map(call => ({name: text(call?.name), arguments: call?.arguments ?? {}}));
    addTurn(conversation, parent, one);
  }
  const {head, title, created, changed} = given ?? {};
  if (Number.isInteger(head) && head >= 0 && head < conversation.turns.length) conversation.head = head;
  if (text(title)) conversation.title = title;
  if (Number.isFinite(created)) conversation.created = created;
  conversation.changed = Number.isFinite(changed) ? changed : conversation.created;
  return conversation;
}
