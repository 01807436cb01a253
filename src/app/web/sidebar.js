// The list of conversations: open, search, rename, remove, export, import.
import {current, openConversation} from './chat.js';
import {fromJson, matches, newConversation, toJson, toMarkdown} from './conversations.js';
import {allConversations, removeConversation, saveConversation} from './database.js';
import {$, button, download, make} from './dom.js';
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
      drawer(false);
    });
    entry.dir = 'auto';
    if (conversation.id === open.id) entry.setAttribute('aria-current', 'true');
    item.append(entry);
    return item;
  }));
  if (words) $('side-note').textContent = t('found', {n: number(shown.length)});
}

function drawer(open) {
  $('chat').classList.toggle('side-open', open);
  $('side-open').setAttribute('aria-expanded', open);
  if (open) $('search').focus();
}

const fileName = title => (title.replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '') || 'millrace').slice(0, 60);

export function setUpSidebar() {
  $('side-open').onclick = () => drawer(!$('chat').classList.contains('side-open'));
  $('side-close').onclick = () => drawer(false);
  $('new').onclick = () => {
    openConversation(newConversation());
    drawer(false);
    $('prompt').focus();
  };
  $('search').oninput = () => {
    $('side-note').textContent = '';
    refreshSidebar();
  };
  $('title').onchange = async () => {
    const conversation = current();
    conversation.title = $('title').value.trim() || conversation.title;
    await saveConversation(conversation);
    refreshSidebar();
  };
  $('title').onkeydown = event => { if (event.key === 'Enter') $('title').blur(); };
  $('remove').onclick = async () => {
    const conversation = current();
    if (!confirm(t('removeWhat', {name: conversation.title}))) return;
    openConversation(newConversation());
    await removeConversation(conversation.id);
    refreshSidebar();
  };
  $('export').onclick = () => download(fileName(current().title) + '.md', 'text/markdown', toMarkdown(current()));
  $('export-all').onclick = async () => download('millrace-conversations.json', 'application/json', toJson(await allConversations()));
  $('import').onclick = () => $('import-file').click();
  $('import-file').onchange = async () => {
    const [file] = $('import-file').files;
    $('import-file').value = '';
    if (!file) return;
    try {
      const conversations = fromJson(await file.text());
      for (const conversation of conversations) await saveConversation(conversation);
      $('side-note').textContent = t('imported', {n: number(conversations.length)});
    } catch {
      $('side-note').textContent = t('importBad', {name: file.name});
    }
    refreshSidebar();
  };
}
