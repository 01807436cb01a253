// The page at "/": puts its parts together. Views, light and dark, keys.
import {isRunning, send, setUpChat, stop} from './chat.js';
import {setUpComposer} from './composer.js';
import {$, fillIcons, keep, kept} from './dom.js';
import {setUpPictures} from './files.js';
import {lookAtMachine} from './machine.js';
import {listModels, refreshNames, setUpModels} from './models.js';
import {setUpSettings, showSettings} from './settings.js';
import {refreshSidebar, setUpSidebar, showSidebar} from './sidebar.js';
import {renewWelcome, setUpWelcome} from './welcome.js';
import {fillWords, offerLanguages} from './words.js';

const VIEWS = ['chat', 'models', 'machine'];

function show(name) {
  for (const view of VIEWS) {
    $(view).hidden = view !== name;
    $('tab-' + view).setAttribute('aria-selected', view === name);
    $('tab-' + view).tabIndex = view === name ? 0 : -1;
  }
  if (name === 'models') listModels();
  if (name === 'machine') lookAtMachine();
}
VIEWS.forEach((view, i) => {
  $('tab-' + view).onclick = () => show(view);
  $('tab-' + view).onkeydown = event => {
    const step = {ArrowRight: 1, ArrowLeft: VIEWS.length - 1}[event.key];
    if (!step) return;
    const next = VIEWS[(i + step) % VIEWS.length];
    show(next);
    $('tab-' + next).focus();
  };
});

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
}
$('theme').onclick = () => {
  const now = document.documentElement.dataset.theme ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  setTheme(now === 'dark' ? 'light' : 'dark');
  keep('theme', document.documentElement.dataset.theme);
};

const typing = () => /INPUT|TEXTAREA|SELECT/.test(document.activeElement.tagName);
/// Escape stops an answer, or closes what lies over the conversation; / goes to the message, Ctrl+K to the search,
/// Ctrl+Shift+O begins a conversation.
document.addEventListener('keydown', event => {
  if ($('picture').open || event.isComposing) return;  // the dialog has the keys
  const command = event.ctrlKey || event.metaKey;
  if (event.key === 'Escape') {
    if (isRunning()) stop();
    else if (!$('settings').hidden) showSettings(false);
    else showSidebar(false);
    return;
  }
  const asked = event.key === '/' && !typing() ? () => $('prompt').focus()
    : command && !event.shiftKey && event.key.toLowerCase() === 'k' ? () => showSidebar(true)
      : command && event.shiftKey && event.key.toLowerCase() === 'o' ? () => $('new').click() : null;
  if (!asked) return;
  event.preventDefault();
  show('chat');
  asked();
});

setTheme(kept('theme'));
fillWords();
fillIcons();
offerLanguages($('language'));
setUpSettings(refreshNames);
setUpComposer(send);
setUpPictures();
setUpModels(renewWelcome);
setUpSidebar();
setUpChat(refreshSidebar);
setUpWelcome(content => send({content, files: []}));
refreshNames().then(({models, failed}) => {
  if (models.length === 0 && !failed) show('models');  // nothing to chat with yet
});
if (matchMedia('(pointer: fine)').matches) $('prompt').focus();
