// Where conversations are kept: this browser's IndexedDB, or memory alone where that is refused (some private windows).

const memory = new Map();
let opened = null;

function open() {
  opened ??= new Promise(resolve => {
    try {
      const request = indexedDB.open('millrace', 1);
      request.onupgradeneeded = () => request.result.createObjectStore('conversations', {keyPath: 'id'});
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
  return opened;
}

async function ask(mode, make) {
  const database = await open();
  if (!database) return undefined;
  return new Promise((resolve, reject) => {
    const request = make(database.transaction('conversations', mode).objectStore('conversations'));
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/// All, the one changed last first.
export async function allConversations() {
  const all = await ask('readonly', store => store.getAll()) ?? [...memory.values()];
  return all.sort((a, b) => b.changed - a.changed);
}
export async function saveConversation(conversation) {
  memory.set(conversation.id, conversation);
  await ask('readwrite', store => store.put(conversation));
}
export async function removeConversation(id) {
  memory.delete(id);
  await ask('readwrite', store => store.delete(id));
}
