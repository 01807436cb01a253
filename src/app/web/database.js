// Where conversations and their pictures are kept: this browser's IndexedDB, or memory alone where that is refused (some
// private windows) or full. Pictures have a database of their own: a conversation is written every few seconds while an
// answer comes, and a page of an earlier Millrace in another tab would block a new version of the first database.
import {picturesOf} from './conversations.js';
import {toBase64} from './pictures.js';
import {t} from './words.js';

const STORES = {
  conversations: {database: 'millrace', options: {keyPath: 'id'}},
  pictures: {database: 'millrace-pictures', options: {}},  // keys: [conversation's id, picture's id]; values: {type, bytes}
};
const memory = new Map();
const held = new Map();  // pictures that are not stored: {blob, tried} by id; `tried`: the browser had no room
const opened = {};

function open(name) {
  opened[name] ??= new Promise(resolve => {
    try {
      const request = indexedDB.open(STORES[name].database, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(name, STORES[name].options);
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
  return opened[name];
}

/// Resolves when it is done for good: a full disk shows only then. Nothing where the browser stores nothing.
async function ask(name, mode, make) {
  const database = await open(name);
  if (!database) return undefined;
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(name, mode), request = make(transaction.objectStore(name));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onabort = () => reject(transaction.error ?? request.error);
  });
}
const isFull = error => error?.name === 'QuotaExceededError';

/// All, the one changed last first.
export async function allConversations() {
  const all = await ask('conversations', 'readonly', store => store.getAll()) ?? [...memory.values()];
  return all.sort((a, b) => b.changed - a.changed);
}

/// Its text first, then the pictures that are held. Throws in the reader's words where there is no room: what was not
/// stored stays as long as the page.
export async function saveConversation(conversation) {
  memory.set(conversation.id, conversation);
  try {
    await ask('conversations', 'readwrite', store => store.put(conversation));
  } catch (error) {
    throw isFull(error) ? new Error(t('storeFull')) : error;
  }
  let full = false;
  for (const {picture} of picturesOf(conversation.turns)) {
    const one = held.get(picture);
    if (!one || one.tried || !await open('pictures')) continue;
    one.tried = true;
    try {
      const {type} = one.blob, bytes = await one.blob.arrayBuffer();
      await ask('pictures', 'readwrite', store => store.put({type, bytes}, [conversation.id, picture]));
      held.delete(picture);
    } catch (error) {
      if (!isFull(error)) throw error;
      full = true;
    }
  }
  if (full) throw new Error(t('storeFullPictures'));
}

export async function removeConversation(id) {
  for (const {picture} of picturesOf(memory.get(id)?.turns ?? [])) held.delete(picture);
  memory.delete(id);
  await ask('conversations', 'readwrite', store => store.delete(id));
  await ask('pictures', 'readwrite', store => store.delete(IDBKeyRange.bound([id], [id, []])));
  for (const one of held.values()) one.tried = false;  // there may be room now
}

/// Keeps a picture until a conversation with it is saved.
export const holdPicture = (picture, blob) => held.set(picture, {blob, tried: false});
export const dropPicture = picture => held.delete(picture);

/// A Blob; undefined where the browser has it no more.
export async function pictureBytes(conversation, picture) {
  if (held.has(picture)) return held.get(picture).blob;
  const found = await ask('pictures', 'readonly', store => store.get([conversation.id, picture]));
  return found && new Blob([found.bytes], {type: found.type});
}

/// The pictures of conversations in base64, by their ids. What the browser has no more is missing.
export async function loadPictures(conversations) {
  const all = new Map();
  for (const conversation of conversations) {
    for (const {picture} of picturesOf(conversation.turns)) {
      const blob = await pictureBytes(conversation, picture);
      if (blob) all.set(picture, await toBase64(blob));
    }
  }
  return all;
}
