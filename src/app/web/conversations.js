// Conversations as plain data. A conversation is a tree: an edited message or a second answer is a sibling of the first,
// and `head` says where the branch ends that is shown.
//
//   {id, title, created, changed, turns: [{parent, role, content, ...}], head}
//
// A turn's name is its place in `turns`; `parent` is the place of the turn before it, always a smaller one, or -1.
// Roles: user (maybe `files`), assistant (maybe `thinking`, `seconds` of thought, `calls` [{name, arguments}], `model`,
// `note`), tool (`name`). A file is {name, text}, or {name, type, size, picture}: `picture` is an id, by which the bytes are
// kept apart (database.js). Branches share the pictures of their conversation, two conversations none.

export const FORMAT = 'millrace-conversations';

export const fresh = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 10);

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

const asText = file => file.picture ? `[${file.name}: the picture is no longer there]` : fenced(file.name, file.text);

/// The files of these turns that are pictures.
export const picturesOf = turns => turns.flatMap(turn => turn.files ?? []).filter(file => file.picture);

/// What the API is sent of the branch that is shown, up to and with `place`. `pictures`: base64 by ids; where one is
/// missing, the model reads a note.
export function messagesUntil(conversation, place, pictures) {
  const places = branch(conversation);
  return places.slice(0, places.indexOf(place) + 1).map(at => {
    const turn = conversation.turns[at];
    if (turn.role === 'tool') return {role: 'tool', tool_name: turn.name, content: turn.content};
    const files = (turn.files ?? []).filter(file => !pictures.has(file.picture));
    const content = [...files.map(asText), turn.content].filter(Boolean).join('\n\n');
    const message = {role: turn.role, content};
    const images = picturesOf([turn]).filter(file => pictures.has(file.picture)).map(file => pictures.get(file.picture));
    if (images.length > 0) message.images = images;
    if (turn.calls?.length) message.tool_calls = turn.calls.map(call => ({function: {name: call.name, arguments: call.arguments}}));
    return message;
  });
}

export function matches(conversation, words) {
  const wanted = words.toLowerCase();
  return [conversation.title, ...conversation.turns.map(turn => turn.content)].some(text => text.toLowerCase().includes(wanted));
}

/// `pictures`: base64 by ids. They stand in the text as data URLs.
export function toMarkdown(conversation, pictures) {
  const markdown = file => pictures.has(file.picture)
    ? `![${file.name.replace(/[\\\[\]]/g, '\\$&')}](data:${file.type};base64,${pictures.get(file.picture)})` : asText(file);
  const parts = branch(conversation).map(at => {
    const turn = conversation.turns[at];
    const files = (turn.files ?? []).map(file => markdown(file) + '\n\n').join('');
    const calls = (turn.calls ?? []).map(call => '\n\n' + fenced(call.name, JSON.stringify(call.arguments))).join('');
    return `## ${turn.model ?? turn.name ?? turn.role}\n\n${files}${turn.content}${calls}`;
  });
  return `# ${conversation.title}\n\n${parts.join('\n\n')}\n`;
}

/// `pictures`: base64 by ids. Each conversation takes its own along, once, however many branches show it.
export function toJson(conversations, pictures) {
  const whole = conversations.map(conversation => {
    const own = picturesOf(conversation.turns).filter(file => pictures.has(file.picture)).map(file => [file.picture, pictures.get(file.picture)]);
    return own.length > 0 ? {...conversation, pictures: Object.fromEntries(own)} : conversation;
  });
  return JSON.stringify({format: FORMAT, version: 1, conversations: whole}, null, 1);
}

/// Conversations out of a file, which anybody may have written: what is none is left out. Throws where it holds none.
/// `keep`: called with the base64 of a picture; returns {type, size, picture} of it, or null where it is none.
export function fromJson(text, keep) {
  const file = JSON.parse(text);
  const list = Array.isArray(file) ? [linked(file)] : file?.format === FORMAT ? file.conversations : [];
  const good = (Array.isArray(list) ? list : []).map(one => checked(one, keep)).filter(conversation => conversation.turns.length > 0);
  if (good.length === 0) throw new Error('no conversations');
  return good;
}
/// A bare list of messages, as APIs take them.
function linked(messages) {
  const pictures = {};
  const turns = messages.map((message, i) => {
    const images = Array.isArray(message?.images) ? message.images : [];
    const files = images.map((data, at) => {
      const name = `image ${at + 1}`, picture = `${i} ${name}`;
      pictures[picture] = data;
      return {name, picture};
    });
    return {...message, parent: i - 1, ...(files.length > 0 ? {files} : {})};
  });
  return {turns, pictures};
}

const text = value => typeof value === 'string' ? value : '';
function checked(given, keep) {
  const conversation = newConversation();
  const kept = new Map();  // what became of a picture, by the id that it had
  const fileOf = file => {
    const name = text(file?.name), id = text(file?.picture);
    if (!id) return [{name, text: text(file?.text)}];
    if (!kept.has(id)) kept.set(id, Object.hasOwn(given.pictures ?? {}, id) ? keep(text(given.pictures[id])) : null);
    return kept.get(id) ? [{name, ...kept.get(id)}] : [];
  };
  for (const turn of Array.isArray(given?.turns) ? given.turns : []) {
    const parent = turn?.parent;
    if (!['user', 'assistant', 'tool'].includes(turn?.role)) break;
    if (!Number.isInteger(parent) || parent < -1 || parent >= conversation.turns.length) break;
    const one = {role: turn.role, content: text(turn.content)};
    for (const name of ['thinking', 'model', 'name', 'note']) if (text(turn[name])) one[name] = turn[name];
    if (Number.isFinite(turn.seconds)) one.seconds = turn.seconds;
    if (Array.isArray(turn.files)) one.files = turn.files.flatMap(fileOf);
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
