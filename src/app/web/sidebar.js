// The list of conversations: open, search, rename, remove, export, import.
import {current, openConversation, save} from './chat.js';
import {fresh, fromJson, matches, newConversation, toJson, toMarkdown} from './conversations.js';
import {allConversations, holdPicture, loadPictures, removeConversation, saveConversation} from './database.js';
import {$, button, download, make} from './dom.js';
import {fromBase64} from './pictures.js';
import {number, t} from './words.js';

/// Shows the list as it is kept now, and the title of the conversation that is open.
export async function refreshSidebar() {
  const open = current();
  const kept = open.turns.length > 0;
  if (document.activeElement !== $('title')) $('title').value = open.title;
  for (const id of ['title', 'export', 'remove']) $(id).disabled = !kept;
  const all = await allConversations();
  const words = $('search').value.trim();
  const shown = words ? all.filter(conversation => matches(conversation, words)) : all;
  $('conversations').replaceChildren(...shown.map(conversation => {
    const item = make('li');
    const entry = button(conversation.title || t('newChat'), 'plain entry', () => {
      openConversation(conversation);
      showSidebar(false);
    });
    entry.dir = 'auto';
    if (conversation.id === open.id) entry.setAttribute('aria-current', 'true');
    item.append(entry);
    return item;
  }));
  if (words) $('side-note').textContent = t('found', {n: number(shown.length)});
}

/// On a narrow screen; a wide one has it always.
export function showSidebar(open) {
  $('chat').classList.toggle('side-open', open);
  $('side-open').setAttribute('aria-expanded', open);
  if (open) $('search').focus();
}

/// Does it, and notes the error if it fails.
async function noted(work) {
  try {
    await work();
  } catch (error) {
    $('side-note').textContent = error.message;
  }
}
function keepPicture(base64) {
  const blob = fromBase64(base64), picture = fresh();
  if (!blob) return null;
  holdPicture(picture, blob);
  return {type: blob.type, size: blob.size, picture};
}

const fileName = title => (title.replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '') || 'millrace').slice(0, 60);

export function setUpSidebar() {
  $('side-open').onclick = () => showSidebar(!$('chat').classList.contains('side-open'));
  $('side-close').onclick = () => showSidebar(false);
  $('new').onclick = () => {
    openConversation(newConversation());
    showSidebar(false);
    $('prompt').focus();
  };
  $('search').oninput = () => {
    $('side-note').textContent = '';
    refreshSidebar();
  };
  $('title').onchange = () => {
    const conversation = current();
    conversation.title = $('title').value.trim() || conversation.title;
    save(conversation);
  };
  $('title').onkeydown = event => { if (event.key === 'Enter') $('title').blur(); };
  $('remove').onclick = async () => {
    const conversation = current();
    if (!confirm(t('removeWhat', {name: conversation.title}))) return;
    openConversation(newConversation());
    await removeConversation(conversation.id);
    refreshSidebar();
  };
  $('export').onclick = () => noted(async () => {
    const one = current();
    download(fileName(one.title) + '.md', 'text/markdown', toMarkdown(one, await loadPictures([one])));
  });
  $('export-all').onclick = () => noted(async () => {
    const all = await allConversations();
    download('millrace-conversations.json', 'application/json', toJson(all, await loadPictures(all)));
  });
  $('import').onclick = () => $('import-file').click();
  $('import-file').onchange = async () => {
    const [file] = $('import-file').files;
    $('import-file').value = '';
    if (!file) return;
    let conversations;
    try {
      conversations = fromJson(await file.text(), keepPicture);
    } catch {
      $('side-note').textContent = t('importBad', {name: file.name});
      return;
    }
    await noted(async () => {
      for (const conversation of conversations) await saveConversation(conversation);
      $('side-note').textContent = t('imported', {n: number(conversations.length)});
    });
    refreshSidebar();
  };
}
